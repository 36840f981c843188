"""Learning from questions with one answer each. Rewards are `eval.py` on training data; without one there is
only SFT."""

import json
import runpy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent2rl.agents.recipe import plan
from agent2rl.agents.recipe.rounds import GROUP, Learner, Round
from agent2rl.core.engine import Chat, Message
from agent2rl.core.errors import UserError
from agent2rl.training import prompts
from agent2rl.training.crew import members
from agent2rl.training.descent import Course
from agent2rl.training.grpo import grpo
from agent2rl.training.sampling import SampleSettings, sample
from agent2rl.training.sft import SftSettings, sft


@dataclass(frozen=True)
class Questions:
    rows: Sequence[dict[str, Any]]
    evaluate: Callable[..., float] | None

    @classmethod
    def read(cls, workspace: Path, data: Path) -> "Questions":
        return cls(_rows(data / "train.jsonl"), _evaluate(workspace / "eval.py"))

    @property
    def answers(self) -> list[str]:
        return [_text(row["answer"]) for row in self.rows]

    def asked(self, tokenizer: Any) -> list[str]:
        """The text that the model reads for each training question."""
        return [prompts.render(tokenizer, chat(row)) for row in self.rows]

    def reward(self, index: int, text: str) -> float:
        """What a text is worth as the answer to a training question."""
        row = self.rows[index]
        more = {key: row[key] for key in row.keys() - {"id", "question", "answer", "prompt"}}
        assert self.evaluate is not None
        return float(
            self.evaluate(question=row["question"], model_answer=text, reference_answer=row["answer"], **more)
        )

    def stages(self, wanted: Sequence[str]) -> list[str]:
        possible = [stage for stage in wanted if stage == "sft" or self.evaluate]
        if not possible:
            raise UserError("This task shows no eval.py, so there is no reward.", "Try recipe:sft.")
        return possible

    def sft(self, now: Round, learner: Learner) -> float:
        rate = now.factor * learner.rate("sft")
        settings = SftSettings(rate, plan.epochs(len(self.rows)), seconds=now.seconds, seed=now.seed)
        pairs = list(zip(self.asked(learner.tokenizer), self.answers, strict=True))
        return sft(learner.model, learner.tokenizer, pairs, settings, now.progress).seconds

    def grpo(self, now: Round, learner: Learner, look: Callable[[Course], None]) -> float | None:
        model, tokenizer = learner.model, learner.tokenizer
        asked = self.asked(tokenizer)
        lengths = [len(tokens) for tokens in prompts.answers(tokenizer, self.answers)]
        sampling = SampleSettings(max_tokens=plan.answer_tokens(lengths), seed=now.seed)
        probe, each = speed(model, tokenizer, asked[: plan.FEWEST_PROMPTS], sampling)
        seconds = now.seconds - probe
        rate = learner.rate("grpo") * plan.steadiness(seconds, each)
        shape = now.online(seconds, each, rate, max_tokens=sampling.max_tokens)
        if shape is None:
            return None
        return grpo(model, tokenizer, asked, self.reward, shape, now.progress, look).seconds + probe


def speed(model: Any, tokenizer: Any, asked: Sequence[str], sampling: SampleSettings) -> tuple[float, float]:
    """Seconds that finding out took, and that sampling one question's answers takes in GRPO."""
    began = time.monotonic()
    sample(model, tokenizer, asked[:1], sampling, GROUP)  # what is set up on first use
    warm = time.monotonic()
    sample(model, tokenizer, asked, sampling, GROUP)
    end = time.monotonic()
    return end - began, (end - warm) / len(asked) / members(model)


def chat(row: dict[str, Any]) -> Chat:
    """What the model is asked; the bare question where the task does not say."""
    messages = row.get("prompt")
    if not isinstance(messages, list):
        return (Message("user", row["question"]),)
    return tuple(Message(message["role"], message["content"]) for message in messages)


def _evaluate(path: Path) -> Callable[..., float] | None:
    """The task's scoring function, where it is shown."""
    if not path.is_file():
        return None
    evaluate: Callable[..., float] = runpy.run_path(str(path))["evaluate"]
    return evaluate


def _rows(path: Path) -> list[dict[str, Any]]:
    """One a line; lines end in \\n alone, since a question may hold what else Unicode calls a line's end."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def _text(answer: object) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
