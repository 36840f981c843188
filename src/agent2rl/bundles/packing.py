"""Write a run into a bundle.

Only a finished run whose record holds is written. Everything that the ledger pins goes in, a current report,
and the logs of the workspace from which the report draws training curves. Weights stay out unless asked for.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from pydantic import ValidationError

from agent2rl import __version__
from agent2rl.bundles.archive import LEVEL, WEIGHTS_LEVEL, ArchiveMember, write_archive
from agent2rl.bundles.bundle_record import (
    CODE,
    FILE_BYTES,
    FOLDER,
    FORMAT,
    RECORD_NAME,
    REPRODUCTIONS,
    SCRUBBABLE,
    SIGNATURE_NAME,
    WEIGHTS,
    BundleRecord,
    LeftOutFiles,
    ScrubbedFile,
    find_collision,
    find_name_fault,
    list_fingerprints,
)
from agent2rl.bundles.secret_scan import FoundSecret, SecretScanner, refuse_secrets, scan_code
from agent2rl.bundles.signatures import sign_record
from agent2rl.core.errors import UserError
from agent2rl.core.events import FileSeen
from agent2rl.core.grading_records import FileHash
from agent2rl.grading.verify import verify_run
from agent2rl.record.paths import RunPaths, is_plain_file, list_run_files
from agent2rl.record.reader import RunView, read_events, read_finished_run
from agent2rl.record.untrusted_files import open_plain_file
from agent2rl.report import run_report
from agent2rl.report.digests import read_cached_digest

LOG_BYTES, LOGS_BYTES = 32 << 20, 128 << 20
"""Limits of one log of the workspace, and of all together: what the report reads of them."""
MOST_LOGS = 400
READ_BYTES = 1 << 20
NOT_SECRET_HINT = "If it is not a secret, pass --not-secret NAME (the name in brackets)."


@dataclass(frozen=True)
class BundleOptions:
    with_model: bool = False
    without_code: bool = False
    key: Path | None = None
    """The SSH key to sign with."""


DEFAULT_OPTIONS = BundleOptions()


@dataclass(frozen=True)
class WrittenBundle:
    record: BundleRecord
    path: Path
    size: int
    secrets: tuple[FoundSecret, ...]
    """What was replaced."""


@dataclass(frozen=True)
class _SourceFile:
    path: str
    """Its name in the bundle."""
    root: Path
    name: str
    """Its path below `root`."""

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        try:
            with open_plain_file(self.root, self.name) as file:
                yield file
        except OSError as error:
            raise UserError(f"Cannot read {self.path}: {error.strerror or error}.") from error

    def read(self) -> bytes:
        with self.open() as file:
            content = file.read(FILE_BYTES + 1)
        if len(content) > FILE_BYTES:
            raise UserError(f"{self.path} is larger than {FILE_BYTES >> 30} GiB.", "A bundle cannot hold it.")
        return content


def write_bundle(
    paths: RunPaths, target: Path, scanner: SecretScanner, options: BundleOptions = DEFAULT_OPTIONS
) -> WrittenBundle:
    """Write a run into a new file. Nothing is left behind if it fails."""
    if target.exists():
        raise UserError(f"{target} already exists.", "Choose another name with --output, or delete it.")
    view = read_finished_run(paths)
    head = _require_intact_record(paths)
    with TemporaryDirectory(prefix="agent2rl-bundle-") as folder:
        left_out = list(_list_left_out(view, options))
        if options.with_model:
            _require_best_weights(view)
        sources = _list_sources(view, _find_report(paths, Path(folder)), left_out)
        if paths.revisions.is_dir() and not options.without_code:
            hint = "Leave the agent's code out: --without-code. A commit cannot be changed. "
            refuse_secrets(scan_code(paths.revisions, scanner), hint + NOT_SECRET_HINT)
        record, secrets = _make_record(view, head, sources, left_out, scanner)
        size = _write_file(target, record, sources, scanner, options.key)
    return WrittenBundle(record, target, size, tuple(secrets))


def _require_intact_record(paths: RunPaths) -> str:
    """Return the head of the ledger. A bundle is evidence, so a record that does not hold is refused."""
    verification = verify_run(paths)
    if not verification.holds:
        raise UserError(
            f"The record of {paths.run_id} does not hold: {verification.fault}.",
            "A bundle is evidence, so this run cannot be bundled. Look at it with `agent2rl verify`.",
        )
    return verification.head


def _require_best_weights(view: RunView) -> None:
    best = view.result.best if view.result else None
    if best is None or not view.paths.submission_paths(best.id).model.is_dir():
        raise UserError(
            f"{view.paths.run_id} has no weights of a best submission.",
            "Leave out --with-model. `--keep` of a run decides which weights are kept.",
        )


def _list_left_out(view: RunView, options: BundleOptions) -> Iterator[LeftOutFiles]:
    best = view.result.best.id if view.result and view.result.best else None
    for submission in view.submissions:
        folder = view.paths.submission_paths(submission.id).model
        if folder.is_dir() and not (options.with_model and submission.id == best):
            reason = "the weights are not in the bundle; their hashes are in the manifest"
            yield LeftOutFiles(path=f"{view.paths.relative_name(folder)}/", reason=reason)
    if view.paths.reproductions.is_dir():
        reason = "the record has the results of reproductions, and the last hash of their ledgers"
        yield LeftOutFiles(path=REPRODUCTIONS, reason=reason)
    if options.without_code and view.paths.revisions.is_dir():
        yield LeftOutFiles(path=CODE, reason="the agent's code was left out when it was bundled")


def _find_report(paths: RunPaths, folder: Path) -> Path:
    """Return the folder with the run's report; if there is none of the finished run, one that is made now."""
    if read_cached_digest(paths) and all(
        is_plain_file(path) for path in (paths.report_json, paths.report_page, paths.report_text)
    ):
        return paths.report
    run_report.write_report(paths, folder=folder / paths.report.name)
    return folder / paths.report.name


