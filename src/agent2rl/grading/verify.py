"""Does a run's record still hold? Recomputes the chain, every manifest and every file the ledger pins."""

from collections.abc import Iterator

from pydantic import JsonValue, ValidationError

from agent2rl.core.records import LedgerEntry, Manifest, Record, Submission
from agent2rl.grading.freeze import manifest_of
from agent2rl.store import ledger
from agent2rl.store.files import sha256_file
from agent2rl.store.paths import RunPaths


class Verification(Record):
    """`fault` names the first thing that does not hold."""

    holds: bool
    fault: str | None
    records: int
    files: int
    head: str
    notes: tuple[str, ...] = ()


def verify(paths: RunPaths, head: str | None = None) -> Verification:
    """Check a run; with `head`, also that the chain contains the record with this hash."""
    chain = ledger.read(paths.ledger, paths.ledger_head)
    fault = chain.fault
    if not chain.entries:
        fault = fault or "the ledger is empty"
    files = 0
    if fault is None and head is not None and head not in {entry.hash for entry in chain.entries}:
        fault = f"no ledger record has the hash {head}"
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
    records: dict[int, JsonValue] = {}
    kept: dict[int, bool] = {}
    for entry in entries:
        data = entry.data
        if entry.kind == "opened":
            yield _file(paths, "spec.json", data["spec_sha256"])
        elif entry.kind == "results":
            yield _file(paths, str(data["file"]), data["sha256"])
        elif entry.kind == "submitted" and data["manifest_sha256"]:
            manifests[_submission(entry).id] = data["manifest_sha256"]
        elif entry.kind == "graded":
            records[_submission(entry).id] = data["record_sha256"]
            kept[_submission(entry).id] = _submission(entry).kept
        elif entry.kind == "closed" and paths.result.exists():
            yield _file(paths, "result.json", data["result_sha256"])
    for number, digest in manifests.items():
        yield from _manifest(paths, number, digest, kept.get(number, True))
    for number, digest in records.items():
        yield _file(paths, paths.relative(paths.submission(number).record), digest)
    if paths.result.exists() and (not entries or entries[-1].kind != "closed"):
        yield "result.json is there, but the ledger was not closed"


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
    were = {file.path: file.sha256 for file in noted.files}
    are = {file.path: file.sha256 for file in found.files}
    for path in sorted(were | are):
        same = were.get(path) == are.get(path)
        change = "is missing" if path not in are else "was added" if path not in were else "was changed"
        yield None if same else f"{paths.relative(submission.model / path)} {change}"


def _file(paths: RunPaths, name: str, digest: JsonValue) -> str | None:
    path = paths.root / name
    if not path.is_file():
        return f"{name} is missing"
    return None if sha256_file(path) == digest else f"{name} was changed"


def _submission(entry: LedgerEntry) -> Submission:
    return Submission.model_validate(entry.data["submission"])


def _notes(paths: RunPaths, chain: ledger.Reading) -> Iterator[str]:
    if chain.torn:
        yield "the last ledger line was cut off in the middle of a write: a crash; all before it counts"
    if not paths.result.exists():
        yield "the run has no result: it is still going, or its harness died"
