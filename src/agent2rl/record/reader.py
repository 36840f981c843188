"""Read a run directory in any state: running, finished, crashed or damaged. Nothing is written."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from agent2rl.core.audit_records import Audit
from agent2rl.core.errors import UserError
from agent2rl.core.events import EARLIER_SOURCES, TimelineEvent
from agent2rl.core.grading_records import (
    Contamination,
    ContaminationSummary,
    EvalScore,
    ExampleResult,
    SiblingDistance,
    Submission,
)
from agent2rl.core.llm import LlmExchange
from agent2rl.core.network import NetworkLine, NetworkRecord, join_network_lines
from agent2rl.core.records import PythonLock, RolloutCounts, Rollouts, RunResult, RunSpec
from agent2rl.core.reproduction import Reproduction
from agent2rl.core.self_reports import AttemptClaims, Transcript
from agent2rl.record import ledger
from agent2rl.record.files import read_regular_file
from agent2rl.record.ledger import read_additions
from agent2rl.record.paths import RunPaths
from agent2rl.record.run_lock import is_held

R = TypeVar("R", bound=BaseModel)
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
LINEAGE_FILE = re.compile(r"submissions/([1-9][0-9]{0,8})/lineage\.json")
State = Literal["running", "finished", "crashed"]


@dataclass(frozen=True)
class RunView:
    """The content of a run directory. `notes` lists what could not be read."""

    paths: RunPaths
    spec: RunSpec
    state: State
    result: RunResult | None
    baseline: EvalScore | None
    submissions: tuple[Submission, ...]
    contamination: Contamination | None
    chain: ledger.LedgerReading
    notes: tuple[str, ...]
    reproductions: tuple[Reproduction, ...] = ()
    """Added after the run was closed, oldest first."""
    audits: tuple[Audit, ...] = ()
    """What panels of judges said of the run, the latest last."""

    @property
    def latest_reproductions(self) -> dict[int, Reproduction]:
        """The last reproduction of each submission that has one."""
        return {each.submission: each for each in self.reproductions}

    @property
    def best_reproduction(self) -> Reproduction | None:
        """The last reproduction of the best submission."""
        best = self.result.best if self.result else None
        return self.latest_reproductions.get(best.id) if best else None

    @property
    def audit(self) -> Audit | None:
        """The last audit that was done; if none was, the last one; None without any."""
        return next((each for each in reversed(self.audits) if each.done), *self.audits[-1:] or (None,))

    @property
    def contamination_summary(self) -> ContaminationSummary | None:
        """The summary from the search's own record, or from the result if that record cannot be read."""
        return self.contamination or (self.result.contamination if self.result else None)

    @property
    def contaminated(self) -> bool | None:
        """Whether evaluation data was found; None if the workspace was not searched."""
        return self.contamination_summary.contaminated if self.contamination_summary else None

    @property
    def warning(self) -> str:
        """What the evaluator says against the scores, such as a test on training data; usually empty."""
        best = self.result.best_heldout if self.result else None
        scores = (best, *(each.score for each in reversed(self.submissions)), self.baseline)
        texts = (score.how.get("warning") for score in scores if score)
        return next((text for text in texts if isinstance(text, str)), "")

    @property
    def instructions_versions(self) -> tuple[int, ...]:
        """Versions of the instructions that the agent got, without repeats.

        There are several if another version of the harness resumed the run, none if the agent never started.
        """
        starts = [entry.data for entry in self.chain.entries if entry.kind == "started"]
        versions = [data.get("instructions_version", 1) for data in starts]
        return tuple(dict.fromkeys(each for each in versions if isinstance(each, int)))

    @property
    def used_sandbox(self) -> str:
        """The sandbox that was used; as requested if that is not known."""
        isolation = self.result.isolation if self.result else None
        return isolation.sandbox if isolation else self.spec.sandbox

    @property
    def agent_python(self) -> PythonLock | None:
        """The agent's Python environment; None if the record does not have it."""
        for entry in reversed(self.chain.entries):
            if entry.kind == "python":
                with suppress(ValidationError):
                    return PythonLock.model_validate(entry.data.get("lock"))
        return None

    @property
    def sibling_distances(self) -> tuple[tuple[int, SiblingDistance], ...]:
        """The distances of submissions to known siblings of the base model, with each submission's number."""
        distances: dict[int, list[SiblingDistance]] = {}
        for entry in self.chain.entries:
            number = LINEAGE_FILE.fullmatch(str(entry.data.get("file"))) if entry.kind == "lineage" else None
            listed = entry.data.get("siblings")
            if number and isinstance(listed, list):
                with suppress(ValidationError):
                    distances[int(number[1])] = [SiblingDistance.model_validate(each) for each in listed]
        return tuple((number, each) for number, found in distances.items() for each in found)


