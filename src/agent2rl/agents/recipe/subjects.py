"""The recipe's training subjects, questions or games, and its training rounds.

Questions have one answer each, and `eval.py` on training data gives their rewards; without it there is only
SFT. Games are the run's world (`data/world.json`), presented to the model by the `EVALUATOR` of `eval.py`:
first the expert's games, played or from a file, if the run has any, then the model's own. The world gives
their rewards.
"""

import json
import math
import random
import runpy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from agent2rl.agents.recipe import plan
from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters import StepsUsedUp, count_steps, open_world
from agent2rl.evaluators.episodes import Episodes
from agent2rl.training import models, prompts, rollouts
from agent2rl.training.conversations import encode_demonstrations
from agent2rl.training.data_parallel import DataParallelWorkers, count_workers
from agent2rl.training.demonstrations import Demonstration, read_demonstrations
from agent2rl.training.grpo import GrpoRollout, GrpoSettings, RolloutJob, grpo
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.policy import TrainingSequence
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.rollouts import WorldSetup, encode_expert_games, grpo_in_world
from agent2rl.training.sampling import PolicySampler, SampleSettings, sample
from agent2rl.training.sft import SftSettings, imitate, sft

# Rounds, learners and the protocol of subjects

ATTEMPTS_PER_PROMPT = 8
"""GRPO group size: attempts at one question or game."""


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
    """The model that it starts from."""
    path: Path
    """Where it saves the trained model."""
    seconds: float
    factor: float
    """Factor on the usual learning rate."""
    seed: int
    log: Path
    """Progress log."""
    submits_halfway: bool = False
    is_warm_up: bool = False
    """Whether GRPO follows."""

    @property
    def progress(self) -> TrainingProgress:
        return TrainingProgress(self.stage, self.log)

    def plan_grpo(
        self,
        seconds: float,
        group_seconds: float,
        rate: float,
        fewest: int = plan.FEWEST_PROMPTS,
        prompts_per_update: int | None = None,
        **options: Any,
    ) -> GrpoSettings | None:
        """Return settings that fit, if the attempts at one question or game take `group_seconds`; None if no
        step fits."""
        if seconds <= 0 or plan.count_grpo_steps(seconds, group_seconds, fewest) < 1:
            return None
        prompts = plan.choose_prompts_per_step(seconds, group_seconds, fewest)
        settings = GrpoSettings(
            learning_rate=self.factor * rate,
            # The time ends it, whatever the number of steps.
            steps=10**6,
            seconds=seconds,
            prompts=prompts,
            updates=prompts // prompts_per_update if prompts_per_update else 1,
            group=ATTEMPTS_PER_PROMPT,
            seed=self.seed,
            **options,
        )
        print(f"grpo: {settings.prompts} a step, rate {settings.learning_rate:.1e}", flush=True)
        return settings


class TrainingSubject(Protocol):
    """Training data: questions or games. Each stage trains the learner and returns the seconds that it took;
    None if there is no time for a step."""

    def stages(self, wanted: Sequence[str]) -> list[str]:
        """Return the wanted stages that are possible; raise UserError if none is."""
        ...

    def sft(self, this_round: TrainingRound, learner: PolicyLearner) -> float | None: ...

    def grpo(
        self, this_round: TrainingRound, learner: PolicyLearner, on_step: Callable[[TrainingSchedule], None]
    ) -> float | None: ...


# Questions


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
        """Return the prompt text of each training question."""
        return [prompts.render(tokenizer, build_chat(row)) for row in self.rows]

    def compute_reward(self, index: int, text: str) -> float:
        """Return the reward of a text as the answer to a training question."""
        row = self.rows[index]
        extra = {key: row[key] for key in row.keys() - {"id", "question", "answer", "prompt"}}
        assert self.evaluate is not None
        return float(
            self.evaluate(
                question=row["question"], model_answer=text, reference_answer=row["answer"], **extra
            )
        )

    def stages(self, wanted: Sequence[str]) -> list[str]:
        possible = [stage for stage in wanted if stage == "sft" or self.evaluate]
        if not possible:
            raise UserError("This task has no eval.py, so there is no reward.", "Use recipe:sft.")
        return possible

    def sft(self, this_round: TrainingRound, learner: PolicyLearner) -> float:
        rate = this_round.factor * learner.choose_learning_rate("sft")
        settings = SftSettings(
            rate, plan.choose_epochs(len(self.rows)), seconds=this_round.seconds, seed=this_round.seed
        )
        pairs = list(zip(self.render_prompts(learner.tokenizer), self.answers, strict=True))
        return sft(learner.model, learner.tokenizer, pairs, settings, this_round.progress).seconds

    def grpo(
        self, this_round: TrainingRound, learner: PolicyLearner, on_step: Callable[[TrainingSchedule], None]
    ) -> float | None:
        model, tokenizer = learner.model, learner.tokenizer
        texts = self.render_prompts(tokenizer)
        lengths = [len(tokens) for tokens in prompts.encode_answers(tokenizer, self.answers)]
        sampling = SampleSettings(max_tokens=plan.limit_answer_tokens(lengths), seed=this_round.seed)
        probe, group_seconds = measure_sampling_speed(
            model, tokenizer, texts[: plan.FEWEST_PROMPTS], sampling
        )
        seconds = this_round.seconds - probe
        rate = learner.choose_learning_rate("grpo") * plan.scale_rate_to_steps(seconds, group_seconds)
        settings = this_round.plan_grpo(seconds, group_seconds, rate, max_tokens=sampling.max_tokens)
        if settings is None:
            return None
        result = grpo(model, tokenizer, texts, self.compute_reward, settings, this_round.progress, on_step)
        return result.seconds + probe


