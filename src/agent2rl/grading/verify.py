"""Verify a run's record: recompute the chain, every manifest, every file and every code revision.

When a run is closed, the ledger pins every file of the run directory through `files.json`. Before that, and
in runs of older versions, it pins files one by one. Files that are not covered are listed with the reason.
"""

import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import JsonValue, ValidationError

from agent2rl.core.grading_records import Manifest, Submission, describe_kept_weights
from agent2rl.core.records import LedgerEntry, Record, RunFiles
from agent2rl.grading.freeze import compute_manifest
from agent2rl.record import ledger
from agent2rl.record.files import canonical_json_line, read_regular_file, sha256_beginning, sha256_file
from agent2rl.record.ledger import AdditionsReading, read_additions
from agent2rl.record.paths import RunPaths, is_plain_file, list_run_files, uncovered_reasons
from agent2rl.record.reader import read_events
from agent2rl.record.revisions import NamedRevision, check_revisions
from agent2rl.record.untrusted_files import sanitize_line

PINS = ("results", "lineage", "contamination", "usage", "network", "account")
"""Kinds of entries that pin a file."""
STATES = ("submitted", "graded", "dropped")
"""Kinds of entries with the state of a submission."""
LONGEST_NAME = 300
LONGEST_FAULT = 1000


class UncoveredFiles(Record):
    """Files of a run directory that the ledger does not pin."""

    path: str
    """Relative to the run directory; a folder ends with `/`, and `*` is any submission."""
    reason: str


class Verification(Record):
    """The result of a verification. `fault` describes the first fault."""

    holds: bool
    fault: str | None
    records: int
    files: int
    head: str
    additions: int = 0
    """Records that were added after the run was closed."""
    additions_head: str | None = None
    """The hash of the last of them; None if there is none."""
    notes: tuple[str, ...] = ()
    not_covered: tuple[UncoveredFiles, ...] = ()


