"""Reads a run directory in any state: going, finished, crashed or damaged. Writes nothing."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.events import TimelineEvent
from agent2rl.core.grading_records import (
    Contamination,
    ContaminationSummary,
    EvalScore,
    ExampleResult,
    Submission,
)
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import Record, RunResult, RunSpec
from agent2rl.core.self_reports import AttemptClaims, Transcript
from agent2rl.record import ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.run_lock import is_held

R = TypeVar("R", bound=Record)
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
State = Literal["running", "finished", "crashed"]


@dataclass(frozen=True)
class RunView:
    """A run as its directory tells it. `notes` says what could not be read."""

    paths: RunPaths
    spec: RunSpec
    state: State
    result: RunResult | None
    baseline: EvalScore | None
    submissions: tuple[Submission, ...]
    contamination: Contamination | None
    chain: ledger.LedgerReading
    notes: tuple[str, ...]

    @property
    def contamination_summary(self) -> ContaminationSummary | None:
        """From the search's own record, or from the result where that cannot be read."""
        return self.contamination or (self.result.contamination if self.result else None)

    @property
    def contaminated(self) -> bool | None:
        """None: unknown, because the workspace was not searched."""
        return self.contamination_summary.contaminated if self.contamination_summary else None

    @property
    def instructions_versions(self) -> tuple[int, ...]:
        """Of the instructions that the agent was given, without repeats; several where the run was resumed by
        another version of the harness, none where the agent never started."""
        starts = [entry.data for entry in self.chain.entries if entry.kind == "started"]
        versions = [data.get("instructions_version", 1) for data in starts]
        return tuple(dict.fromkeys(each for each in versions if isinstance(each, int)))


def read_run(paths: RunPaths) -> RunView:
    notes: list[str] = []
    spec = _read_record(paths.spec, RunSpec, notes)
    if spec is None:
        raise UserError(f"{paths.root} is not a run that can be read: {notes[0]}.")
    result = _read_record(paths.result, RunResult, notes) if paths.result.exists() else None
    chain = ledger.read_ledger(paths.ledger, paths.ledger_head)
    numbers = sorted(int(path.name) for path in paths.submissions.glob("*") if NUMBER.fullmatch(path.name))
    found = [_read_record(paths.submission_paths(number).record, Submission, notes) for number in numbers]
    return RunView(
        paths=paths,
        spec=spec,
        state="finished" if result else "running" if is_held(paths.lock) else "crashed",
        result=result,
        baseline=result.baseline if result else _find_baseline(chain),
        submissions=tuple(submission for submission in found if submission),
        contamination=(
            _read_record(paths.contamination, Contamination, notes) if paths.contamination.exists() else None
        ),
        chain=chain,
        notes=tuple(notes),
    )


def read_results(path: Path) -> list[ExampleResult]:
    """The model's answers that a grading left."""
    return [ExampleResult.model_validate_json(line) for line in path.read_bytes().splitlines()]


def read_events(paths: RunPaths, notes: list[str]) -> list[TimelineEvent]:
    """The timeline, as far as it can be read."""
    return _read_lines(paths.events, TimelineEvent, notes)


def read_usage(paths: RunPaths, notes: list[str]) -> list[LlmExchange]:
    """Each request to the driver LLM; none where there is no driver."""
    return _read_lines(paths.usage, LlmExchange, notes) if paths.usage.exists() else []


def read_claims(paths: RunPaths, notes: list[str]) -> AttemptClaims | None:
    """What the agent says of its attempts, once it has ended."""
    return _read_record(paths.claims, AttemptClaims, notes) if paths.claims.exists() else None


def read_transcript(paths: RunPaths) -> Transcript | None:
    """What a driven agent said and did; None where there is nothing, or nothing that can be read."""
    return _read_record(paths.transcript, Transcript, [])


def _find_baseline(chain: ledger.LedgerReading) -> EvalScore | None:
    for entry in chain.entries:
        if entry.kind == "baseline" and entry.data.get("split") == "feedback":
            with suppress(ValidationError):
                return EvalScore.model_validate(entry.data.get("score"))
    return None


def _read_record(path: Path, kind: type[R], notes: list[str]) -> R | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except (ValidationError, OSError) as error:
        notes.append(f"{path.name} cannot be read ({type(error).__name__})")
    return None


def _read_lines(path: Path, kind: type[R], notes: list[str]) -> list[R]:
    """The records of a file with one a line. The last line may be cut off by a crash, or just be written."""
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({type(error).__name__})")
        return []
    found, bad = [], 0
    for line in lines:
        try:
            found.append(kind.model_validate_json(line))
        except ValidationError:
            bad += 1
    if bad:
        notes.append(f"{path.name} has {bad} of {len(lines)} lines that cannot be read")
    return found
