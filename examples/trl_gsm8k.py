"""GRPO with TRL on word problems. The reward is the task's own score of an answer.

    agent2rl run --task gsm8k-mini --agent script:examples/trl_gsm8k.py --model seedling --budget 10m

It works for any task whose eval.py has `evaluate`. Steps and learning rates suit the seedling; lower the
rates for larger models.
"""

import json
import os
import runpy
import sys
import time
import urllib.request
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

WARM_UP_PROBLEMS = 1000
GRPO_STEPS = 40
QUESTIONS_PER_STEP, ANSWERS_PER_QUESTION = 8, 8
MAX_ANSWER_TOKENS = 64
GRADING_SECONDS = 90
"""Time that is left for saving and grading when training ends."""

sys.stdout.reconfigure(line_buffering=True)  # show the trainer's progress at once
DATA, OUTPUT = Path(os.environ["DATA_PATH"]), Path(os.environ["OUTPUT_DIR"])
evaluate = runpy.run_path(os.environ["WORKSPACE"] + "/eval.py")["evaluate"]


def call_grader(route, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["GRADING_SERVER_URL"] + route, data, headers)
    return json.load(urllib.request.urlopen(request))


def submit(trainer, name):
    trainer.save_model(str(OUTPUT / name))
    answer = call_grader("/submit", {"model_path": str(OUTPUT / name)})
    print(name, answer["verdict"], answer["score"], answer["message"])


class StopInTime(TrainerCallback):
    """Ends training while there is time to grade the result."""

    def on_step_begin(self, args, state, control, **_):
        self.began = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        next_step_seconds = 1.5 * (time.monotonic() - self.began)
        if call_grader("/time")["remaining"] < next_step_seconds + GRADING_SECONDS:
            control.should_training_stop = True


def score_answers(completions, question, answer, **_):
    """Score answers as the grader does."""
    return [
        float(evaluate(question=asked, model_answer=said[0]["content"], reference_answer=reference))
        for said, asked, reference in zip(completions, question, answer, strict=True)
    ]


problems = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()]
tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
# float32, because small steps are lost in bfloat16.
model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"], dtype=torch.float32)
common = {
    "bf16": torch.cuda.is_available(),
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "seed": 0,
}

# A short warm-up: without some right answers there is no reward to learn from.
pairs = [
    {"prompt": row["prompt"], "completion": [{"role": "assistant", "content": row["answer"]}]}
    for row in problems[:WARM_UP_PROBLEMS]
]
warm_up = SFTTrainer(
    model,
    args=SFTConfig(
        output_dir=str(OUTPUT / "warm-up"),
        num_train_epochs=1,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        logging_steps=5,
        **common,
    ),
    train_dataset=Dataset.from_list(pairs),
    processing_class=tokenizer,
)
warm_up.train()

trainer = GRPOTrainer(
    model,
    reward_funcs=score_answers,
    args=GRPOConfig(
        output_dir=str(OUTPUT / "trl"),
        max_steps=GRPO_STEPS,
        per_device_train_batch_size=QUESTIONS_PER_STEP * ANSWERS_PER_QUESTION,
        num_generations=ANSWERS_PER_QUESTION,
        max_completion_length=MAX_ANSWER_TOKENS,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        logging_steps=1,
        **common,
    ),
    train_dataset=Dataset.from_list(problems),
    processing_class=tokenizer,
    callbacks=[StopInTime()],
)
trainer.train()
submit(trainer, "grpo")
