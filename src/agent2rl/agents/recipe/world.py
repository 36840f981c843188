"""Learning from games: first the expert's, where the run shows one, then the model's own.

The world is the run's (`data/world.json`), and `eval.py` says how it is put to the model: by the `EVALUATOR`
that grades. Rewards are the world's.
"""

import random
import runpy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl.agents.recipe import plan
from agent2rl.agents.recipe.rounds import ATTEMPTS_PER_PROMPT, PolicyLearner, TrainingRound
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters import StepsUsedUp, count_steps, open_world
from agent2rl.evaluators.episodes import Episodes
from agent2rl.training import rollouts
from agent2rl.training.arena import Arena
from agent2rl.training.data_parallel import count_workers
from agent2rl.training.demonstrations import demonstrations
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.rollouts import grpo_in_world
from agent2rl.training.sampling import PolicySampler
from agent2rl.training.sequences import TrainingSequence
from agent2rl.training.sft import SftSettings, imitate

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
