"""Draws the course of trainings in a world: what GRPO's episodes won, step by step, and what was graded.

python -m benchmarks.world_curve LOG.jsonl ... --output FILE.svg      # a LOG is world_lift's --log
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from agent2rl.analysis.statistics import wilson_interval

COLORS = ("#1f5fa8", "#b3541e", "#3b7d3b", "#7a4a9c")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--labels", nargs="+", help="of the logs; their names, unless said")
    parser.add_argument("--split", default="feedback")
    parser.add_argument("--games", type=int, default=140, help="that were graded, for the intervals")
    chosen = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "agent2rl"
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    labels = chosen.labels or [log.stem for log in chosen.logs]
    for log, label, color in zip(chosen.logs, labels, COLORS, strict=False):
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        draw_training(axes, lines, chosen, label, color)
    axes.set(xlabel="step of GRPO (0: before GRPO)", ylabel="games won, %", ylim=(0, 100))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", title="thin: sampled in training; bold: graded, greedy, 95%")
    figure.savefig(chosen.output, metadata={"Date": None})


def draw_training(
    axes: Any, lines: list[dict[str, Any]], chosen: argparse.Namespace, label: str, color: str
) -> None:
    steps = [line for line in lines if line.get("reward") is not None]
    graded = [line for line in lines if chosen.split in line]
    axes.plot(
        [line["step"] for line in steps],
        [100 * line["reward"] for line in steps],
        color=color,
        alpha=0.35,
        linewidth=1,
    )
    at = [line["step"] if line["stage"] == "grpo" else 0 for line in graded]
    values = [line[chosen.split] for line in graded]
    bounds = [wilson_interval(round(value * chosen.games / 100), chosen.games) for value in values]
    errors = [
        [value - bound.low for value, bound in zip(values, bounds, strict=True)],
        [bound.high - value for value, bound in zip(values, bounds, strict=True)],
    ]
    axes.errorbar(at, values, yerr=errors, color=color, marker="o", capsize=3, linewidth=2, label=label)


if __name__ == "__main__":
    main()
