"""References: what a score is compared with. Read from a file, or measured by runs.

    [[result]]
    name = "A person, eight hours"
    kind = "human"
    task = "gsm8k"
    score = 71.5
    interval = [66.0, 76.4]
    source = "https://example.org/study"

A result from a file was not measured by agent2rl. It is shown with its source and has no rank.
"""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, model_validator

from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import Percent
from agent2rl.core.records import ScoringProtocol
from agent2rl.site.listing import RunListing

ReferenceKind = Literal["human", "earlier result", "model"]
Line = Annotated[str, Field(min_length=1, max_length=300)]


class ReferenceResult(Record, allow_inf_nan=False):
    """A result of others, entered with its source."""

    name: Line
    kind: ReferenceKind
    task: Line
    protocol: ScoringProtocol = "default"
    profile: str | None = None
    """The published profile, for the paper's protocol."""
    model: str | None = None
    """The base model; None if there is none, as for a person who answers."""
    score: Percent | None = None
    gain: Annotated[float, Field(ge=-100, le=100)] | None = None
    """Points above the untouched model."""
    interval: tuple[Percent, Percent] | None = None
    """95% interval of the score."""
    source: Line
    """Where it is from: a URL, or a citation."""
    note: Annotated[str, Field(max_length=1000)] = ""

    @model_validator(mode="after")
    def has_a_number(self) -> "ReferenceResult":
        if self.score is None and self.gain is None:
            raise ValueError("a result needs a score, a gain or both")
        if self.interval and not (self.score is not None and _is_inside(self.score, self.interval)):
            raise ValueError("an interval needs a score inside it")
        return self


def _is_inside(value: float, interval: tuple[float, float]) -> bool:
    return interval[0] <= value <= interval[1]


class ReferenceFile(Record):
    result: tuple[ReferenceResult, ...]


def read_references(path: Path) -> tuple[ReferenceResult, ...]:
    try:
        return ReferenceFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).result
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: {field}: {first['msg']}.",
            "Each [[result]] has: name, kind (human, earlier result or model), task, score or gain, source; "
            "and optionally protocol, profile, model, interval, note.",
        ) from error
    except (ValueError, RecursionError) as error:  # tomllib can also raise errors of int() and of recursion
        raise UserError(f"{path} is not a TOML file: {error}.") from error


class ReferenceRow(Record):
    """A row below the ranking of a task."""

    name: str
    kind: str
    model: str
    score: float | None
    interval: tuple[float, float] | None
    gain: float | None
    runs: int | None
    """Number of runs that measured it; None if it comes from a file."""
    source: str
    link: str
    """The source, if it is a web address."""
    note: str = ""


def list_reference_rows(
    runs: Sequence[RunListing], named_models: Sequence[str], results: Sequence[ReferenceResult]
) -> list[ReferenceRow]:
    """Return the references of one setting of a task.

    Every run measures its untouched model. So a run of the agent `nop` measures any model, such as the
    instruct model by the makers of the base model.
    """
    models = sorted({run.model for run in runs})
    measured = {model: [run.baseline for run in runs if _measures_model(run, model)] for model in models}
    rows = [
        _describe_model(model, [score for score in scores if score is not None], model in named_models)
        for model, scores in measured.items()
        if scores
    ]
    return [*rows, *map(_describe_result, _match_results(runs, results))]


def _measures_model(run: RunListing, model: str) -> bool:
    return run.model == model and run.baseline is not None and run.baseline_ranks


def _describe_model(model: str, scores: Sequence[float], is_named: bool) -> ReferenceRow:
    return ReferenceRow(
        name=model,
        kind="named model" if is_named else "untouched model",
        model="" if is_named else model,
        score=fmean(scores),
        interval=None,
        gain=None if is_named else 0.0,
        runs=len(scores),
        source="measured in these runs",
        link="",
    )


def _match_results(
    runs: Sequence[RunListing], results: Iterable[ReferenceResult]
) -> Iterable[ReferenceResult]:
    known = {(run.task, run.protocol, run.profile) for run in runs}
    return [each for each in results if (each.task, each.protocol, each.profile) in known]


def _describe_result(result: ReferenceResult) -> ReferenceRow:
    return ReferenceRow(
        name=result.name,
        kind=result.kind,
        model=result.model or "",
        score=result.score,
        interval=result.interval,
        gain=result.gain,
        runs=None,
        source=result.source,
        link=result.source if is_web_address(result.source) else "",
        note=result.note,
    )


def is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