def measure_sampling_speed(
    model: Any, tokenizer: Any, texts: Sequence[str], sampling: SampleSettings
) -> tuple[float, float]:
    """Return the seconds of this measurement, and of sampling one question's answers in GRPO."""
    began = time.monotonic()
    sample(model, tokenizer, texts[:1], sampling, ATTEMPTS_PER_PROMPT)  # warm up
    warm = time.monotonic()
    sample(model, tokenizer, texts, sampling, ATTEMPTS_PER_PROMPT)
    end = time.monotonic()
    return end - began, (end - warm) / len(texts) / count_workers(model)


def build_chat(row: dict[str, Any]) -> Chat:
    """Return the prompt of a row; the bare question if the row has none."""
    messages = row.get("prompt")
    if not isinstance(messages, list):
        return (ChatMessage("user", row["question"]),)
    return tuple(ChatMessage(message["role"], message["content"]) for message in messages)


def _load_evaluate(path: Path) -> Callable[..., float] | None:
    """Return the task's scoring function, if the workspace has it."""
    if not path.is_file():
        return None
    evaluate: Callable[..., float] = runpy.run_path(str(path))["evaluate"]
    return evaluate


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Read one row per line; only \\n ends a line, because a question may hold Unicode's other line ends."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def _to_text(answer: object) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


# Games

DEMONSTRATION_SHARE = 1 / 4
"""Maximum share of an SFT round for collecting expert games."""


