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
from agent2rl.agents.recipe.rounds import ATTEMPTS_PER_PROMPT, PolicyLearner, TrainingRound
from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.core.errors import UserError
from agent2rl.training import prompts
from agent2rl.training.data_parallel import count_workers
from agent2rl.training.grpo import grpo
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.sampling import SampleSettings, sample
from agent2rl.training.sft import SftSettings, sft


@dataclass(frozen=True)
class QuestionSubject:
    rows: Sequence[dict[str, Any]]
    evaluate: Callable[..., float] | None

    @classmethod
    def read(cls, workspace: Path, data: Path) -> "QuestionSubject":
        return cls(_read_rows(data / "train.jsonl"), _load_evaluate(workspace / "eval.py"))

    @property
    def answers(self) -> list[str]:
        return [_to_text(row["answer"]) for row in self.rows]

    def render_prompts(self, tokenizer: Any) -> list[str]:
        """The text that the model reads for each training question."""
        return [prompts.render(tokenizer, build_chat(row)) for row in self.rows]

    def compute_reward(self, index: int, text: str) -> float:
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

    def sft(self, now: TrainingRound, learner: PolicyLearner) -> float:
        rate = now.factor * learner.choose_learning_rate("sft")
        settings = SftSettings(rate, plan.choose_epochs(len(self.rows)), seconds=now.seconds, seed=now.seed)
        pairs = list(zip(self.render_prompts(learner.tokenizer), self.answers, strict=True))
        return sft(learner.model, learner.tokenizer, pairs, settings, now.progress).seconds

    def grpo(
        self, now: TrainingRound, learner: PolicyLearner, look: Callable[[TrainingSchedule], None]
    ) -> float | None:
        model, tokenizer = learner.model, learner.tokenizer
        asked = self.render_prompts(tokenizer)
        lengths = [len(tokens) for tokens in prompts.encode_answers(tokenizer, self.answers)]
        sampling = SampleSettings(max_tokens=plan.limit_answer_tokens(lengths), seed=now.seed)
        probe, each = measure_sampling_speed(model, tokenizer, asked[: plan.FEWEST_PROMPTS], sampling)
        seconds = now.seconds - probe
        rate = learner.choose_learning_rate("grpo") * plan.scale_rate_to_steps(seconds, each)
        shape = now.plan_grpo(seconds, each, rate, max_tokens=sampling.max_tokens)
        if shape is None:
            return None
        return grpo(model, tokenizer, asked, self.compute_reward, shape, now.progress, look).seconds + probe


def measure_sampling_speed(
    model: Any, tokenizer: Any, asked: Sequence[str], sampling: SampleSettings
) -> tuple[float, float]:
    """Seconds that finding out took, and that sampling one question's answers takes in GRPO."""
    began = time.monotonic()
    sample(model, tokenizer, asked[:1], sampling, ATTEMPTS_PER_PROMPT)  # what is set up on first use
    warm = time.monotonic()
    sample(model, tokenizer, asked, sampling, ATTEMPTS_PER_PROMPT)
    end = time.monotonic()
    return end - began, (end - warm) / len(asked) / count_workers(model)


def build_chat(row: dict[str, Any]) -> Chat:
    """What the model is asked; the bare question where the task does not say."""
    messages = row.get("prompt")
    if not isinstance(messages, list):
        return (ChatMessage("user", row["question"]),)
    return tuple(ChatMessage(message["role"], message["content"]) for message in messages)


def _load_evaluate(path: Path) -> Callable[..., float] | None:
    """The task's scoring function, where it is shown."""
    if not path.is_file():
        return None
    evaluate: Callable[..., float] = runpy.run_path(str(path))["evaluate"]
    return evaluate


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """One a line; lines end in \\n alone, since a question may hold what else Unicode calls a line's end."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def _to_text(answer: object) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
