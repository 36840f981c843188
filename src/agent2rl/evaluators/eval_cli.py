"""The command line of a workspace's `eval.py`: grades a model on training games as the grader would.

Runs where the agent runs, on what the agent has. Not covered: submitting, which costs a submission and is
graded on other games.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import OpenEngine
from agent2rl.core.grading_records import EvalSettings, ExampleResult
from agent2rl.environments.adapters import count_steps, open_world
from agent2rl.evaluators.episodes import Episodes


def main(evaluator: Episodes, find_engine: Callable[[str], OpenEngine]) -> None:
    given = _build_parser().parse_args()
    world = count_steps(open_world(given.data))
    games = world.games[given.skip : given.skip + given.games]
    if not games:
        raise SystemExit(f"There are {len(world.games)} training games, and none of them is asked for.")
    with find_engine(given.engine)(given.model) as engine:
        here = replace(evaluator, world=world.environment)
        found = here.evaluate(engine, games, EvalSettings(seed=given.seed, samples=given.samples))
    for name, results in _group_by_kind(found.results).items():
        mean = sum(result.score for result in results) / len(results)
        print(f"{name:32} {100 * mean:6.2f}  of {len(results)}")
    if given.episodes:
        given.episodes.write_text("".join(one.model_dump_json() + "\n" for one in found.results))
    means = {
        name: _mean_percent([one.metrics[name] for one in found.results]) for name in found.results[0].metrics
    }
    print(json.dumps({"score": _mean_percent([one.score for one in found.results]), **means}))


def _mean_percent(shares: Sequence[float]) -> float:
    return 100 * sum(shares) / len(shares)


def _group_by_kind(results: Sequence[ExampleResult]) -> dict[str, list[ExampleResult]]:
    kinds: dict[str, list[ExampleResult]] = defaultdict(list)
    for result in results:
        kinds[result.group].append(result)
    return {**dict(sorted(kinds.items())), "all": list(results)}


def _build_parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description="Grade a model on training games, as the grader would.")
    arguments.add_argument("model", type=Path, nargs="?", default=os.environ.get("MODEL_PATH"))
    arguments.add_argument("--games", type=int, default=100, help="how many (100)")
    arguments.add_argument("--skip", type=int, default=0, help="games before the first (0)")
    arguments.add_argument("--samples", type=int, default=1, help="episodes of each game (1, greedily)")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument(
        "--engine", default="transformers", help="a shipped name, an entry point or package.module:NAME"
    )
    arguments.add_argument("--data", type=Path, help="the data directory ($DATA_PATH)")
    arguments.add_argument("--episodes", type=Path, metavar="FILE", help="write every episode, one a line")
    return arguments