@dataclass(frozen=True)
class WorldSubject:
    world: World
    setup: WorldSetup
    shown: Sequence[Demonstration] = ()
    """The expert's games of a run that has them as files."""

    @classmethod
    def read(cls, workspace: Path, data: Path) -> "WorldSubject":
        world, evaluator = count_steps(open_world(data)), _load_evaluator(workspace / "eval.py")
        parts = (evaluator.prompt, evaluator.action, evaluator.sampling, evaluator.get_kind)
        return cls(world, WorldSetup(world.environment, *parts), read_demonstrations(data))

    def stages(self, wanted: Sequence[str]) -> list[str]:
        """Return the wanted stages; SFT only if there is an expert or a file of its games."""
        possible = [stage for stage in wanted if stage != "sft" or self.world.expert or self.shown]
        if not possible:
            raise UserError("There are no expert games, so SFT is not possible.", "Use recipe:grpo.")
        if len(possible) < len(wanted):
            print("skipping SFT: there are no expert games", flush=True)
        return possible

    def sft(self, this_round: TrainingRound, learner: PolicyLearner) -> float | None:
        began = time.monotonic()
        rows = self._collect_demonstrations(this_round, learner)
        spent = time.monotonic() - began
        print(f"sft: {len(rows)} rows of the expert's games, in {spent:.0f} s", flush=True)
        if not rows:
            raise UserError("The expert won no game in the available time.")
        rate = this_round.factor * learner.choose_learning_rate("imitation")
        settings = SftSettings(
            rate,
            plan.choose_epochs(len(rows)),
            plan.DEMONSTRATIONS_PER_STEP,
            this_round.seconds - spent,
            seed=this_round.seed,
        )
        if this_round.is_warm_up:
            return self._warm_up(rows, settings, this_round, learner, began)
        return spent + imitate(learner.model, rows, settings, this_round.progress).seconds

    def _warm_up(
        self,
        rows: Sequence[TrainingSequence],
        settings: SftSettings,
        this_round: TrainingRound,
        learner: PolicyLearner,
        began: float,
    ) -> float:
        """Imitate in parts of some epochs until the model plays well enough for GRPO, or time is up.

        It plays only if the result decides whether another part follows: playing takes time, too.
        """
        longest = 0.0
        last = math.ceil(settings.epochs / plan.WARM_UP_EPOCHS) - 1
        for part in range(last + 1):
            spent = time.monotonic() - began
            left = this_round.seconds - spent
            if left < longest:
                break
            parted = replace(
                settings, epochs=plan.WARM_UP_EPOCHS, seconds=left, seed=100 * this_round.seed + part
            )
            trained = imitate(learner.model, rows, parted, this_round.progress).seconds
            if part == last or left - trained < trained or self._can_learn_from_play(this_round, learner):
                break
            longest = max(longest, time.monotonic() - began - spent)
        return time.monotonic() - began

    def _can_learn_from_play(self, this_round: TrainingRound, learner: PolicyLearner) -> bool:
        """Play some games, and check whether episodes are won often enough for GRPO.

        A part of the reward does not count, because it can come long before the first win.
        """
        games = self._sample_games(plan.WARM_UP_GAMES, this_round.seed)
        groups = self._play_groups(games, this_round, learner, plan.WARM_UP_EPISODES)
        episodes = [episode for group in groups for episode in group]
        won = fmean(episode.won for episode in episodes)
        reward = fmean(episode.reward for episode in episodes)
        print(f"sft: {won:.2f} of sampled episodes won, reward {reward:.2f}", flush=True)
        return won >= plan.WARM_UP_WINS

    def _play_groups(
        self, games: Sequence[Example], this_round: TrainingRound, learner: PolicyLearner, episodes: int
    ) -> list[list[GrpoRollout]]:
        """Play so many episodes of each game."""
        sampler = PolicySampler(learner.model, learner.tokenizer)
        source = rollouts.EpisodeRollouts(sampler, self.setup, games, episodes)
        try:
            with DataParallelWorkers(learner.model, {"sample": source.sample_rollouts}) as workers:
                shares = [range(start, len(games), workers.size) for start in range(workers.size)]
                jobs = [RolloutJob(share, share, this_round.seed) for share in shares]
                played = workers.map_jobs("sample", jobs)
        finally:
            source.close()
            sampler.close()
        return [group for groups in played for group in groups]

    def _collect_demonstrations(
        self, this_round: TrainingRound, learner: PolicyLearner
    ) -> list[TrainingSequence]:
        """Collect the expert games in the file, or play games in random order as long as there is time."""
        if not self.world.expert:
            form = (self.setup.prompt, self.shown, self.setup.sampling.plain)
            return encode_demonstrations(learner.model, learner.tokenizer, *form)
        end = time.monotonic() + DEMONSTRATION_SHARE * this_round.seconds
        games = self._sample_games(len(self.world.games), this_round.seed)
        rows: list[TrainingSequence] = []
        with suppress(StepsUsedUp):  # train on the games collected so far
            for sequences in encode_expert_games(
                learner.model, learner.tokenizer, self.setup, self.world.expert, games
            ):
                rows += sequences
                if time.monotonic() > end:
                    break
        return rows

    def grpo(
        self, this_round: TrainingRound, learner: PolicyLearner, on_step: Callable[[TrainingSchedule], None]
    ) -> float | None:
        probe, group_seconds = self._measure_play_speed(this_round, learner)
        rate = learner.choose_learning_rate("play")
        # A failed episode is several times as long as a won one, so `average_by_attempt` gives each the
        # same weight.
        # Several updates a step learn faster than one, and four of eight episodes teach as much as all of
        # them for half of the time (docs/design/training.md).
        settings = this_round.plan_grpo(
            this_round.seconds - probe,
            group_seconds,
            rate,
            plan.FEWEST_GAMES,
            plan.GAMES_PER_UPDATE,
            average_by_attempt=True,
            hold_share=plan.HOLD_SHARE,
            learned_attempts=ATTEMPTS_PER_PROMPT // 2,
        )
        if settings is None:
            return None
        model, tokenizer, games = learner.model, learner.tokenizer, self.world.games
        result = grpo_in_world(model, tokenizer, self.setup, games, settings, this_round.progress, on_step)
        return result.seconds + probe

    def _measure_play_speed(self, this_round: TrainingRound, learner: PolicyLearner) -> tuple[float, float]:
        """Return the seconds of this measurement, and of playing one game's episodes in GRPO."""
        began = time.monotonic()
        games = self._sample_games(plan.PROBE_GAMES, this_round.seed)
        self._play_groups(games, this_round, learner, ATTEMPTS_PER_PROMPT)
        spent = time.monotonic() - began
        return spent, spent / len(games)

    def _sample_games(self, count: int, seed: int) -> list[Example]:
        games = self.world.games
        return random.Random(seed).sample(games, min(count, len(games)))


def _load_evaluator(path: Path) -> Episodes:
    try:
        evaluator = runpy.run_path(str(path))["EVALUATOR"]
    except (OSError, KeyError) as error:
        raise UserError(f"Cannot load the EVALUATOR of {path.name}: {error!r}.") from error
    if not isinstance(evaluator, Episodes):
        raise UserError(f"The EVALUATOR of {path.name} plays no episodes.")
    return evaluator
