"""GRPO with TRL in a task's world: the model plays in the world that the harness serves.

    agent2rl run --task alfworld-mini --agent script:examples/trl_world.py --model seedling --budget 12m

It works for any task with a world and demonstrations (`--expert N`), and any model with a chat template. TRL
plays by tool calls, but grading offers no tools. So each reply of the model is a call of one tool, `act`, and
the model reads and generates the tokens of grading. Steps and learning rates suit the seedling; lower the
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
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from agent2rl.environments.adapters import StepsUsedUp, open_world
from agent2rl.environments.adapters.trl import environment_factory, make_plain_reply_tokenizer, rows
from agent2rl.training import models
from agent2rl.training.conversations import encode_demonstrations
from agent2rl.training.demonstrations import read_demonstrations
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.sft import SftSettings, imitate

WARM_UP_EPOCHS = 4
GRPO_STEPS = 16
GAMES_PER_STEP, EPISODES_PER_GAME = 4, 8
MAX_EPISODE_TOKENS = 512
GRADING_SECONDS = 120
"""Time that is left for saving and grading when training ends."""

sys.stdout.reconfigure(line_buffering=True)  # show the trainer's progress at once
DATA, OUTPUT = Path(os.environ["DATA_PATH"]), Path(os.environ["OUTPUT_DIR"])
# EVALUATOR has the grader's prompts, and how it finds the action in a reply.
EVALUATOR = runpy.run_path(os.environ["WORKSPACE"] + "/eval.py")["EVALUATOR"]


def call_grader(route, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["GRADING_SERVER_URL"] + route, data, headers)
    return json.load(urllib.request.urlopen(request))


def submit(name):
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


# A short warm-up on games that the expert won: GRPO learns nothing from a model that wins no game.
model, tokenizer = models.load(Path(os.environ["MODEL_PATH"]))
demonstrations = read_demonstrations(DATA)
shown = encode_demonstrations(model, tokenizer, EVALUATOR.prompt, demonstrations)
imitate(model, shown, SftSettings(1.5e-3, WARM_UP_EPOCHS, batch_size=4), TrainingProgress("sft"))
models.save(model, tokenizer, OUTPUT / "sft")
submit("sft")

world = open_world()
trainer = GRPOTrainer(
    AutoModelForCausalLM.from_pretrained(OUTPUT / "sft", dtype=torch.float32),
    args=GRPOConfig(
        output_dir=str(OUTPUT / "trl"),
        max_steps=GRPO_STEPS,
        per_device_train_batch_size=EPISODES_PER_GAME,
        gradient_accumulation_steps=GAMES_PER_STEP,
        num_generations=EPISODES_PER_GAME,
        max_completion_length=MAX_EPISODE_TOKENS,
        # An episode that is longer than any of the expert's is rarely won, and costs the most.
        max_tool_calling_iterations=max(len(game.turns) for game in demonstrations),
        generation_kwargs={"max_new_tokens": EVALUATOR.sampling.max_tokens},  # of one reply
        learning_rate=5e-5,
        lr_scheduler_type="constant",
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
        disable_tqdm=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        seed=0,
    ),
    train_dataset=Dataset.from_list(rows(world, EVALUATOR.prompt.chat)),
    environment_factory=environment_factory(world, extract_action=EVALUATOR.action),
    processing_class=make_plain_reply_tokenizer(tokenizer),
    callbacks=[StopInTime()],
)
try:
    trainer.train()
except StepsUsedUp as error:  # --max-env-steps: submit what was learnt so far
    print(error)
trainer.processing_class = tokenizer  # a submission has the base model's chat template
trainer.save_model(str(OUTPUT / "grpo"))
submit("grpo")
