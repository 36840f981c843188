"""What training makes of a model in a world: SFT on the expert's games, then GRPO on its own; several seeds.

    python -m benchmarks.world_lift                                 # the seedling on alfworld-mini, 3 seeds
    python -m benchmarks.world_lift --task webshop-mini             # any task with a world and an expert
    python -m benchmarks.world_lift --expert 96                     # SFT on the demonstrations of such a run
    python -m benchmarks.world_lift --sft-epochs 0 --random-games 300    # GRPO alone, after random commands
    python -m benchmarks.world_lift --task alfworld --train DATA/train --test DATA/valid_seen \\
        --model DIR --seeds 0 --sft-games 2000 --sft-rate 2e-4 --sft-batch 16    # official games
    python -m benchmarks.world_lift --seeds 0 --sft-games 400 --grpo-steps 15    # for two CPU cores
    python -m benchmarks.world_lift --grade-every 8 --log FILE      # the course of GRPO, and of every step
    python -m benchmarks.world_lift --expert 96 --warm-up 90 --recipe-grpo --grpo-seconds 390    # the recipe

Prints a JSON line after each stage with the success on both splits, in percent, as the grader has it: the
model is saved, opened by the engine and plays greedily. What else the world measures goes to stderr. GRPO is
compared with the model that it started from, game by game: the gain with a 95% interval of a paired
bootstrap, and the p-value of McNemar's test, or of a permutation test if rewards are no wins. Then a table:
means over seeds, lowest and highest in brackets. The first stage is the untouched model, which is graded
once. `--random-games` teaches the form of commands and nothing else: SFT on commands that are chosen at
random among those that are possible, in games that this does not win. `--warm-up` and `--recipe-grpo` train
as the shipped recipe does, with the settings that it chooses. `--end-seconds` shortens GRPO so that the
program ends in time.
"""

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import JsonValue
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl import registry
from agent2rl.agents.recipe.subjects import PolicyLearner, TrainingRound, WorldSubject
from agent2rl.analysis.gain import mcnemar, sign_permutation
from agent2rl.analysis.statistics import compare_evaluations
from agent2rl.core import task as evaluator_folders
from agent2rl.core.environment import World
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.task import Example, Task
from agent2rl.environments.alfworld import AlfworldEnvironment, make_game_finder
from agent2rl.environments.alfworld.environment import STEPS
from agent2rl.environments.alfworld.expert import AlfworldExpert
from agent2rl.evaluators.episodes import Episodes
from agent2rl.run.expert_help import record_demonstrations
from agent2rl.run.task_data import open_training_world
from agent2rl.tasks import alfworld
from agent2rl.training import models
from agent2rl.training.conversations import encode_demonstrations
from agent2rl.training.demonstrations import Demonstration, DemonstrationTurn
from agent2rl.training.grpo import GrpoSettings
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.policy import TrainingSequence
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.rollouts import WorldSetup, encode_expert_games, grpo_in_world
from agent2rl.training.sft import SftSettings, imitate

SHIPPED = Path(__file__).parents[1] / "src/agent2rl/models/seedling/files"
SPLITS = ("feedback", "heldout")
Scores = dict[str, float]
Evaluations = dict[str, EvalResult]
STARTED = time.monotonic()
GRADING_MARGIN = 1.25
"""Time that is left for grading after GRPO, as a multiple of what the last one took."""