def _list_sources(view: RunView, report: Path, left_out: Sequence[LeftOutFiles]) -> list[_SourceFile]:
    """Return every file of the bundle, sorted."""
    paths = view.paths
    record = [*list_run_files(paths), paths.ledger, paths.ledger_head, paths.files, paths.result]
    for model in paths.submissions.glob("*/model"):
        record += [path for path in model.rglob("*") if not path.is_dir() or path.is_symlink()]
    may_lack = {paths.files, paths.additions, paths.additions_head}
    record += [paths.additions, paths.additions_head]
    names = {paths.relative_name(path) for path in record if path not in may_lack or path.exists()}
    names = {name for name in names if not any(name.startswith(each.path) for each in left_out)}
    sources = [_SourceFile(name, paths.root, name) for name in names]
    sources += [
        _SourceFile(f"{paths.report.name}/{name}", report, name)
        for path in report.rglob("*")
        if path.name != paths.page_signature.name  # by this user's key, so it means nothing elsewhere
        and is_plain_file(path)
        and not find_name_fault(name := path.relative_to(report).as_posix())
    ]
    sources += _list_logs(paths)
    for source in sources:
        if fault := find_name_fault(source.path):
            raise UserError(
                f"{source.path!r} cannot be in a bundle: {fault}.",
                "Remove it if it does not belong to the run.",
            )
    return sorted(sources, key=lambda source: source.path)


def _list_logs(paths: RunPaths) -> Iterator[_SourceFile]:
    """Yield the logs and metrics of the workspace that the timeline names, as far as the limits go."""
    bytes_left = LOGS_BYTES
    names: list[str] = []
    for event in read_events(paths, []):
        path = _parse_log(event.data) if event.kind == "file" else None
        name = f"{paths.workspace.name}/{path}"
        if path is None or name in names or len(names) >= MOST_LOGS:
            continue
        if find_name_fault(name) or find_collision([*names, name]):
            continue  # an agent must not be able to prevent a bundle by the names of its logs
        try:
            with open_plain_file(paths.workspace, path) as file:
                size = os.fstat(file.fileno()).st_size
        except OSError:
            continue
        if size <= min(LOG_BYTES, bytes_left):
            bytes_left -= size
            names.append(name)
            yield _SourceFile(name, paths.workspace, path)


def _parse_log(data: object) -> str | None:
    with suppress(ValidationError):
        file_event = FileSeen.model_validate(data)
        return None if file_event.what == "weights" else file_event.path
    return None


