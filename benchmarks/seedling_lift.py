"""What training makes of the seedling on a miniature: SFT, GRPO after it, and GRPO alone; one seed a process.

    for seed in 0 1 2; do
        python -m benchmarks.seedling_lift --seed $seed                    # base, SFT, then GRPO
        python -m benchmarks.seedling_lift --seed $seed --sft-epochs 0     # GRPO alone
    done

`--task` is gsm8k-mini or another miniature whose agents get an eval.py, which rewards and scores here too.
Prints a JSON line after each stage, with the greedy score on both splits, in percent. GRPO is compared with
the model that it started from, problem by problem, as in `world_lift`. Scores are from the recipes' own
sampler, which on a GPU calculates in bfloat16: a grading on CPU can differ by a problem or two.
"""

import argparse
import json
import runpy
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl import registry
from agent2rl.core.grading_records import EvalResult, ExampleResult
from agent2rl.core.task import ChatEvaluator, Example, Task
from agent2rl.training import models, prompts
from agent2rl.training.grpo import GrpoSettings, grpo
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.sampling import SampleSettings, sample
from agent2rl.training.sft import SftSettings, sft
from benchmarks.world_lift import Evaluations, compare, summarize

SHIPPED = Path(__file__).parents[1] / "src/agent2rl/models/seedling/files"
SPLITS = ("feedback", "heldout")
QUIET = 1e9
ANSWER = 96
"""Tokens that a trained answer has at most; the longest in the data has 60."""
LONGEST = 512
"""Tokens that a graded answer has at most."""


class Subject:
    """A task as its trainer sees it."""

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase) -> None:
        assert isinstance(task.evaluator, ChatEvaluator)
        self._asks = task.evaluator
        self._tokenizer = tokenizer
        self._evaluate: Callable[..., float] = runpy.run_path(str(task.exposes["eval.py"]))["evaluate"]

    def asked(self, examples: Sequence[Example]) -> list[str]:
        return [prompts.render(self._tokenizer, self._asks.chat(one, templated=True)) for one in examples]

    def worth(self, example: Example, answer: str) -> float:
        return self._evaluate(
            question=example.prompt, model_answer=answer, reference_answer=example.target, **example.meta
        )

    def evaluate(
        self, model: PreTrainedModel, examples: Sequence[Example], temperature: float = 0.0
    ) -> EvalResult:
        settings = SampleSettings(LONGEST, temperature)
        found = sample(model, self._tokenizer, self.asked(examples), settings)
        return EvalResult(
            results=tuple(
                ExampleResult(id=one.id, output=answer.text, score=self.worth(one, answer.text))
                for one, (answer,) in zip(examples, found, strict=True)
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="gsm8k-mini")
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--sft-epochs", type=int, default=1)
    parser.add_argument("--sft-rate", type=float, default=5e-4)
    parser.add_argument("--grpo-steps", type=int, default=150)
    parser.add_argument("--grpo-rate", type=float, default=1e-4)
    parser.add_argument("--grpo-prompts", type=int, default=32)
    parser.add_argument("--grpo-updates", type=int, default=1, help="per step")
    parser.add_argument("--log", type=Path, help="a file for each step of GRPO, as JSON lines")
    chosen = parser.parse_args()
    task = registry.find_task(chosen.task)
    splits = task.load(None)
    train = splits.train[: chosen.problems]
    model, tokenizer = models.load(chosen.model)
    subject = Subject(task, tokenizer)
    asked = subject.asked(train)
    began = time.monotonic()
    settings = {name: value for name, value in vars(chosen).items() if name not in ("model", "log")}

    def grade(stage: str, before: Evaluations | None = None, **more: object) -> Evaluations:
        found = {split: subject.evaluate(model, getattr(splits, split)) for split in SPLITS}
        told = {"stage": stage, **summarize(found), **more, "seconds": round(time.monotonic() - began)}
        if before is not None:
            told["paired"] = compare(before, found)
        print(json.dumps({**told, **settings}), flush=True)
        return found

    last = grade("base")
    if chosen.sft_epochs:
        pairs = [(prompt, example.target) for prompt, example in zip(asked, train, strict=True)]
        supervised = SftSettings(chosen.sft_rate, chosen.sft_epochs, seed=chosen.seed)
        result = sft(model, tokenizer, pairs, supervised, TrainingProgress("sft", every_seconds=QUIET))
        last = grade("sft", steps=result.steps, loss=round(result.loss, 3))
    if chosen.grpo_steps:
        online = GrpoSettings(
            chosen.grpo_rate,
            chosen.grpo_steps,
            prompts=chosen.grpo_prompts,
            max_tokens=ANSWER,
            updates=chosen.grpo_updates,
            seed=chosen.seed,
        )

        def reward(index: int, text: str) -> float:
            return subject.worth(train[index], text)

        progress = TrainingProgress("grpo", chosen.log, every_seconds=0.0 if chosen.log else QUIET)
        rewards = grpo(model, tokenizer, asked, reward, online, progress).rewards
        tens = [rewards[start : start + 10] for start in range(0, len(rewards), 10)]
        grade("grpo", last, rewards=[round(sum(ten) / len(ten), 2) for ten in tens])


if __name__ == "__main__":
    main()
