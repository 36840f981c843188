"""Read a campaign file (strictly checked TOML) and expand it to experiments.

Equal specifications are the same experiment. An example:

name = "smoke"
about = "…"

[axes]                       # every combination is an experiment
task = ["gsm8k-mini", "webshop-mini"]
agent = ["recipe"]
seed = [0, 1]

[settings]                   # any long option of `agent2rl run`
budget = "4m"

[resources]                  # of one run
cpus = 1
memory = "4G"
gpus = 0

[[exclude]]                  # combinations to leave out
task = "webshop-mini"
seed = 1

[[override]]                 # different settings for some combinations
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

from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError
from agent2rl.core.records import RunSpec
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.core.units import parse_byte_size
from agent2rl.record.files import canonical_json, sha256_text


def _wrap_in_tuple(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _require_distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("a value is listed twice")
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
    """The values to combine. An axis that is not given has the default of `agent2rl run`."""

    task: Texts
    agent: Texts
    driver: Texts | None = None
    """An empty string means no driver."""
    model: Texts | None = None
    mode: Texts | None = None
    expert: Texts | None = None
    """Levels of expert help: "full", "none", or a number such as "96"."""
    network: Texts | None = None
    """Network policies: "none", "packages", "allow:HOST,…" or "open"."""
    seed: Annotated[Seeds, AfterValidator(_require_distinct)] | None = None


class CellFilter(Record):
    """Selects the combinations that have one of these values on each given axis."""

    task: OneOrMore | None = None
    agent: OneOrMore | None = None
    driver: OneOrMore | None = None
    model: OneOrMore | None = None
    mode: OneOrMore | None = None
    expert: OneOrMore | None = None
    network: OneOrMore | None = None
    seed: Annotated[tuple[int, ...], BeforeValidator(_wrap_in_tuple)] | None = None


class SettingOverride(Record):
    where: CellFilter
    set: dict[str, Setting]


class RunResources(Record):
    """The resources of one run."""

    cpus: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Cores. None: all cores, so that runs are sequential unless --parallel is given."""
    memory: Annotated[str, AfterValidator(_validate_memory)] | None = None
    """Memory limit of each of its sandboxes, e.g. 4G."""
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
    """Parse and check the text of a campaign file. `name` is its name in error messages."""
    try:
        campaign = CampaignSpec.model_validate(tomllib.loads(text))
    except ValidationError as error:
        fault = error.errors()[0]
        location, message = _format_location(fault["loc"]), fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            raise UserError(
                f"{name}: {location}: there is no such key.", f"Known keys: {_list_known_keys(fault['loc'])}."
            ) from error
        raise UserError(f"{name}: {location}: {message.rstrip('.')}.") from error
    except (ValueError, RecursionError) as error:  # tomllib can also raise errors of int() and of recursion
        raise UserError(f"{name} is not TOML: {error}.") from error
    _check_consistency(campaign, name)
    return campaign


def _check_consistency(campaign: CampaignSpec, name: str) -> None:
    """Check what the schema cannot: settings that are also axes, and filters that match nothing."""
    axes = campaign.axes.model_dump(exclude_none=True)
    settings = [("settings", campaign.settings)]
    settings += [
        (f"override {number}: set", cell_filter.set)
        for number, cell_filter in enumerate(campaign.override, 1)
    ]
    for location, options in settings:
        if clash := [key for key in options if key in axes]:
            raise UserError(f"{name}: {location}: {clash[0]!r} is already an axis.", "Remove one of them.")
        if reserved := [key for key in options if key in ("json", "runs-dir")]:
            raise UserError(
                f"{name}: {location}: {reserved[0]!r} is set by the campaign itself.", "Remove it."
            )
    filters = [(f"exclude {number}", cell_filter) for number, cell_filter in enumerate(campaign.exclude, 1)]
    filters += [
        (f"override {number}: where", cell_filter.where)
        for number, cell_filter in enumerate(campaign.override, 1)
    ]
    for location, cell_filter in filters:
        named_axes = cell_filter.model_dump(exclude_none=True)
        if not all(named_axes.values()) or (not named_axes and location.startswith("exclude")):
            raise UserError(f"{name}: {location}: it has no value.", "Give a value of an axis, or remove it.")
        for axis, values in named_axes.items():
            if axis not in axes:
                raise UserError(
                    f"{name}: {location}: there is no axis {axis!r}.", f"Axes: {', '.join(axes)}."
                )
            if missing := [value for value in values if value not in axes[axis]]:
                known_values = ", ".join(map(str, axes[axis]))
                raise UserError(
                    f"{name}: {location}: {missing[0]!r} is not on the axis {axis}.",
                    f"It has: {known_values}.",
                )


def _format_location(loc: tuple[int | str, ...]) -> str:
    """Format a location as "exclude 2: task", without pydantic's names for the members of a union."""
    parts = [part for part in loc if isinstance(part, int) or part.replace("-", "_").isidentifier()]
    if len(parts) > 1 and parts[0] in ("exclude", "override") and isinstance(parts[1], int):
        return ": ".join([f"{parts[0]} {parts[1] + 1}", *(str(part) for part in parts[2:])])
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in parts)


