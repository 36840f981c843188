"""The command line of `eval.py` in the workspace: grade a model on training games as the grader does.

It runs in the agent's sandbox with the agent's data. It does not submit: a submission counts against the
budget and is graded on other games.
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
    arguments = _build_parser().parse_args()
    world = count_steps(open_world(arguments.data))
    games = world.games[arguments.skip : arguments.skip + arguments.games]
    if not games:
        raise SystemExit(f"No games selected: there are {len(world.games)} training games.")
    with find_engine(arguments.engine)(arguments.model) as engine:
        local_evaluator = replace(evaluator, world=world.environment)
        evaluation = local_evaluator.evaluate(
            engine, games, EvalSettings(seed=arguments.seed, samples=arguments.samples)
        )
    for name, results in _group_by_kind(evaluation.results).items():
        mean = sum(result.score for result in results) / len(results)
        print(f"{name:32} {100 * mean:6.2f}  of {len(results)}")
    if arguments.episodes:
        arguments.episodes.write_text(
            "".join(result.model_dump_json() + "\n" for result in evaluation.results)
        )
    means = {
        name: _mean_percent([result.metrics[name] for result in evaluation.results])
        for name in evaluation.results[0].metrics
    }
    print(json.dumps({"score": _mean_percent([result.score for result in evaluation.results]), **means}))


def _mean_percent(shares: Sequence[float]) -> float:
    return 100 * sum(shares) / len(shares)


def _group_by_kind(results: Sequence[ExampleResult]) -> dict[str, list[ExampleResult]]:
    kinds: dict[str, list[ExampleResult]] = defaultdict(list)
    for result in results:
        kinds[result.group].append(result)
    return {**dict(sorted(kinds.items())), "all": list(results)}


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Grade a model on training games, as the grader does.")
    parser.add_argument("model", type=Path, nargs="?", default=os.environ.get("MODEL_PATH"))
    parser.add_argument("--games", type=int, default=100, help="number of games (default: 100)")
    parser.add_argument("--skip", type=int, default=0, help="skip this many games first (default: 0)")
    parser.add_argument("--samples", type=int, default=1, help="episodes per game (default: 1, greedy)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--engine", default="transformers", help="a shipped engine, an entry point or package.module:NAME"
    )
    parser.add_argument("--data", type=Path, help="the data directory (default: $DATA_PATH)")
    parser.add_argument(
        "--episodes", type=Path, metavar="FILE", help="write every episode to this file as JSON lines"
    )
    return parser
