"""What the recipe learns from, questions or games, and the training rounds that it learns in.

Questions have one answer each, and their rewards are `eval.py` on training data; without one there is only
SFT. Games are the run's world (`data/world.json`), put to the model by the `EVALUATOR` of `eval.py`: first
the expert's games, where the run shows any, then the model's own. Their rewards are the world's.
"""

import json
import random
import runpy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent2rl.agents.recipe import plan
from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters import StepsUsedUp, count_steps, open_world
from agent2rl.evaluators.episodes import Episodes
from agent2rl.training import models, prompts, rollouts
from agent2rl.training.data_parallel import count_workers
from agent2rl.training.grpo import GrpoSettings, grpo
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.policy import TrainingSequence
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.rollouts import Arena, demonstrations, grpo_in_world
from agent2rl.training.sampling import PolicySampler, SampleSettings, sample
from agent2rl.training.sft import SftSettings, imitate, sft

# What the parts of the recipe's program tell each other: a round, who learns in it, and what from.

ATTEMPTS_PER_PROMPT = 8
"""Attempts at a question or a game in GRPO."""


@dataclass(frozen=True)
class PolicyLearner:
    model: Any
    tokenizer: Any

    def choose_learning_rate(self, kind: str) -> float:
        return plan.choose_learning_rate(kind, models.count_parameters(self.model))


@dataclass(frozen=True)
class TrainingRound:
    number: int
    stage: str
    start: Path
    """The model that it goes on from."""
    path: Path
    """Where it leaves its own."""
    seconds: float
    factor: float
    """Of the usual learning rate."""
    seed: int
    log: Path
    """Where it says how it goes."""

    @property
    def progress(self) -> TrainingProgress:
        return TrainingProgress(self.stage, self.log)

    def plan_grpo(self, seconds: float, each: float, rate: float, **more: Any) -> GrpoSettings | None:
        """GRPO that fits, where the attempts at one question or game take `each`; None where no step does."""
        if seconds <= 0 or plan.count_grpo_steps(seconds, each) < 1:
            return None
        shape = GrpoSettings(
            learning_rate=self.factor * rate,
            steps=10**6,
            seconds=seconds,
            prompts=plan.choose_prompts_per_step(seconds, each),
            group=ATTEMPTS_PER_PROMPT,
            seed=self.seed,
            **more,
        )
        print(f"grpo: {shape.prompts} a step, rate {shape.learning_rate:.1e}", flush=True)
        return shape


class TrainingSubject(Protocol):
    """What there is to learn from: questions, or games. Each stage trains the learner and gives the seconds
    that it took; None where there is not time for a step."""

    def stages(self, wanted: Sequence[str]) -> list[str]:
        """Those that are possible; an error where none is."""
        ...

    def sft(self, now: TrainingRound, learner: PolicyLearner) -> float | None: ...

    def grpo(
        self, now: TrainingRound, learner: PolicyLearner, look: Callable[[TrainingSchedule], None]
    ) -> float | None: ...


# Learning from questions with one answer each. Rewards are `eval.py` on training data; without one there
# is only SFT.


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


# Learning from games: first the expert's, where the run shows one, then the model's own.

DEMONSTRATION_SHARE = 1 / 4
"""The share of an SFT round in which the expert may play."""


@dataclass(frozen=True)
class WorldSubject:
    world: World
    arena: Arena

    @classmethod
    def read(cls, workspace: Path, data: Path) -> "WorldSubject":
        world, evaluator = count_steps(open_world(data)), _load_evaluator(workspace / "eval.py")
        told = (evaluator.telling, evaluator.action, evaluator.sampling, evaluator.get_kind)
        return cls(world, Arena(world.environment, *told))

    def stages(self, wanted: Sequence[str]) -> list[str]:
        """All of them, if there is an expert."""
        possible = [stage for stage in wanted if stage != "sft" or self.world.expert]
        if not possible:
            raise UserError("Nobody shows how to play, so SFT has nothing to learn from.", "Try recipe:grpo.")
        if len(possible) < len(wanted):
            print("nobody shows how to play: SFT has nothing to learn from, and is left out", flush=True)
        return possible

    def sft(self, now: TrainingRound, learner: PolicyLearner) -> float | None:
        began = time.monotonic()
        rows = self._collect_demonstrations(now, learner)
        spent = time.monotonic() - began
        print(f"sft: {len(rows)} rows of the expert's games, in {spent:.0f} s", flush=True)
        if not rows:
            raise UserError("The expert won none of the games that there was time for.")
        rate = now.factor * learner.choose_learning_rate("imitation")
        seconds = now.seconds - spent
        settings = SftSettings(
            rate, plan.choose_epochs(len(rows)), plan.DEMONSTRATIONS_PER_STEP, seconds, seed=now.seed
        )
        return spent + imitate(learner.model, rows, settings, now.progress).seconds

    def _collect_demonstrations(self, now: TrainingRound, learner: PolicyLearner) -> list[TrainingSequence]:
        """Games in random order, as many as there is time for."""
        assert self.world.expert is not None
        end = time.monotonic() + DEMONSTRATION_SHARE * now.seconds
        games = self._sample_games(len(self.world.games), now.seed)
        rows: list[TrainingSequence] = []
        with suppress(StepsUsedUp):  # what was shown before is there to learn from
            for found in demonstrations(
                learner.model, learner.tokenizer, self.arena, self.world.expert, games
            ):
                rows += found
                if time.monotonic() > end:
                    break
        return rows

    def grpo(
        self, now: TrainingRound, learner: PolicyLearner, look: Callable[[TrainingSchedule], None]
    ) -> float | None:
        probe, each = self._measure_play_speed(now, learner)
        # An episode that fails is several times as long as one that wins: each is to weigh the same. And few
        # steps are taken at the usual rate: three did 14 points of good (docs/design/training.md).
        shape = now.plan_grpo(now.seconds - probe, each, learner.choose_learning_rate("play"), level=True)
        if shape is None:
            return None
        model, tokenizer, games = learner.model, learner.tokenizer, self.world.games
        result = grpo_in_world(model, tokenizer, self.arena, games, shape, now.progress, look)
        return result.seconds + probe

    def _measure_play_speed(self, now: TrainingRound, learner: PolicyLearner) -> tuple[float, float]:
        """Seconds that finding out took, and that playing one game's episodes takes in GRPO."""
        began = time.monotonic()
        sampler = PolicySampler(learner.model, learner.tokenizer)
        practice = rollouts.EpisodeRollouts(sampler, self.arena, self.world.games, ATTEMPTS_PER_PROMPT)
        games = self._sample_games(plan.PROBE_GAMES, now.seed)
        try:
            practice.play_games(games, now.seed)
        finally:
            practice.close()
            sampler.close()
        spent = time.monotonic() - began
        return spent, spent / len(games) / count_workers(learner.model)

    def _sample_games(self, count: int, seed: int) -> list[Example]:
        games = self.world.games
        return random.Random(seed).sample(games, min(count, len(games)))


def _load_evaluator(path: Path) -> Episodes:
    try:
        found = runpy.run_path(str(path))["EVALUATOR"]
    except (OSError, KeyError) as error:
        raise UserError(f"{path.name} does not say how the world is put to a model: {error!r}.") from error
    if not isinstance(found, Episodes):
        raise UserError(f"The EVALUATOR of {path.name} plays no episodes.")
    return found