class Subject:
    """A task as its trainer sees it."""

    def __init__(
        self,
        task: Task,
        world: World,
        tests: Mapping[str, Sequence[Example]],
        reply: int | None,
        most_turns: int | None,
        filed: Sequence[Demonstration] = (),
    ) -> None:
        evaluator = task.evaluator
        assert isinstance(evaluator, Episodes)
        if reply is not None:
            evaluator = replace(evaluator, sampling=replace(evaluator.sampling, max_tokens=reply))
        assert world.expert is not None
        self._evaluator, self._tests, self._expert = evaluator, tests, world.expert
        self._filed = filed
        self._world = world
        self.games = world.games
        self.setup = WorldSetup(
            world.environment,
            evaluator.prompt,
            evaluator.action,
            evaluator.sampling,
            evaluator.get_kind,
            most_turns,
        )

    def shown(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int
    ) -> tuple[int, list[TrainingSequence]]:
        """Return the number of the expert's games, and their training sequences."""
        if self._filed:
            rows = encode_demonstrations(model, tokenizer, self.setup.prompt, self._filed)
            return len(self._filed), rows
        played = list(encode_expert_games(model, tokenizer, self.setup, self._expert, self.games[:count]))
        return len(played), [row for sequences in played for row in sequences]

    def as_recipe(self) -> WorldSubject:
        """Return the world as the recipe has it: with the expert or with files of its games, not both."""
        world = replace(self._world, expert=None) if self._filed else self._world
        return WorldSubject(world, self.setup, self._filed)

    def play_at_random(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int
    ) -> tuple[int, list[TrainingSequence]]:
        """Return the number of games of random commands, and their training sequences."""
        environment = self._world.environment()
        dice = random.Random(0)
        games = [
            _play_random_game(environment, game, self.setup.kind(game), dice)
            for game in islice(cycle(self.games), count)
        ]
        lost = [game for game in games if not game.won]
        return len(lost), encode_demonstrations(model, tokenizer, self.setup.prompt, lost)

    def score(self, directory: Path) -> Evaluations:
        found: Evaluations = {}
        with registry.find_engine("transformers")(directory) as engine:
            for split, games in self._tests.items():
                found[split] = self._evaluator.evaluate(engine, games, EvalSettings())
                results = found[split].results
                for name in results[0].metrics:
                    mean = fmean(result.metrics[name] for result in results)
                    print(f"{split} {name} {100 * mean:.1f}", file=sys.stderr)
        return found


def _play_random_game(environment: Any, game: Example, kind: str, dice: random.Random) -> Demonstration:
    """Choose what to do at random, then with what, so that not nearly all commands go somewhere."""
    step = environment.reset(game)
    turns = []
    while not step.done:
        commands = environment.commands()
        verb = dice.choice(sorted({command.split()[0] for command in commands}))
        action = dice.choice([command for command in commands if command.split()[0] == verb])
        turns.append(DemonstrationTurn(observation=step.observation, action=action))
        step = environment.step(action)
    return Demonstration(game=game.id, kind=kind, won=step.won, turns=tuple(turns))


def summarize(evaluations: Evaluations) -> Scores:
    return {
        split: round(100 * fmean(result.score for result in evaluation.results), 2)
        for split, evaluation in evaluations.items()
    }


def compare(before: Evaluations, after: Evaluations) -> dict[str, dict[str, object]]:
    """Compare two models game by game, on each split; also by mean reward, where that is not the score."""
    found: dict[str, dict[str, object]] = {}
    for split in after:
        found[split] = _compare_scores(before[split], after[split])
        if "reward" in after[split].results[0].metrics:
            found[f"{split} reward"] = _compare_scores(*map(_take_rewards, (before[split], after[split])))
    return found


def _compare_scores(before: EvalResult, after: EvalResult) -> dict[str, object]:
    gain = compare_evaluations(before, after)
    was = {result.id: result.score for result in before.results}
    changes = [result.score - was[result.id] for result in after.results]
    whole = all(change in (-1, 0, 1) for change in changes)
    p = mcnemar(changes.count(1), changes.count(-1)) if whole else sign_permutation(changes)
    interval = [round(gain.ci.low, 2), round(gain.ci.high, 2)]
    start = 100 * fmean(was.values())
    return {
        "from": round(start, 2),
        "gain": round(gain.improvement, 2),
        "interval": interval,
        "p": float(f"{p:.2g}"),
    }


def _take_rewards(evaluation: EvalResult) -> EvalResult:
    results = (result.model_copy(update={"score": result.metrics["reward"]}) for result in evaluation.results)
    return EvalResult(results=tuple(results))


@contextmanager
def subject(chosen: argparse.Namespace) -> Iterator[Subject]:
    if chosen.train:
        names = ["/".join(path.parts[-3:-1]) for path in sorted(chosen.train.glob("*/*/game.tw-pddl"))]
        random.Random(0).shuffle(names)
        find = make_game_finder(chosen.train)
        meta: dict[str, JsonValue] = {"steps": chosen.train_turns}
        games = tuple(Example(name, "", "", meta) for name in names)
        world = World(games, lambda: AlfworldEnvironment(find), AlfworldExpert)
        tests = {"feedback": alfworld.load_scoring_examples(chosen.test)[: chosen.test_games]}
        yield Subject(
            registry.find_task(chosen.task), world, tests, chosen.reply_tokens, chosen.rollout_turns
        )
        return
    with open_training_world(chosen.task, None) as (task, world), tempfile.TemporaryDirectory() as place:
        splits = task.load(None)
        for name, write in splits.evaluator_folders.items():
            (Path(place) / name).mkdir()
            assert callable(write)
            write(Path(place) / name)
        os.environ[evaluator_folders.FOLDER_VARIABLE] = place
        tests = {name: getattr(splits, name)[: chosen.test_games] for name in SPLITS}
        filed = record_demonstrations(task, splits, chosen.expert) if chosen.expert else ()
        yield Subject(task, world, tests, chosen.reply_tokens, chosen.rollout_turns, filed)


