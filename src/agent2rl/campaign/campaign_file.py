"""A campaign file (TOML, strictly checked) and the experiments that it expands to. Equal specifications are
the same experiment.

name = "smoke"
about = "…"

[axes]                       # every combination is an experiment
task = ["gsm8k-mini", "webshop-mini"]
agent = ["recipe"]
seed = [0, 1]

[settings]                   # any option of `agent2rl run`, by its long name
budget = "4m"

[resources]                  # of one run
cpus = 1
memory = "4G"
gpus = 0

[[exclude]]                  # combinations that are left out
task = "webshop-mini"
seed = 1

[[override]]                 # other settings for some
where = { task = "webshop-mini" }
set = { budget = "8m" }
"""

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.record import Record
from agent2rl.core.records import RunSpec
from agent2rl.core.units import parse_byte_size
from agent2rl.record.files import canonical_json, sha256_text


def _wrap_in_tuple(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _require_distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("a value stands there twice")
    return values


def _validate_memory(text: str) -> str:
    parse_byte_size(text)
    return text


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=60)]
Setting = bool | int | float | str | tuple[int | float | str, ...]
Texts = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_require_distinct)]
Seeds = Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(min_length=1)]
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(_wrap_in_tuple)]


class CampaignAxes(Record):
    """What is varied. An axis that is not named has the value that `agent2rl run` has without the option."""

    task: Texts
    agent: Texts
    driver: Texts | None = None
    """An empty text: none."""
    model: Texts | None = None
    mode: Texts | None = None
    seed: Annotated[Seeds, AfterValidator(_require_distinct)] | None = None


class CellFilter(Record):
    """Some combinations: those with one of these values on each axis that is named."""

    task: OneOrMore | None = None
    agent: OneOrMore | None = None
    driver: OneOrMore | None = None
    model: OneOrMore | None = None
    mode: OneOrMore | None = None
    seed: Annotated[tuple[int, ...], BeforeValidator(_wrap_in_tuple)] | None = None


class SettingOverride(Record):
    where: CellFilter
    set: dict[str, Setting]


class RunResources(Record):
    """Of one run."""

    cpus: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Cores. None: all that there are, so that one run goes at a time unless somebody says otherwise."""
    memory: Annotated[str, AfterValidator(_validate_memory)] | None = None
    """For each of its sandboxes: 4G."""
    gpus: Annotated[int, Field(strict=True, ge=0)] = 0

    @property
    def memory_bytes(self) -> int | None:
        return parse_byte_size(self.memory) if self.memory else None


class CampaignSpec(Record):
    name: Name
    about: str = ""
    axes: CampaignAxes
    settings: dict[str, Setting] = Field(default_factory=dict)
    resources: RunResources = RunResources()
    exclude: tuple[CellFilter, ...] = ()
    override: tuple[SettingOverride, ...] = ()


def read_campaign(path: Path) -> CampaignSpec:
    try:
        return parse_campaign(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", "A campaign is a TOML file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}.") from error


def parse_campaign(text: str, name: str) -> CampaignSpec:
    """`name` is how errors call it."""
    try:
        campaign = CampaignSpec.model_validate(tomllib.loads(text))
    except ValidationError as error:
        fault = error.errors()[0]
        place, said = _format_location(fault["loc"]), fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            raise UserError(
                f"{name}: {place}: there is no such key.", f"Known keys: {_list_known_keys(fault['loc'])}."
            ) from error
        raise UserError(f"{name}: {place}: {said.rstrip('.')}.") from error
    except (ValueError, RecursionError) as error:  # tomllib lets through what int() and the stack say
        raise UserError(f"{name} is not TOML: {error}.") from error
    _check_consistency(campaign, name)
    return campaign


def _check_consistency(campaign: CampaignSpec, name: str) -> None:
    """What a schema cannot say: settings that are axes, and choices that can fit nothing."""
    axes = campaign.axes.model_dump(exclude_none=True)
    settings = [("settings", campaign.settings)]
    settings += [(f"override {number}: set", one.set) for number, one in enumerate(campaign.override, 1)]
    for place, named in settings:
        if clash := [key for key in named if key in axes]:
            raise UserError(f"{name}: {place}: {clash[0]!r} is an axis already.", "Leave out one of them.")
        if own := [key for key in named if key in ("json", "runs-dir")]:
            raise UserError(f"{name}: {place}: {own[0]!r} is the campaign's own to say.", "Leave it out.")
    chosen = [(f"exclude {number}", one) for number, one in enumerate(campaign.exclude, 1)]
    chosen += [(f"override {number}: where", one.where) for number, one in enumerate(campaign.override, 1)]
    for place, one in chosen:
        named_axes = one.model_dump(exclude_none=True)
        if not all(named_axes.values()) or (not named_axes and place.startswith("exclude")):
            raise UserError(f"{name}: {place}: it names no value.", "Name one on an axis, or leave it out.")
        for axis, values in named_axes.items():
            if axis not in axes:
                raise UserError(f"{name}: {place}: there is no axis {axis!r}.", f"Axes: {', '.join(axes)}.")
            if missing := [value for value in values if value not in axes[axis]]:
                known = ", ".join(map(str, axes[axis]))
                raise UserError(
                    f"{name}: {place}: {missing[0]!r} is not on the axis {axis}.", f"It has: {known}."
                )


def _format_location(loc: tuple[int | str, ...]) -> str:
    """exclude 2: task, without what pydantic calls the ways in which it could have been right."""
    parts = [part for part in loc if isinstance(part, int) or part.replace("-", "_").isidentifier()]
    if len(parts) > 1 and parts[0] in ("exclude", "override") and isinstance(parts[1], int):
        return ": ".join([f"{parts[0]} {parts[1] + 1}", *(str(part) for part in parts[2:])])
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in parts)


def _list_known_keys(loc: tuple[int | str, ...]) -> str:
    """The keys that the place of a wrong one has."""
    kinds: dict[str, type[Record]] = {
        "axes": CampaignAxes,
        "resources": RunResources,
        "exclude": CellFilter,
        "where": CellFilter,
    }
    names = [part for part in loc[:-1] if isinstance(part, str)]
    kind = kinds.get(names[-1], SettingOverride) if names else CampaignSpec
    return ", ".join(kind.model_fields)


# From a campaign's file to its experiments. Equal specifications are the same experiment.

Cell = Mapping[str, str | int]
"""A value on each axis."""
ParseArguments = Callable[[Sequence[str], bool], RunSpec]
"""What `agent2rl run` would make of these arguments, on a machine with or without GPUs."""
NON_IDENTITY_FIELDS = {"limits", "instructions_version"}
"""Fields that do not identify an experiment: limits depend on the machine, and the version of the
instructions on agent2rl."""


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
    return sha256_text(canonical_json(spec.model_dump(mode="json", exclude=NON_IDENTITY_FIELDS)))


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
            f"{campaign.name}: {count:,} combinations; a campaign can have at most {MOST_EXPERIMENTS:,}.",
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
