"""Tokens per second of our training loops against TRL's trainers: same model, data, batch and kind of step.

    sft     loss on the answers, AdamW, clipping
    grpo    the same number of questions and answers a step, sampled by the model as it trains

A model of three million random weights and gsm8k-mini's problems, in float32 on all cores, each library in
turn, by the clock. Tokens are those of prompts and answers (sft), and those sampled (grpo). What TRL does
before its first step is left out. GRPO's answers are cut at the same length, and the model does not learn to
end them within the few steps, so both sample as many tokens.

    .venv/bin/pip install trl==1.16.0 accelerate datasets
    .venv/bin/python -m benchmarks.training_loops
"""

import importlib
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from agent2rl.tasks.gsm8k.mini import generate_problems
from agent2rl.training.grpo import GrpoSettings, grpo
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.sft import SftSettings, sft

# None of them says its types.
datasets: Any = importlib.import_module("datasets")
transformers: Any = importlib.import_module("transformers")
trl: Any = importlib.import_module("trl")

ROUNDS = 3
SFT_EPOCHS, BATCH = 1, 16
GRPO_STEPS, PROMPTS, GROUP, ANSWER = 2, 16, 8, 48
PAIRS = [(f"{example.prompt}\nAnswer:", f" {example.target}") for example in generate_problems("train", 400)]
COMMON: dict[str, Any] = {
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}


class Clock(TrainerCallback):
    """From a trainer's first step to its last."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.monotonic()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.monotonic() - self.began


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet
    )
    made.train_from_iterator([prompt + answer for prompt, answer in PAIRS], trainer)
    words: PreTrainedTokenizerFast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>"
    )
    return words


def model() -> PreTrainedModel:
    torch.manual_seed(0)
    made: PreTrainedModel = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=2048,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    return made


def our_sft(words: PreTrainedTokenizerFast, _: Path) -> float:
    settings = SftSettings(epochs=SFT_EPOCHS, batch_size=BATCH)
    fresh, began = model(), time.monotonic()
    done = sft(fresh, words, PAIRS, settings, TrainingProgress("sft"))
    return done.tokens / (time.monotonic() - began)


def trl_sft(words: PreTrainedTokenizerFast, scratch: Path) -> float:
    rows = datasets.Dataset.from_list([{"prompt": prompt, "completion": answer} for prompt, answer in PAIRS])
    clock = Clock()
    trl.SFTTrainer(
        model=model(),
        args=trl.SFTConfig(
            output_dir=str(scratch),
            num_train_epochs=SFT_EPOCHS,
            per_device_train_batch_size=BATCH,
            learning_rate=5e-4,
            **COMMON,
        ),
        train_dataset=rows,
        processing_class=words,
        callbacks=[clock],
    ).train()
    each = sum(len(words(prompt).input_ids) + len(words(answer).input_ids) + 1 for prompt, answer in PAIRS)
    return SFT_EPOCHS * each / clock.seconds


def even(text: str) -> float:
    """Differs within a group, whatever the model says."""
    return text.count("a") / (len(text) + 1)


def our_grpo(words: PreTrainedTokenizerFast, _: Path) -> float:
    prompts = [prompt for prompt, _ in PAIRS]
    settings = GrpoSettings(
        steps=GRPO_STEPS, prompts=PROMPTS, group=GROUP, max_tokens=ANSWER, learning_rate=1e-6
    )
    fresh, began = model(), time.monotonic()
    done = grpo(fresh, words, prompts, lambda _, text: even(text), settings, TrainingProgress("grpo"))
    return done.tokens / (time.monotonic() - began)


def trl_grpo(words: PreTrainedTokenizerFast, scratch: Path) -> float:
    sampled = 0

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        nonlocal sampled
        sampled += sum(map(len, completion_ids))
        return [even(text) for text in completions]

    clock = Clock()
    trl.GRPOTrainer(
        model=model(),
        reward_funcs=reward,
        args=trl.GRPOConfig(
            output_dir=str(scratch),
            max_steps=GRPO_STEPS,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=ANSWER,
            learning_rate=1e-6,
            temperature=1.0,
            beta=0.0,
            **COMMON,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt, _ in PAIRS]),
        processing_class=words,
        callbacks=[clock],
    ).train()
    return sampled / clock.seconds


Loop = Callable[[PreTrainedTokenizerFast, Path], float]


def compare(name: str, ours: Loop, theirs: Loop) -> None:
    """Alternate, so that a noisy machine is noisy to both; medians."""
    words = tokenizer()
    with tempfile.TemporaryDirectory() as scratch, redirect_stdout(StringIO()):
        speeds = [(ours(words, Path(scratch)), theirs(words, Path(scratch))) for _ in range(ROUNDS)]
    mine, trls = (median(column) for column in zip(*speeds, strict=True))
    print(f"{name}: {mine:.0f} tokens/s, TRL {trls:.0f}, ratio {mine / trls:.2f}", flush=True)


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    weights = sum(tensor.numel() for tensor in model().parameters())
    print(f"{weights:,} weights, trl {trl.__version__}")
    compare("sft", our_sft, trl_sft)
    compare("grpo", our_grpo, trl_grpo)