@dataclass(frozen=True)
class UncheckedFiles:
    """Files that a copy of a run lacks or has changed, as the copy itself says: path → reason.

    A path that ends with `/` is a folder.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return any(name == path or (path.endswith("/") and name.startswith(path)) for path in self.reasons)


ALL_CHECKED = UncheckedFiles()


def verify_run(
    paths: RunPaths,
    head: str | None = None,
    unchecked: UncheckedFiles = ALL_CHECKED,
    may_have_additions: bool = True,
) -> Verification:
    """Verify a run; with `head`, also that its last record has this hash.

    `unchecked` files are listed as not covered, in place of being compared.
    """
    chain = ledger.read_ledger(paths.ledger, paths.ledger_head)
    fault = chain.fault
    if not chain.entries:
        fault = fault or "the ledger is empty"
    added = read_additions(paths, chain.entries[-1].hash if chain.entries else "")
    files = 0
    if fault is None and head is not None and head != chain.entries[-1].hash:
        fault = f"the last ledger record is not the one with the hash {head}"
    if fault is None:
        own_faults = _find_faults(paths, chain.entries, unchecked)
        addition_faults = _find_addition_faults(paths, added, may_have_additions, unchecked)
        for fault in itertools.chain(own_faults, addition_faults):
            if fault is not None:
                break
            files += 1
    return Verification(
        holds=fault is None,
        fault=None if fault is None else sanitize_line(fault, LONGEST_FAULT),
        records=len(chain.entries),
        files=files,
        head=chain.entries[-1].hash if chain.entries else "",
        additions=len(added.entries),
        additions_head=added.head or None,
        notes=tuple(_list_notes(paths, chain, added)),
        not_covered=tuple(_list_uncovered(paths, chain.entries, unchecked)),
    )


def find_additions_fault(paths: RunPaths, run_head: str) -> str | None:
    """Return the first fault in what was added to a run whose ledger ends with this hash."""
    added = read_additions(paths, run_head)
    faults = (fault for fault in _find_addition_faults(paths, added, True, ALL_CHECKED) if fault)
    return sanitize_line(fault, LONGEST_FAULT) if (fault := next(faults, None)) else None


def _find_addition_faults(
    paths: RunPaths, added: AdditionsReading, may_exist: bool, unchecked: UncheckedFiles
) -> Iterator[str | None]:
    """Check what was added after the run was closed, with the run of each reproduction."""
    if added.fault:
        yield added.fault
        return
    # `reproduce` deletes what is left over in this folder, so it may not lead elsewhere.
    if paths.reproductions.is_symlink() or (
        paths.reproductions.exists() and not paths.reproductions.is_dir()
    ):
        yield f"{paths.reproductions.name} is not a folder"
        return
    if added.entries and not may_exist:
        yield f"{paths.additions.name} was added"
        return
    for reproduction in added.list_reproductions():
        if reproduction.run is None:
            continue
        where = paths.reproduction_paths(reproduction.run)
        name = _sanitize_name(f"{paths.reproductions.name}/{reproduction.run}")
        if name in unchecked:
            continue
        # A record of somebody else may name any place.
        is_below = where.root.parent == paths.reproductions and where.run_id != ".."
        if not is_below or where.root.is_symlink() or not where.ledger.exists():
            yield f"{name} is missing"
            continue
        # Without additions of its own, so that no record leads deeper and deeper.
        verification = verify_run(where, reproduction.run_head, may_have_additions=False)
        yield None if verification.holds else f"{name}: {verification.fault}"


def _find_faults(
    paths: RunPaths, entries: tuple[LedgerEntry, ...], unchecked: UncheckedFiles
) -> Iterator[str | None]:
    """Yield None for each passed check and a sentence for each fault, in the ledger's order."""
    manifests: dict[int, JsonValue] = {}
    latest: dict[int, Submission] = {}
    graded: set[int] = set()
    pins = {str(entry.data.get("file")): entry.index for entry in entries if entry.kind in PINS}
    for entry in entries:
        data = entry.data
        try:
            if entry.kind == "opened":
                yield _check_file(paths, "spec.json", data["spec_sha256"])
            elif entry.kind in PINS and data["sha256"] is not None:
                name = str(data["file"])
                if pins[name] == entry.index and name not in unchecked:  # a resumed run may have rewritten it
                    yield _check_file(paths, name, data["sha256"])
            elif entry.kind in STATES:
                submission = Submission.model_validate(data["submission"])
                latest[submission.id] = submission
                if entry.kind == "graded" and submission.id in graded:
                    yield f"ledger record {entry.index} grades submission {submission.id} a second time"
                graded |= {submission.id} if entry.kind == "graded" else set()
                if entry.kind == "submitted":
                    manifests[submission.id] = data["manifest_sha256"]
            elif entry.kind == "closed":  # a crash may have come before the result was in place
                pending = paths.pending_result.exists() and not paths.result.exists()
                place = paths.pending_result if pending else paths.result
                yield _check_file(paths, paths.relative_name(place), data["result_sha256"])
        except (KeyError, ValidationError):
            yield f"ledger record {entry.index} ({entry.kind}) is not a valid record of its kind"
    for number, submission in latest.items():
        if manifests.get(number):
            copied = f"{paths.relative_name(paths.submission_paths(number).model)}/" not in unchecked
            yield from _check_manifest(paths, number, manifests[number], submission.kept and copied)
        if submission.id != _find_submission_id(entries[-1]):
            yield _check_submission_record(paths, submission)
    yield from _find_unknown_submissions(paths, set(latest))
    if pin := _find_files_pin(entries):
        yield from _check_run_files(paths, entries, pin, latest, unchecked)
    if f"{paths.relative_name(paths.revisions)}/" not in unchecked:
        yield from _check_code(paths, entries)
    if paths.result.exists() and (not entries or entries[-1].kind != "closed"):
        yield "result.json is there, but the ledger was not closed"