def _make_record(
    view: RunView,
    head: str,
    sources: Iterable[_SourceFile],
    left_out: Iterable[LeftOutFiles],
    scanner: SecretScanner,
) -> tuple[BundleRecord, list[FoundSecret]]:
    files: list[FileHash] = []
    scrubbed: list[ScrubbedFile] = []
    replaced: list[FoundSecret] = []
    refused: list[FoundSecret] = []
    for source in sources:
        if _is_streamed(source):
            files.append(_hash_source(source))
            continue
        original = source.read()
        content, secrets = scanner.replace_secrets(original, source.path)
        if secrets and SCRUBBABLE.fullmatch(source.path):
            digest = hashlib.sha256(original).hexdigest()
            scrubbed.append(ScrubbedFile(path=source.path, secrets=len(secrets), original_sha256=digest))
            replaced += secrets
        else:
            refused += secrets
        digest = hashlib.sha256(content).hexdigest()
        files.append(FileHash(path=source.path, size=len(content), sha256=digest))
    refuse_secrets(refused, f"Scores and decisions are read from these files. {NOT_SECRET_HINT}")
    fields = {
        "format": FORMAT,
        "made_by": __version__,
        "run_id": view.paths.run_id,
        "ledger_head": head,
        "fingerprints": list_fingerprints(view),
        "left_out": tuple(left_out),
        "scrubbed": tuple(scrubbed),
        "files": tuple(files),
    }
    try:
        return BundleRecord.model_validate(fields), replaced
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UserError(f"{view.paths.run_id} cannot be bundled: {reason}.") from error


def _is_streamed(source: _SourceFile) -> bool:
    """Return whether the file is copied as it is: tensors, and git objects, which are searched as objects."""
    return source.path.startswith(CODE) or bool(
        WEIGHTS.match(source.path) and source.path.endswith(".safetensors")
    )


def _hash_source(source: _SourceFile) -> FileHash:
    digest, size = hashlib.sha256(), 0
    with source.open() as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
            size += len(data)
    return FileHash(path=source.path, size=size, sha256=digest.hexdigest())


def _write_file(
    target: Path,
    record: BundleRecord,
    sources: Iterable[_SourceFile],
    scanner: SecretScanner,
    key: Path | None,
) -> int:
    """Write the bundle beside its place, then move it there; return its size."""
    encoded = encode_record(record)
    signature = sign_record(encoded, key) if key else None
    temporary = target.with_name(f".{target.name}.{os.getpid()}.new")
    members = _list_members(record, encoded, signature, sources, scanner)
    try:
        with temporary.open("xb") as file:
            write_archive(file, members, WEIGHTS_LEVEL if record.weights else LEVEL)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(target)
    except OSError as error:
        raise UserError(
            f"Cannot write {target}: {error.strerror}.", "Choose another place: --output."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return size


def encode_record(record: BundleRecord) -> bytes:
    return record.model_dump_json(indent=1).encode() + b"\n"


def _list_members(
    record: BundleRecord,
    encoded: bytes,
    signature: bytes | None,
    sources: Iterable[_SourceFile],
    scanner: SecretScanner,
) -> Iterator[ArchiveMember]:
    yield ArchiveMember(RECORD_NAME, len(encoded), [encoded])
    # There without a signature too, empty: there is one form of archive.
    yield ArchiveMember(SIGNATURE_NAME, len(signature or b""), [signature or b""])
    for file, source in zip(record.files, sources, strict=True):
        yield ArchiveMember(f"{FOLDER}/{file.path}", file.size, _read_again(file, source, scanner))


def _read_again(file: FileHash, source: _SourceFile, scanner: SecretScanner) -> Iterator[bytes]:
    """Yield the content that was hashed; anything else is an error."""
    digest = hashlib.sha256()
    for data in _read_parts(source, scanner):
        digest.update(data)
        yield data
    if digest.hexdigest() != file.sha256:
        raise UserError(
            f"{file.path} changed while it was bundled.", "Try again when nothing writes to the run."
        )


def _read_parts(source: _SourceFile, scanner: SecretScanner) -> Iterator[bytes]:
    if not _is_streamed(source):
        yield scanner.replace_secrets(source.read(), source.path)[0]
        return
    with source.open() as file:
        while data := file.read(READ_BYTES):
            yield data