def read_run(paths: RunPaths) -> RunView:
    notes: list[str] = []
    spec = _read_record(paths.spec, RunSpec, notes)
    if spec is None:
        raise UserError(f"{paths.root} is not a readable run: {notes[0]}.")
    result = _read_record(paths.result, RunResult, notes) if paths.result.exists() else None
    chain = ledger.read_ledger(paths.ledger, paths.ledger_head)
    numbers = sorted(int(path.name) for path in paths.submissions.glob("*") if NUMBER.fullmatch(path.name))
    submissions = [
        _read_record(paths.submission_paths(number).record, Submission, notes) for number in numbers
    ]
    added = read_additions(paths, chain.entries[-1].hash if chain.entries else "")
    if added.fault:
        notes.append(f"additions cannot be used ({added.fault})")
    return RunView(
        paths=paths,
        spec=spec,
        state="finished" if result else "running" if is_held(paths.lock) else "crashed",
        result=result,
        baseline=result.baseline if result else _find_baseline(chain),
        submissions=tuple(submission for submission in submissions if submission),
        contamination=(
            _read_record(paths.contamination, Contamination, notes) if paths.contamination.exists() else None
        ),
        chain=chain,
        audits=() if added.fault else added.list_audits(),
        notes=tuple(notes),
        reproductions=() if added.fault else added.list_reproductions(),
    )


def read_results(path: Path) -> list[ExampleResult]:
    """Read the model's recorded answers of a grading."""
    return [ExampleResult.model_validate_json(line) for line in read_regular_file(path).splitlines()]


def read_events(paths: RunPaths, notes: list[str]) -> list[TimelineEvent]:
    """Read the timeline as far as possible."""
    return _read_lines(paths.events, TimelineEvent, notes)


def read_rollouts(view: RunView) -> Rollouts | None:
    """Return what a run has played in its task's world, so far if it has no result; None if nothing is known.

    A run with a limit of steps has played something or nothing. Without one, the record of a run that has
    played nothing does not say whether there is a world.
    """
    if view.result:
        return view.result.rollouts
    # Parsing every line of a long timeline would take many times as long.
    events = _read_lines(view.paths.events, TimelineEvent, [], containing=b'"rollouts"')
    parsed = [rollouts for event in events if (rollouts := parse_rollouts(event))]
    limited = view.spec.budget.environment_steps is not None
    return sum(parsed, Rollouts()) if parsed or limited else None


def parse_rollouts(event: TimelineEvent) -> Rollouts | None:
    """Return the rollouts that an event adds; None if it is another event, or damaged."""
    source = str(event.data.get("source"))
    if event.kind != "rollouts" or EARLIER_SOURCES.get(source, source) not in Rollouts.model_fields:
        return None
    counts = {name: value for name, value in event.data.items() if name in RolloutCounts.model_fields}
    with suppress(ValidationError):
        return Rollouts.model_validate({source: counts})
    return None


def read_usage(paths: RunPaths, notes: list[str]) -> list[LlmExchange]:
    """Read the requests to the driver LLM; empty without a driver."""
    return _read_lines(paths.usage, LlmExchange, notes) if paths.usage.exists() else []


def read_network_record(paths: RunPaths, notes: list[str]) -> NetworkRecord:
    """Read the agent's requests to hosts outside; empty without a network."""
    lines = _read_lines(paths.network, NetworkLine, notes) if paths.network.exists() else []
    return join_network_lines(lines)


def read_claims(paths: RunPaths, notes: list[str]) -> AttemptClaims | None:
    """Read the agent's notes on its attempts, saved after its end."""
    return _read_record(paths.claims, AttemptClaims, notes) if paths.claims.exists() else None


def read_transcript(paths: RunPaths) -> Transcript | None:
    """Read the transcript of a driven agent; None if it is missing or unreadable."""
    return _read_record(paths.transcript, Transcript, [])


def _find_baseline(chain: ledger.LedgerReading) -> EvalScore | None:
    for entry in chain.entries:
        if entry.kind == "baseline" and entry.data.get("split") == "feedback":
            with suppress(ValidationError):
                return EvalScore.model_validate(entry.data.get("score"))
    return None


def read_finished_run(paths: RunPaths) -> RunView:
    """Read a run whose record is closed; raise UserError for any other."""
    view = read_run(paths)
    if view.state == "running":
        raise UserError(f"{paths.run_id} is still running.", "Wait until it has ended.")
    if view.result is None:
        raise UserError(
            f"{paths.run_id} has no result: {'; '.join(view.notes) or 'its harness died'}.",
            f"Continue it: agent2rl resume {paths.run_id}.",
        )
    return view


def _read_record(path: Path, kind: type[R], notes: list[str]) -> R | None:
    try:
        return kind.model_validate_json(read_regular_file(path))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except (ValidationError, OSError) as error:
        notes.append(f"{path.name} cannot be read ({type(error).__name__})")
    return None


def _read_lines(path: Path, kind: type[R], notes: list[str], containing: bytes = b"") -> list[R]:
    """Read the records in the lines of a file that contain this. The last line may be incomplete."""
    try:
        *lines, _ = read_regular_file(path).split(b"\n")
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({type(error).__name__})")
        return []
    records, bad = [], 0
    for line in lines:
        if containing not in line:
            continue
        try:
            records.append(kind.model_validate_json(line))
        except ValidationError:
            bad += 1
    if bad:
        notes.append(f"{path.name} has {bad} of {len(lines)} lines that cannot be read")
    return records