def _find_files_pin(entries: Sequence[LedgerEntry]) -> LedgerEntry | None:
    """Return the record that pins every file, unless the run continued after it."""
    last = [entry for entry in entries[-2:] if entry.kind != "closed"][-1:]
    return last[0] if last and last[0].kind == "files" else None


def _check_run_files(
    paths: RunPaths,
    entries: Sequence[LedgerEntry],
    pin: LedgerEntry,
    submissions: dict[int, Submission],
    unchecked: UncheckedFiles,
) -> Iterator[str | None]:
    """Check that every file is unchanged since the run was closed, and that none was added."""
    name = paths.relative_name(paths.files)
    yield (fault := _check_file(paths, name, pin.data.get("sha256")))
    if fault is not None:
        return
    try:
        pinned = {
            file.path: file for file in RunFiles.model_validate_json(read_regular_file(paths.files)).files
        }
    except (OSError, ValidationError):
        yield f"{name} is not a valid file of its kind"
        return
    timeline = paths.relative_name(paths.events)
    for file in pinned.values():
        if file.path in unchecked:
            continue
        if file.path == timeline:
            yield _check_timeline(paths, file.size, file.sha256, entries[pin.index :])
        else:
            yield _check_file(paths, file.path, file.sha256)
    for path in list_run_files(paths):
        # A draft that a crash left: files are renamed when they are complete.
        crashed = not paths.result.exists() and re.fullmatch(r"\..+\.new", path.name)
        if paths.relative_name(path) not in pinned and not crashed:
            yield f"{_sanitize_name(paths.relative_name(path))} was added"
    if paths.result.exists() and paths.pending_result.exists():
        yield f"{paths.relative_name(paths.pending_result)} was added"
    for submission in submissions.values():
        copy = paths.submission_paths(submission.id).model
        if copy.exists() and not submission.kept:
            yield f"{paths.relative_name(copy)} was added: the ledger says that the copy was not kept"


def _check_timeline(paths: RunPaths, size: int, digest: str, later: Sequence[LedgerEntry]) -> str | None:
    """Check that the pinned timeline is unchanged and followed only by lines from the ledger."""
    name = paths.relative_name(paths.events)
    if not is_plain_file(paths.events):
        return _describe_missing_file(paths, name)
    expected = "".join(canonical_json_line(ledger.make_timeline_event(entry)) for entry in later).encode()
    # One byte more than expected tells whether anything follows.
    beginning, rest = sha256_beginning(paths.events, size, len(expected) + 1)
    if beginning != digest:
        return f"{name} was changed"
    crashed = not paths.result.exists() and expected.startswith(rest)
    if rest == expected or crashed:
        return None
    continued = rest.startswith(expected)
    return f"{name} was changed: " + (
        "it goes on after the run was closed" if continued else "its last lines are not what the ledger says"
    )


def _check_code(paths: RunPaths, entries: Sequence[LedgerEntry]) -> Iterator[str | None]:
    """Check every code revision that the ledger or the timeline names."""
    named, head = _list_ledger_revisions(entries)
    if any(entry.kind == "started" for entry in entries):
        named += _list_timeline_revisions(paths)
    yield from check_revisions(paths.revisions, named, head)


def _list_ledger_revisions(entries: Sequence[LedgerEntry]) -> tuple[list[NamedRevision], str | None]:
    """Return the revisions in the ledger, and the last one unless a resumed run may have taken more since."""
    named: list[NamedRevision] = []
    head: str | None = None
    for entry in entries:
        if entry.kind in ("revision_of", "revisions"):
            number, commit = entry.data.get("number"), entry.data.get("commit", entry.data.get("head"))
            if isinstance(number, int) and isinstance(commit, str):
                named.append(NamedRevision(number, commit, f"ledger record {entry.index}"))
            head = named[-1].commit if named and entry.kind == "revisions" else head
        elif entry.kind == "resumed":
            head = None
    return named, head


