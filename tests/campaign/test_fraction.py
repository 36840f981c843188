"""A part of a campaign: balanced, always the same, and within every larger part."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.campaign.campaign_file import Experiment, expand_experiments, parse_campaign
from agent2rl.campaign.plan import select_fraction
from agent2rl.core.records import Budget, RunSpec
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_campaigns import list_runs, write_campaign

PAPER = Path(__file__).resolve().parents[2] / "campaigns" / "paper.toml"
AXES = ("task", "agent", "mode", "seed")
MODES = ("free", "sft-only", "rl-oriented", "multi")
MOST_UNEVEN = 3
"""How much the counts of two agents, modes or seeds may differ where all combinations exist."""

sizes = st.fixed_dictionaries(
    {
        "task": st.integers(1, 6),
        "agent": st.integers(1, 4),
        "mode": st.integers(1, 4),
        "seed": st.integers(1, 4),
    }
)
fractions = st.floats(0, 1, exclude_min=True)


def parse_spec(arguments: Sequence[str], gpus: bool) -> RunSpec:
    values = dict(each.removeprefix("--").partition("=")[::2] for each in arguments)
    return RunSpec(
        task=values["task"],
        agent=values["agent"],
        mode=values["mode"],
        model="m",
        engine="e",
        seed=int(values["seed"]),
        budget=Budget(wall_seconds=1),
    )


def make_experiments(size: dict[str, int]) -> tuple[Experiment, ...]:
    axes = {
        "task": [f"t{at}" for at in range(size["task"])],
        "agent": [f"a{at}" for at in range(size["agent"])],
        "mode": list(MODES[: size["mode"]]),
        "seed": list(range(size["seed"])),
    }
    lines = [f"{axis} = {json.dumps(values)}" for axis, values in axes.items()]
    return expand_experiments(parse_campaign("\n".join(['name = "n"', "[axes]", *lines]), "n"), parse_spec)


def count_values(part: Sequence[Experiment], whole: Sequence[Experiment], axis: str) -> list[int]:
    """How often each value of an axis is in a part, also where that is never."""
    counts = Counter(each.cell[axis] for each in part)
    return [counts[value] for value in {each.cell[axis] for each in whole}]


@settings(max_examples=60, deadline=None)
@given(sizes, fractions)
def test_a_part_is_balanced_over_every_axis(size: dict[str, int], fraction: float) -> None:
    whole = make_experiments(size)
    part = select_fraction(whole, fraction)
    assert part
    assert abs(len(part) - fraction * len(whole)) < 1.001
    tasks = count_values(part, whole, "task")
    assert max(tasks) - min(tasks) <= 1, "the tasks take turns"
    for axis in AXES:
        counts = count_values(part, whole, axis)
        assert max(counts) - min(counts) <= MOST_UNEVEN, axis


@settings(max_examples=60, deadline=None)
@given(sizes, fractions, fractions)
def test_a_larger_part_contains_a_smaller_one(size: dict[str, int], first: float, second: float) -> None:
    whole = make_experiments(size)
    smaller, larger = ({each.id for each in select_fraction(whole, each)} for each in sorted((first, second)))
    assert smaller <= larger


@settings(max_examples=30, deadline=None)
@given(sizes, fractions)
def test_a_part_is_always_the_same_and_in_the_order_of_the_campaign(
    size: dict[str, int], fraction: float
) -> None:
    whole = make_experiments(size)
    part = select_fraction(whole, fraction)
    assert part == select_fraction(make_experiments(size), fraction)
    assert list(part) == [each for each in whole if each in part]
    assert select_fraction(whole, 1) == whole


def plan_paper(launcher: RunLauncher, *options: str) -> dict[str, Any]:
    done = launcher.cli("campaign", "plan", str(PAPER), "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_tenth_of_the_papers_matrix_has_every_task_agent_driver_mode_and_seed(
    launcher: RunLauncher,
) -> None:
    tenth, fifth = (plan_paper(launcher, "--fraction", each) for each in ("0.1", "0.2"))
    assert (len(tenth["runs"]), tenth["fraction"], tenth["whole"]) == (42, 0.1, 414)
    whole = plan_paper(launcher)
    for axis in ("task", "agent", "driver", "mode", "seed"):
        present = {run["cell"][axis] for run in tenth["runs"]}
        assert present == {run["cell"][axis] for run in whole["runs"]}
    assert set(Counter(run["cell"]["task"] for run in tenth["runs"]).values()) == {7}
    ids = [{run["experiment"] for run in plan["runs"]} for plan in (tenth, fifth)]
    assert ids[0] < ids[1]


@pytest.mark.parametrize("fraction", ["0", "-0.5", "1.5", "nan", "inf", "half", ""])
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_fraction_out_of_range_is_refused_and_leaves_nothing(
    launcher: RunLauncher, command: str, fraction: str
) -> None:
    file = write_campaign(launcher, ["nop"])
    done = launcher.cli("campaign", command, file, "--fraction", fraction)
    assert done.returncode == 2
    assert "is not a fraction. Write a number above 0 and up to 1" in done.stderr
    assert not launcher.runs.exists()


@pytest.mark.thorough
def test_a_part_runs_alone_and_the_whole_goes_on_from_it(launcher: RunLauncher) -> None:
    file = write_campaign(launcher, ["nop"], seeds=2)
    done = launcher.cli("campaign", "run", file, "--fraction", "0.5")
    assert done.returncode == 0, done.stderr
    assert "to run (←): 1 (a fraction of 0.5: 1 of 2 experiments), no GPU, $0.00" in done.stderr
    first = {paths.run_id for paths in list_runs(launcher)}
    assert len(first) == 1
    done = launcher.cli("campaign", "run", file)
    assert done.returncode == 0, done.stderr
    assert len(list_runs(launcher)) == 2
    assert first <= {paths.run_id for paths in list_runs(launcher)}
