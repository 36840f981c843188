"""From a campaign's file to its experiments. Equal specifications are the same experiment."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from agent2rl.campaign.campaign_file import CampaignSpec, CellFilter, Setting
from agent2rl.core.errors import UserError
from agent2rl.core.records import RunSpec
from agent2rl.store.files import canonical_json, sha256_text

Cell = Mapping[str, str | int]
"""A value on each axis."""
ParseArguments = Callable[[Sequence[str], bool], RunSpec]
"""What `agent2rl run` would make of these arguments, on a machine with or without GPUs."""
MACHINE_FIELDS = {"limits"}
"""Fields that say what of a machine a run may use; they depend on the machine, and are not the experiment."""


MOST_EXPERIMENTS = 10_000
"""Combinations of one campaign: each is read as a command line, and looked for whenever somebody looks."""


@dataclass(frozen=True)
class Experiment:
    id: str
    spec: RunSpec
    cell: Cell
    arguments: tuple[str, ...]
    """Of `agent2rl run`, with what else would depend on when and where it is called."""

    @property
    def command(self) -> str:
        return f"agent2rl run {shlex.join(self.arguments)}"


def compute_experiment_id(spec: RunSpec) -> str:
    """Equal for equal specifications, on whatever machine they were made."""
    return sha256_text(canonical_json(spec.model_dump(mode="json", exclude=MACHINE_FIELDS)))


def expand_experiments(campaign: CampaignSpec, parse: ParseArguments) -> tuple[Experiment, ...]:
    found: dict[str, Experiment] = {}
    for cell in expand_cells(campaign):
        arguments = make_run_arguments(campaign, cell)
        try:
            spec = parse(arguments, campaign.resources.gpus > 0)
        except UserError as error:
            raise UserError(f"{campaign.name}, {format_cell(cell)}: {error.message}", error.hint) from error
        new = Experiment(compute_experiment_id(spec), spec, cell, _pin_arguments(arguments, spec))
        if (old := found.setdefault(new.id, new)) is not new:
            raise UserError(
                f"{campaign.name}: {format_cell(old.cell)} and {format_cell(cell)} are the same experiment.",
                "Exclude one of them, or vary something that the run depends on.",
            )
    if not found:
        raise UserError(f"{campaign.name}: nothing is left to run.", "Its exclusions fit every combination.")
    return tuple(found.values())


def expand_cells(campaign: CampaignSpec) -> list[Cell]:
    """Every combination that is not left out; the last axis varies fastest."""
    axes = campaign.axes.model_dump(exclude_none=True)
    if (count := prod(map(len, axes.values()))) > MOST_EXPERIMENTS:
        raise UserError(
            f"{campaign.name}: {count:,} combinations are more than the {MOST_EXPERIMENTS:,} that a campaign can have.",
            "Make several campaigns of it.",
        )
    every = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return [cell for cell in every if not any(matches_cell(chosen, cell) for chosen in campaign.exclude)]


def matches_cell(chosen: CellFilter, cell: Cell) -> bool:
    return all(cell[axis] in values for axis, values in chosen.model_dump(exclude_none=True).items())


def make_run_arguments(campaign: CampaignSpec, cell: Cell) -> tuple[str, ...]:
    """A combination as arguments of `agent2rl run`."""
    settings = dict(campaign.settings)
    for override in campaign.override:
        if matches_cell(override.where, cell):
            settings |= override.set
    values: dict[str, Setting] = {axis: value for axis, value in cell.items() if value != ""}
    return tuple(part for name, value in (values | settings).items() for part in _format_option(name, value))


def format_cell(cell: Cell) -> str:
    return " ".join(f"{axis}={value}" for axis, value in cell.items())


def _pin_arguments(arguments: Sequence[str], spec: RunSpec) -> tuple[str, ...]:
    """With the engine that was chosen for it, and the commit that a hub model's name stands for now."""
    kept = [each for each in arguments if not each.startswith(("--engine=", "--model="))]
    return (*kept, f"--model={spec.model}", f"--engine={spec.engine}")


def _format_option(name: str, value: Setting) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}={one}" for one in (value if isinstance(value, tuple) else (value,))]