def _list_timeline_revisions(paths: RunPaths) -> list[NamedRevision]:
    """Return the timeline's revisions, without those from before a crash that preceded the agent's start."""
    named: list[NamedRevision] = []
    started = False
    for event in read_events(paths, []):
        number, commit = event.data.get("number"), event.data.get("commit")
        if event.kind == "revision" and isinstance(number, int) and isinstance(commit, str):
            named.append(NamedRevision(number, commit, paths.relative_name(paths.events)))
        elif event.kind == "resumed" and not started:
            named.clear()
        started = started or event.kind == "started"
    return named


def _find_submission_id(entry: LedgerEntry) -> JsonValue:
    """Return the submission of the last record: a crash may have come before its file was written."""
    submission = entry.data.get("submission")
    return submission.get("id") if isinstance(submission, dict) else None


def _check_submission_record(paths: RunPaths, submission: Submission) -> str | None:
    """Check that submission.json matches the last ledger record about it."""
    path = paths.submission_paths(submission.id).record
    try:
        recorded = Submission.model_validate_json(read_regular_file(path))
    except (OSError, ValidationError):
        return f"{paths.relative_name(path)} is missing or cannot be read"
    return None if recorded == submission else f"{paths.relative_name(path)} was changed"


def _find_unknown_submissions(paths: RunPaths, numbers: set[int]) -> Iterator[str]:
    """Yield submissions that are not in the ledger. The last one may be a copy that a crash interrupted."""
    for path in sorted(paths.submissions.glob("*")):
        interrupted = path.name == str(len(numbers) + 1) and not (path / "submission.json").exists()
        if path.name not in map(str, numbers) and not interrupted:
            yield f"{paths.relative_name(path)} is not in the ledger, so it was added"


def _check_manifest(paths: RunPaths, number: int, digest: JsonValue, is_kept: bool) -> Iterator[str | None]:
    submission = paths.submission_paths(number)
    name = paths.relative_name(submission.manifest)
    yield (fault := _check_file(paths, name, digest))
    if fault is not None or not is_kept:
        return
    try:
        noted = Manifest.model_validate_json(read_regular_file(submission.manifest))
        manifest = compute_manifest(submission.model)
    except (ValidationError, OSError) as error:
        yield f"{paths.relative_name(submission.model)} cannot be read: {type(error).__name__}"
        return
    links = [path for path in submission.model.rglob("*") if path.is_symlink()]
    yield f"{paths.relative_name(links[0])} was added" if links else None
    were = {file.path: file.sha256 for file in noted.files}
    are = {file.path: file.sha256 for file in manifest.files}
    for path in sorted(were | are):
        same = were.get(path) == are.get(path)
        change = "is missing" if path not in are else "was added" if path not in were else "was changed"
        yield None if same else f"{paths.relative_name(submission.model / path)} {change}"


def _check_file(paths: RunPaths, name: str, digest: JsonValue) -> str | None:
    path = paths.root / name
    if not is_plain_file(path):
        return _describe_missing_file(paths, name)
    try:
        return None if sha256_file(path) == digest else f"{name} was changed"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"


def _describe_missing_file(paths: RunPaths, name: str) -> str:
    there = os.path.lexists(paths.root / name)
    return f"{_sanitize_name(name)} is not a plain file" if there else f"{_sanitize_name(name)} is missing"


def _sanitize_name(name: str) -> str:
    """Return an untrusted name as one line."""
    return sanitize_line(name, LONGEST_NAME)


