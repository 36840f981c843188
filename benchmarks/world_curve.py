"""Draws the course of a training in a world: what GRPO's episodes won, step by step, and what was graded.

python -m benchmarks.world_curve LOG.jsonl --output FILE.svg      # LOG is world_lift's --log
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from agent2rl.analysis.statistics import wilson_interval


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--games", type=int, default=140, help="that were graded, for the intervals")
    chosen = parser.parse_args()
    lines = [json.loads(line) for line in chosen.log.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line.get("reward") is not None]
    graded = [line for line in lines if "feedback" in line]
    mpl.rcParams["svg.hashsalt"] = "agent2rl"
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    axes.plot(
        [line["step"] for line in steps],
        [100 * line["reward"] for line in steps],
        color="#9aa7b4",
        marker=".",
        label="episodes of the step, sampled (training games)",
    )
    at = [0 if line["stage"] == "sft" else line["step"] for line in graded]
    values = [line["feedback"] for line in graded]
    bounds = [wilson_interval(round(value * chosen.games / 100), chosen.games) for value in values]
    errors = [
        [value - bound.low for value, bound in zip(values, bounds, strict=True)],
        [bound.high - value for value, bound in zip(values, bounds, strict=True)],
    ]
    axes.errorbar(
        at, values, yerr=errors, color="#1f5fa8", marker="o", capsize=3, label="graded, greedy, 95%"
    )
    axes.set(xlabel="step of GRPO (0: after SFT)", ylabel="games won, %", ylim=(0, 100))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(chosen.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