def _list_known_keys(loc: tuple[int | str, ...]) -> str:
    """Return the valid keys at the location of an unknown one."""
    kinds: dict[str, type[Record]] = {
        "axes": CampaignAxes,
        "resources": RunResources,
        "exclude": CellFilter,
        "where": CellFilter,
    }
    names = [part for part in loc[:-1] if isinstance(part, str)]
    kind = kinds.get(names[-1], SettingOverride) if names else CampaignSpec
    return ", ".join(kind.model_fields)


def replace_budget(campaign: CampaignSpec, seconds: float) -> CampaignSpec:
    """Give every run of a campaign this time budget, whatever its settings and overrides say."""
    overrides = tuple(
        each.model_copy(update={"set": {key: value for key, value in each.set.items() if key != "budget"}})
        for each in campaign.override
    )
    settings = {**campaign.settings, "budget": f"{seconds}s"}
    return campaign.model_copy(update={"settings": settings, "override": overrides})


# From a campaign to its experiments

Cell = Mapping[str, str | int]
"""A value on each axis."""
ParseArguments = Callable[[Sequence[str], bool], RunSpec]
"""Parses arguments as `agent2rl run` does, on a machine with or without GPUs."""
NON_IDENTITY_FIELDS = {"limits", "grading_gpus", "keep", "siblings", "also", "instructions_version"}
"""Fields that do not identify an experiment: limits, GPUs and fingerprint files depend on the machine, the
version of the instructions on agent2rl, and no score on what is kept or on the regression panel."""
DEFAULT_SANDBOX = "bubblewrap"


MOST_EXPERIMENTS = 10_000
"""Limit for one campaign: each combination is parsed as a command line and looked up at every refresh."""


@dataclass(frozen=True)
class Experiment:
    id: str
    spec: RunSpec
    cell: Cell
    arguments: tuple[str, ...]
    """Arguments of `agent2rl run`, with everything pinned that would depend on the time and the machine."""

    @property
    def command(self) -> str:
        return f"agent2rl run {shlex.join(self.arguments)}"


def compute_experiment_id(spec: RunSpec) -> str:
    """Return an id that is the same for equal specifications on every machine."""
    if spec.sandbox == AUTO_SANDBOX:  # the same experiment as with the former default
        spec = spec.model_copy(update={"sandbox": DEFAULT_SANDBOX})
    return sha256_text(canonical_json(spec.model_dump(mode="json", exclude=NON_IDENTITY_FIELDS)))


def expand_experiments(campaign: CampaignSpec, parse: ParseArguments) -> tuple[Experiment, ...]:
    experiments: dict[str, Experiment] = {}
    for cell in expand_cells(campaign):
        arguments = make_run_arguments(campaign, cell)
        try:
            spec = parse(arguments, campaign.resources.gpus > 0)
        except UserError as error:
            raise UserError(f"{campaign.name}, {format_cell(cell)}: {error.message}", error.hint) from error
        new = Experiment(compute_experiment_id(spec), spec, cell, _pin_arguments(arguments, spec))
        if (old := experiments.setdefault(new.id, new)) is not new:
            raise UserError(
                f"{campaign.name}: {format_cell(old.cell)} and {format_cell(cell)} are the same experiment.",
                "Exclude one of them, or vary something that the run depends on.",
            )
    if not experiments:
        raise UserError(f"{campaign.name}: nothing is left to run.", "[[exclude]] matches every combination.")
    return tuple(experiments.values())


def expand_cells(campaign: CampaignSpec) -> list[Cell]:
    """Return every combination that is not excluded; the last axis varies fastest."""
    axes = campaign.axes.model_dump(exclude_none=True)
    if (count := prod(map(len, axes.values()))) > MOST_EXPERIMENTS:
        raise UserError(
            f"{campaign.name}: {count:,} combinations; a campaign can have at most {MOST_EXPERIMENTS:,}.",
            "Split it into several campaigns.",
        )
    cells = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return [cell for cell in cells if not any(matches_cell(excluded, cell) for excluded in campaign.exclude)]


def matches_cell(cell_filter: CellFilter, cell: Cell) -> bool:
    return all(cell[axis] in values for axis, values in cell_filter.model_dump(exclude_none=True).items())


def make_run_arguments(campaign: CampaignSpec, cell: Cell) -> tuple[str, ...]:
    """Return the arguments of `agent2rl run` for a combination."""
    settings = dict(campaign.settings)
    for override in campaign.override:
        if matches_cell(override.where, cell):
            settings |= override.set
    values: dict[str, Setting] = {axis: value for axis, value in cell.items() if value != ""}
    return tuple(part for name, value in (values | settings).items() for part in _format_option(name, value))


def format_cell(cell: Cell) -> str:
    return " ".join(f"{axis}={value}" for axis, value in cell.items())


def _pin_arguments(arguments: Sequence[str], spec: RunSpec) -> tuple[str, ...]:
    """Pin the chosen engine, and the commit that the name of a hub model refers to now."""
    # In place of those that were given: an option that is repeated is refused.
    others = [argument for argument in arguments if not argument.startswith(("--engine=", "--model="))]
    return (*others, f"--model={spec.model}", f"--engine={spec.engine}")


def _format_option(name: str, value: Setting) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}={item}" for item in (value if isinstance(value, tuple) else (value,))]