def _list_notes(paths: RunPaths, chain: ledger.LedgerReading, added: AdditionsReading) -> Iterator[str]:
    if chain.torn:
        yield "the last ledger line was cut off in the middle of a write: a crash; all before it counts"
    if not paths.result.exists():
        closed = bool(chain.entries) and chain.entries[-1].kind == "closed"
        yield (
            "the run was closed, but the harness crashed before result.json was in place; `resume` fixes it"
            if closed
            else "the run has no result: it is still running, or the harness crashed"
        )
    for entry in chain.entries:
        if entry.kind == "baseline" and entry.data.get("cached"):
            yield _describe_cached_baseline(entry)
    submissions = _read_submissions(chain.entries)
    if paths.reproductions.is_dir() and not added.fault:
        recorded = {each.run for each in added.list_reproductions()}
        for path in sorted(paths.reproductions.iterdir()):
            if path.name not in recorded:
                yield f"{_sanitize_name(paths.relative_name(path))} is not a finished reproduction"
    if any(each.content_sha256 and not each.kept for each in submissions.values()):
        kept = describe_kept_weights(submissions.values())
        yield f"weights were kept {kept}; of the others, manifests and results are checked"


def _read_submissions(entries: Sequence[LedgerEntry]) -> dict[int, Submission]:
    """Return the last record of each submission; unreadable ones are skipped."""
    latest: dict[int, Submission] = {}
    for entry in entries:
        if entry.kind in STATES:
            with suppress(ValidationError):
                submission = Submission.model_validate(entry.data.get("submission"))
                latest[submission.id] = submission
    return latest


def _describe_cached_baseline(entry: LedgerEntry) -> str:
    run, at = entry.data.get("measured_by"), entry.data.get("measured_at")
    source = "the ledger does not say of which run"
    if isinstance(run, str) and isinstance(at, int | float):
        with suppress(OverflowError, ValueError, OSError):  # a time that no calendar has
            measured_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
            source = f"run {_sanitize_name(run)} measured it at {measured_at}"
    split = _sanitize_name(str(entry.data.get("split")))
    return f"the baseline ({split}) was not measured in this run but taken from the cache: {source}"


def _list_uncovered(
    paths: RunPaths, entries: Sequence[LedgerEntry], unchecked: UncheckedFiles
) -> Iterator[UncoveredFiles]:
    reasons = {
        paths.relative_name(path) + "/" * path.is_dir(): reason
        for path, reason in uncovered_reasons(paths).items()
        if path.exists()
    }
    if paths.reproductions.exists():
        reasons[f"{paths.reproductions.name}/*/workspace/"] = uncovered_reasons(paths)[paths.workspace]
    if not _find_files_pin(entries):
        closed = bool(entries) and entries[-1].kind == "closed"
        why = (
            "the run was closed by a version that did not pin it"
            if closed
            else "pinned when the run is closed"
        )
        reasons |= dict.fromkeys(_list_unpinned(paths, entries), why)
        if paths.revisions.exists():
            last = max((one.number for one in _list_ledger_revisions(entries)[0]), default=0)
            reasons["revisions/"] = f"only its history up to revision {last} is covered; {why}"
    reasons |= unchecked.reasons
    yield from (UncoveredFiles(path=path, reason=reasons[path]) for path in sorted(reasons))


def _list_unpinned(paths: RunPaths, entries: Sequence[LedgerEntry]) -> Iterator[str]:
    """Yield files that no record pins; the files of all submissions share one name."""
    pinned = {"spec.json", *(str(entry.data.get("file")) for entry in entries if entry.kind in PINS)}
    for path in list_run_files(paths):
        name = paths.relative_name(path)
        covered = name in pinned or path.name in ("submission.json", "manifest.json")
        if not covered and not path.is_relative_to(paths.revisions):
            yield _sanitize_name(re.sub(r"^submissions/[^/]+/", "submissions/*/", name))
    closed = entries[-1].kind == "closed" if entries else False
    for path in (paths.files, *(() if closed else (paths.result, paths.pending_result))):
        if path.exists():
            yield paths.relative_name(path)
    kept = {str(each.id) for each in _read_submissions(entries).values() if each.kept}
    if any(copy.parent.name not in kept for copy in paths.submissions.glob("*/model")):
        yield "submissions/*/model/ of copies that were not kept"