def stages(subject: Subject, chosen: argparse.Namespace, seed: int) -> Iterator[tuple[str, Evaluations]]:
    """Train with one seed; each stage with its scores."""
    model, tokenizer = models.load(chosen.model)
    began = time.monotonic()
    last: Evaluations | None = None
    grading_seconds = 0.0

    def graded(stage: str, against: Evaluations | None = None, **more: object) -> tuple[str, Evaluations]:
        nonlocal began, grading_seconds
        now = time.monotonic()
        trained = round(now - began)
        with tempfile.TemporaryDirectory() as place:
            directory = chosen.save / f"{seed}-{stage}" if chosen.save else Path(place) / "model"
            shutil.rmtree(directory, ignore_errors=True)
            models.save(model, tokenizer, directory)
            evaluations = subject.score(directory)
        told = {"seed": seed, "stage": stage, **summarize(evaluations), "seconds": trained, **more}
        if against is not None:
            told["paired"] = compare(against, evaluations)
        print(json.dumps(told), flush=True)
        if chosen.log:
            with chosen.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(told) + "\n")
        grading_seconds = time.monotonic() - now
        began += grading_seconds  # grading is not training
        return stage, evaluations

    def limit_grpo() -> float:
        """Return how long GRPO may take, if grading takes as long as before."""
        expected = GRADING_MARGIN * max(grading_seconds, chosen.grading_seconds)
        left = chosen.end_seconds - (time.monotonic() - STARTED) - expected
        return float(min(chosen.grpo_seconds, left))

    if chosen.random_games:
        games, rows = subject.play_at_random(model, tokenizer, chosen.random_games)
        form = SftSettings(
            chosen.sft_rate, chosen.random_epochs, chosen.sft_batch, chosen.random_seconds, seed=seed
        )
        result = imitate(model, rows, form, TrainingProgress("random commands", chosen.log))
        if not chosen.only_last:
            stage, last = graded("form", games=games, steps=result.steps, loss=round(result.loss, 3))
            yield stage, last
    log = chosen.log or Path(os.devnull)
    if chosen.warm_up:
        warm_up = TrainingRound(
            1, "sft", chosen.model, chosen.model, chosen.warm_up, 1.0, 1000 * seed + 1, log, is_warm_up=True
        )
        subject.as_recipe().sft(warm_up, PolicyLearner(model, tokenizer))
        stage, last = graded("sft")
        yield stage, last
    elif chosen.sft_epochs:
        games, rows = subject.shown(model, tokenizer, chosen.sft_games)
        supervised = SftSettings(chosen.sft_rate, chosen.sft_epochs, chosen.sft_batch, seed=seed)
        result = imitate(model, rows, supervised, TrainingProgress("sft", chosen.log))
        stage, last = graded("sft", games=games, steps=result.steps, loss=round(result.loss, 3))
        yield stage, last
    if chosen.recipe_grpo:
        course: TrainingSchedule | None = None

        def follow(schedule: TrainingSchedule) -> None:
            nonlocal course
            course = schedule

        play = TrainingRound(2, "grpo", chosen.model, chosen.model, limit_grpo(), 1.0, 1000 * seed + 2, log)
        subject.as_recipe().grpo(play, PolicyLearner(model, tokenizer), follow)
        yield graded("grpo", last, step=course.steps if course else 0)
    elif chosen.grpo_steps:
        online = GrpoSettings(
            chosen.grpo_rate,
            chosen.grpo_steps,
            limit_grpo(),
            prompts=chosen.grpo_games,
            group=chosen.grpo_group,
            updates=chosen.grpo_updates,
            resample=chosen.resample,
            learned_attempts=chosen.learn_from,
            temperature=chosen.temperature,
            clip_high=chosen.clip_high,
            kl=chosen.kl,
            average_by_attempt=chosen.level,
            hold_share=chosen.hold,
            seed=seed,
        )

        def record_level(course: TrainingSchedule) -> None:
            if chosen.grade_every and course.steps % chosen.grade_every == 0:
                graded("grpo", last, step=course.steps)

        progress = TrainingProgress("grpo", chosen.log, every_seconds=0.0)
        rewards = grpo_in_world(
            model, tokenizer, subject.setup, subject.games, online, progress, record_level
        ).rewards
        tens = [rewards[start : start + 10] for start in range(0, len(rewards), 10)]
        yield graded("grpo", last, step=len(rewards), rewards=[round(fmean(ten), 2) for ten in tens])


