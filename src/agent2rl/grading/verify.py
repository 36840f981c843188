"""Does a run's record still hold? Recomputes the chain, every manifest and every file the ledger pins."""

from collections.abc import Iterator

from pydantic import JsonValue, ValidationError

from agent2rl.core.records import LedgerEntry, Manifest, Record, Submission
from agent2rl.grading.freeze import manifest_of
from agent2rl.store import ledger
from agent2rl.store.files import sha256_file
from agent2rl.store.paths import RunPaths

PINS = ("results", "lineage", "contamination", "usage", "account")
"""Entries that pin a file."""


class Verification(Record):
    """`fault` names the first thing that does not hold."""

    holds: bool
    fault: str | None
    records: int
    files: int
    head: str
    notes: tuple[str, ...] = ()


def verify(paths: RunPaths, head: str | None = None) -> Verification:
    """Check a run; with `head`, also that its last record is the one with this hash."""
    chain = ledger.read(paths.ledger, paths.ledger_head)
    fault = chain.fault
    if not chain.entries:
        fault = fault or "the ledger is empty"
    files = 0
    if fault is None and head is not None and head != chain.entries[-1].hash:
        fault = f"the last ledger record is not the one with the hash {head}"
    if fault is None:
        for fault in _faults(paths, chain.entries):
            if fault is not None:
                break
            files += 1
    return Verification(
        holds=fault is None,
        fault=fault,
        records=len(chain.entries),
        files=files,
        head=chain.entries[-1].hash if chain.entries else "",
        notes=tuple(_notes(paths, chain)),
    )


def _faults(paths: RunPaths, entries: tuple[LedgerEntry, ...]) -> Iterator[str | None]:
    """None for each thing that holds, a sentence for each that does not, in the ledger's order."""
    manifests: dict[int, JsonValue] = {}
    latest: dict[int, Submission] = {}
    graded: set[int] = set()
    pins = {entry.data.get("file"): entry.index for entry in entries if entry.kind in PINS}
    for entry in entries:
        data = entry.data
        try:
            if entry.kind == "opened":
                yield _file(paths, "spec.json", data["spec_sha256"])
            elif entry.kind in PINS and data["sha256"] is not None:
                if pins[data["file"]] == entry.index:  # a run that was resumed may have written it anew
                    yield _file(paths, str(data["file"]), data["sha256"])
            elif entry.kind in ("submitted", "graded"):
                submission = Submission.model_validate(data["submission"])
                latest[submission.id] = submission
                if entry.kind == "graded" and submission.id in graded:
                    yield f"ledger record {entry.index} grades submission {submission.id} a second time"
                graded |= {submission.id} if entry.kind == "graded" else set()
                if entry.kind == "submitted":
                    manifests[submission.id] = data["manifest_sha256"]
            elif entry.kind == "closed" and paths.result.exists():
                yield _file(paths, "result.json", data["result_sha256"])
        except (KeyError, ValidationError):
            yield f"ledger record {entry.index} ({entry.kind}) does not say what such records say"
    for number, submission in latest.items():
        if manifests.get(number):
            yield from _manifest(paths, number, manifests[number], submission.kept)
        if submission.id != _about(entries[-1]):
            yield _record(paths, submission)
    yield from _strangers(paths, set(latest))
    if paths.result.exists() and (not entries or entries[-1].kind != "closed"):
        yield "result.json is there, but the ledger was not closed"


def _about(entry: LedgerEntry) -> JsonValue:
    """The submission that the last record is about: a crash may have come before its file was written."""
    submission = entry.data.get("submission")
    return submission.get("id") if isinstance(submission, dict) else None


def _record(paths: RunPaths, submission: Submission) -> str | None:
    """submission.json is what the ledger last said of it."""
    path = paths.submission(submission.id).record
    try:
        found = Submission.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return f"{paths.relative(path)} is missing or cannot be read"
    return None if found == submission else f"{paths.relative(path)} was changed"


def _strangers(paths: RunPaths, known: set[int]) -> Iterator[str]:
    """Submissions that the ledger does not know. The last one may be a copy that a crash interrupted."""
    for path in sorted(paths.submissions.glob("*")):
        interrupted = path.name == str(len(known) + 1) and not (path / "submission.json").exists()
        if path.name not in map(str, known) and not interrupted:
            yield f"{paths.relative(path)} was added: the ledger knows nothing of it"


def _manifest(paths: RunPaths, number: int, digest: JsonValue, kept: bool) -> Iterator[str | None]:
    submission = paths.submission(number)
    name = paths.relative(submission.manifest)
    yield (fault := _file(paths, name, digest))
    if fault is not None or not kept:
        return
    try:
        noted = Manifest.model_validate_json(submission.manifest.read_bytes())
        found = manifest_of(submission.model)
    except (ValidationError, OSError) as error:
        yield f"{paths.relative(submission.model)} cannot be read: {type(error).__name__}"
        return
    links = [path for path in submission.model.rglob("*") if path.is_symlink()]
    yield f"{paths.relative(links[0])} was added" if links else None
    were = {file.path: file.sha256 for file in noted.files}
    are = {file.path: file.sha256 for file in found.files}
    for path in sorted(were | are):
        same = were.get(path) == are.get(path)
        change = "is missing" if path not in are else "was added" if path not in were else "was changed"
        yield None if same else f"{paths.relative(submission.model / path)} {change}"


def _file(paths: RunPaths, name: str, digest: JsonValue) -> str | None:
    path = paths.root / name
    try:
        return None if sha256_file(path) == digest else f"{name} was changed"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"


def _notes(paths: RunPaths, chain: ledger.Reading) -> Iterator[str]:
    if chain.torn:
        yield "the last ledger line was cut off in the middle of a write: a crash; all before it counts"
    if not paths.result.exists():
        closed = bool(chain.entries) and chain.entries[-1].kind == "closed"
        yield (
            "the run was closed, but result.json is missing: its harness died just then, or it was removed"
            if closed
            else "the run has no result: it is still going, or its harness died"
        )
