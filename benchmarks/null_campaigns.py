"""Campaigns in which nothing improves: how often is it said that something did? By our rule and the paper's.

    python -m benchmarks.null_campaigns [--campaigns 1000] [--only rules|sizes|graded|tables]

Prints the tables of docs/design/statistics.md. About half an hour on one core.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from agent2rl.analysis import statistics
from agent2rl.analysis.campaigns.comparisons import build_heatmap, compare_groups
from agent2rl.analysis.campaigns.run_digest import group_by
from agent2rl.core.grading_records import EvalResult, ExampleResult
from benchmarks.null_campaign_simulation import (
    NullScenario,
    compute_false_real_rate,
    simulate_campaign,
    simulate_claims,
)

USUAL = NullScenario(feedback=150, heldout=150, accuracy=0.3, churn=0.3, submissions=8)
"""As large as the miniatures' splits; of what was right, training spoils a third, and finds as much anew."""
RUNS = 24
"""Of a campaign: 6 tasks, 4 seeds."""
TABLES = ((3, 2, 5), (3, 2, 10))
"""Tasks, modes and seeds of whole campaigns."""

RULES = (
    "submissions",
    "ours",
    "best of test, interval",
    "best of test",
    "ours, any run",
    "the same after Holm",
    "best of test, any run",
    "gain, ours",
    "gain, best of test",
)


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def row(*values: object) -> None:
    print("| " + " | ".join(str(value) for value in values) + " |", flush=True)


def rules(campaigns: int) -> None:
    """By the number of submissions: per run, and per campaign whether any run is said to have improved."""
    for submissions in (1, 2, 4, 8, 16, 32, 64):
        null = replace(USUAL, submissions=submissions)
        said = simulate_claims(null, campaigns * RUNS, np.random.default_rng(submissions))
        each = (said.improved, said.best_of_test_interval, said.best_of_test)
        families = [percent(found.reshape(campaigns, RUNS).any(axis=1).mean()) for found in each]
        least = np.where(said.improved, said.p_value, 1.0).reshape(campaigns, RUNS).min(axis=1)
        row(
            submissions,
            *(percent(found.mean()) for found in each),
            families[0],
            percent((RUNS * least <= 0.05).mean()),
            families[2],
            f"{said.heldout_gain.mean():+.2f}",
            f"{said.test_gain.mean():+.2f}",
        )


def sizes(campaigns: int) -> None:
    """Where splits are small, and scores near 0 or 100."""
    for examples in (20, 41, 75, 150):
        for accuracy in (0.01, 0.1, 0.5, 0.9, 0.99):
            null = replace(USUAL, feedback=examples, heldout=examples, accuracy=accuracy)
            said = simulate_claims(null, campaigns * RUNS, np.random.default_rng(examples))
            each = (said.improved, said.best_of_test)
            alone = percent(compute_false_real_rate(null)) if examples < 100 else "-"
            row(examples, percent(accuracy), *(percent(found.mean()) for found in each), alone)


def even(random: Generator, n: int) -> NDArray[np.float64]:
    return random.beta(2, 3, size=n) - random.beta(2, 3, size=n)


def rare_wins(random: Generator, n: int) -> NDArray[np.float64]:
    return np.where(random.random(n) < 0.1, 0.9, -0.1)


def rare_losses(random: Generator, n: int) -> NDArray[np.float64]:
    return -rare_wins(random, n)


GRADED: dict[str, Callable[[Generator, int], NDArray[np.float64]]] = {
    "as often up as down": even,
    "a tenth of the examples up by 0.9, the others down by 0.1": rare_wins,
    "a tenth of the examples down by 0.9, the others up by 0.1": rare_losses,
}


def graded(runs: int) -> None:
    """Scores between 0 and 1: how often the interval of one submission is above 0."""
    for name, draw in GRADED.items():
        for examples in (20, 50, 150):
            random = np.random.default_rng(examples)
            hits = sum(_above(draw(random, examples)) for _ in range(runs))
            row(name, examples, percent(hits / runs))


def _above(differences: NDArray[np.float64]) -> bool:
    before, after = np.maximum(0.0, -differences), np.maximum(0.0, differences)
    return (
        statistics.compare_evaluations(_evaluation(before.tolist()), _evaluation(after.tolist())).ci.low > 0
    )


def _evaluation(scores: Sequence[float]) -> EvalResult:
    results = (ExampleResult(id=str(place), output="", score=score) for place, score in enumerate(scores))
    return EvalResult(results=tuple(results))


def tables(campaigns: int, first: int) -> None:
    """Whole campaigns: stars of a mode × task table, and comparisons of two modes."""
    for tasks, modes, seeds in TABLES:
        stars = cells = families = plain = differ = 0
        for number in range(first, first + campaigns):
            runs = simulate_campaign(USUAL, tasks, modes, seeds, number)
            found = build_heatmap(runs, "mode").cells
            stars += sum(each.star for each in found)
            plain += sum(each.cell.mean is not None and each.cell.mean.excludes_zero for each in found)
            cells += len(found)
            families += any(each.star for each in found)
            modes_of = group_by(runs, ("mode",))
            differ += (compare_groups(modes_of[("free",)], modes_of[("sft-only",)]).p_value or 1.0) <= 0.05
        shares = (plain / cells, stars / cells, families / campaigns, differ / campaigns)
        row(f"{tasks} tasks, {modes} modes, {seeds} seeds", *(percent(share) for share in shares))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="Number of the first table: others are fresh.")
    parser.add_argument("--only", choices=("rules", "sizes", "graded", "tables"))
    chosen = parser.parse_args()
    campaigns, only = chosen.campaigns, chosen.only
    if only in (None, "rules"):
        print(f"\nBy the number of submissions: {USUAL}, {campaigns} campaigns of {RUNS} runs")
        row(*RULES)
        rules(campaigns)
    if only in (None, "sizes"):
        print(
            f"\nBy the size of the splits and the score: 8 submissions, {campaigns} campaigns of {RUNS} runs"
        )
        row(
            "examples",
            "score",
            "ours",
            "best of test",
            "one submission really better",
        )
        sizes(campaigns)
    if only in (None, "graded"):
        print(f"\nGraded scores, {campaigns} runs each")
        row("differences", "examples", "interval above 0")
        graded(campaigns)
    if only in (None, "tables"):
        print(f"\nWhole campaigns, {campaigns} each")
        row("campaign", "interval excludes 0", "starred", "any starred", "two modes differ")
        tables(campaigns, chosen.first)


if __name__ == "__main__":
    main()
