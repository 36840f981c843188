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
from agent2rl.agents.recipe.rounds import GROUP, Learner, Round
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.faces import StepsUsedUp, counted, open_world
from agent2rl.evaluators.episodes import Episodes
from agent2rl.training import rollouts
from agent2rl.training.arena import Arena
from agent2rl.training.crew import members
from agent2rl.training.demonstrations import demonstrations
from agent2rl.training.descent import Course
from agent2rl.training.rollouts import grpo_in_world
from agent2rl.training.sampling import Sampler
from agent2rl.training.sft import SftSettings, imitate
from agent2rl.training.speech import Spoken

SHOWING = 1 / 4
"""The share of an SFT round in which the expert may play."""


@dataclass(frozen=True)
class Games:
    world: World
    arena: Arena

    @classmethod
    def read(cls, workspace: Path, data: Path) -> "Games":
        world, evaluator = counted(open_world(data)), _evaluator(workspace / "eval.py")
        told = (evaluator.telling, evaluator.action, evaluator.sampling, evaluator.kind)
        return cls(world, Arena(world.environment, *told))

    def stages(self, wanted: Sequence[str]) -> list[str]:
        """All of them, if there is an expert."""
        possible = [stage for stage in wanted if stage != "sft" or self.world.expert]
        if not possible:
            raise UserError("Nobody shows how to play, so SFT has nothing to learn from.", "Try recipe:grpo.")
        if len(possible) < len(wanted):
            print("nobody shows how to play: SFT has nothing to learn from, and is left out", flush=True)
        return possible

    def sft(self, now: Round, learner: Learner) -> float | None:
        began = time.monotonic()
        rows = self._shown(now, learner)
        spent = time.monotonic() - began
        print(f"sft: {len(rows)} rows of the expert's games, in {spent:.0f} s", flush=True)
        if not rows:
            raise UserError("The expert won none of the games that there was time for.")
        rate = now.factor * learner.rate("imitation")
        seconds = now.seconds - spent
        settings = SftSettings(rate, plan.epochs(len(rows)), plan.SHOWN, seconds, seed=now.seed)
        return spent + imitate(learner.model, rows, settings, now.progress).seconds

    def _shown(self, now: Round, learner: Learner) -> list[Spoken]:
        """Games in random order, as many as there is time for."""
        assert self.world.expert is not None
        end = time.monotonic() + SHOWING * now.seconds
        games = self._some(len(self.world.games), now.seed)
        rows: list[Spoken] = []
        with suppress(StepsUsedUp):  # what was shown before is there to learn from
            for found in demonstrations(
                learner.model, learner.tokenizer, self.arena, self.world.expert, games
            ):
                rows += found
                if time.monotonic() > end:
                    break
        return rows

    def grpo(self, now: Round, learner: Learner, look: Callable[[Course], None]) -> float | None:
        probe, each = self._speed(now, learner)
        # An episode that fails is several times as long as one that wins: each is to weigh the same. And few
        # steps are taken at the usual rate: three did 14 points of good (docs/design/training.md).
        shape = now.online(now.seconds - probe, each, learner.rate("play"), level=True)
        if shape is None:
            return None
        model, tokenizer, games = learner.model, learner.tokenizer, self.world.games
        result = grpo_in_world(model, tokenizer, self.arena, games, shape, now.progress, look)
        return result.seconds + probe

    def _speed(self, now: Round, learner: Learner) -> tuple[float, float]:
        """Seconds that finding out took, and that playing one game's episodes takes in GRPO."""
        began = time.monotonic()
        sampler = Sampler(learner.model, learner.tokenizer)
        practice = rollouts.Games(sampler, self.arena, self.world.games, GROUP)
        games = self._some(plan.PROBED, now.seed)
        try:
            practice.play(games, now.seed)
        finally:
            practice.close()
            sampler.close()
        spent = time.monotonic() - began
        return spent, spent / len(games) / members(learner.model)

    def _some(self, count: int, seed: int) -> list[Example]:
        games = self.world.games
        return random.Random(seed).sample(games, min(count, len(games)))


def _evaluator(path: Path) -> Episodes:
    try:
        found = runpy.run_path(str(path))["EVALUATOR"]
    except (OSError, KeyError) as error:
        raise UserError(f"{path.name} does not say how the world is put to a model: {error!r}.") from error
    if not isinstance(found, Episodes):
        raise UserError(f"The EVALUATOR of {path.name} plays no episodes.")
    return found