def table(found: dict[str, list[Scores]]) -> Iterator[str]:
    yield "| stage | feedback | held-out |"
    yield "|---|--:|--:|"
    for stage, scores in found.items():
        cells = []
        for split in scores[0]:
            values = [one[split] for one in scores]
            around = f" ({min(values)}, {max(values)})" if len(values) > 1 else ""
            cells.append(f"{fmean(values):.1f}{around}")
        yield f"| {stage} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="alfworld-mini")
    parser.add_argument("--train", type=Path, help="official games to train on, in place of the task's own")
    parser.add_argument("--test", type=Path, help="official games to be graded on")
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--test-games", type=int, help="of each split; all, unless said")
    parser.add_argument("--train-turns", type=int, default=STEPS, help="of an official game in training")
    parser.add_argument("--rollout-turns", type=int, help="of an episode in GRPO at most")
    parser.add_argument("--reply-tokens", type=int, help="of a turn at most; as the task has it, unless said")
    parser.add_argument("--no-base", action="store_true", help="do not grade the untouched model")
    parser.add_argument("--grade-every", type=int, default=0, help="steps of GRPO; 0: at its end")
    parser.add_argument("--log", type=Path, help="a file for each step and each grading, as JSON lines")
    parser.add_argument("--expert", type=int, help="demonstrations of a run with so many; else --sft-games")
    parser.add_argument("--random-games", type=int, default=0, help="of random commands, before SFT")
    parser.add_argument("--random-epochs", type=int, default=1)
    parser.add_argument("--random-seconds", type=float, default=math.inf, help="ends this SFT early")
    parser.add_argument("--only-last", action="store_true", help="do not grade after random commands")
    parser.add_argument("--warm-up", type=float, help="seconds of SFT as in the recipe; no --sft-* applies")
    parser.add_argument("--sft-games", type=int, default=1000, help="that the full expert plays")
    parser.add_argument("--sft-epochs", type=int, default=2)
    parser.add_argument("--sft-rate", type=float, default=1e-3)
    parser.add_argument("--sft-batch", type=int, default=8)
    parser.add_argument("--grpo-steps", type=int, default=100)
    parser.add_argument("--grpo-seconds", type=float, default=math.inf, help="ends GRPO early")
    parser.add_argument("--grpo-rate", type=float, default=1e-4)
    parser.add_argument("--recipe-grpo", action="store_true", help="GRPO with the recipe's settings")
    parser.add_argument("--end-seconds", type=float, default=math.inf, help="of the whole program")
    parser.add_argument(
        "--grading-seconds", type=float, default=0.0, help="of a grading, if none comes first"
    )
    parser.add_argument("--grpo-games", type=int, default=32, help="in a step")
    parser.add_argument("--grpo-group", type=int, default=8, help="episodes of each")
    parser.add_argument(
        "--level", action="store_true", help="let all episodes weigh the same, not all tokens"
    )
    parser.add_argument("--grpo-updates", type=int, default=1, help="per step")
    parser.add_argument("--resample", type=int, default=0, help="times, where a group is all won or all lost")
    parser.add_argument("--learn-from", type=int, help="episodes of each group; all, unless said")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--hold", type=float, default=0.0, help="share of GRPO with the full rate")
    parser.add_argument("--kl", type=float, default=0.0)
    parser.add_argument("--clip-high", type=float, default=0.28)
    parser.add_argument("--save", type=Path, help="a folder in which the models after each stage are kept")
    chosen = parser.parse_args()
    with subject(chosen) as trained:
        found: dict[str, list[Scores]] = {}
        if not chosen.no_base:
            found = {"base": [summarize(trained.score(chosen.model))]}
            print(json.dumps({"stage": "base", **found["base"][0]}), flush=True)
        for seed in chosen.seeds:
            for stage, evaluations in stages(trained, chosen, seed):
                found.setdefault(stage, []).append(summarize(evaluations))
        print("\n".join(table(found)))


if __name__ == "__main__":
    main()
