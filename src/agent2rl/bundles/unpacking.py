"""Open and verify a bundle, which anybody may have made.

The whole file is read and checked before anything is written: form, names, sizes, hashes, and that the git
objects of the code do not inflate without end. Then it is read again and written into a private temporary
folder. A file that changes in between is refused, too, and what was written is deleted.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from pydantic import ValidationError

from agent2rl.bundles.archive import MAGIC, ArchiveReader, InvalidBundle, check_content
from agent2rl.bundles.bundle_record import (
    CODE,
    FOLDER,
    FORMAT,
    RECORD_BYTES,
    RECORD_NAME,
    SIGNATURE_BYTES,
    SIGNATURE_NAME,
    WEIGHTS,
    WEIGHTS_RATIO,
    BundleRecord,
    list_fingerprints,
)
from agent2rl.bundles.signatures import SignatureCheck, check_signature
from agent2rl.core.base_record import Record
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.grading_records import FileHash
from agent2rl.core.reproduction import Reproduction
from agent2rl.grading.verify import UncheckedFiles, Verification, find_additions_fault, verify_run
from agent2rl.record.git_objects import (
    CODE_CONFIG,
    INDEX_BYTES,
    InvalidObjects,
    ObjectScanner,
    read_index_offsets,
)
from agent2rl.record.ledger import AdditionsReading, read_additions
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.record.untrusted_files import find_fault as find_untrusted_fault

SUFFIX = ".tar.zst"
REPORT = "report/"
HINT = "Get it again from whoever made it: agent2rl bundle RUN. Nothing was written."

REPRODUCTIONS_SUFFIX = ".reproductions"

SelectFile = Callable[[FileHash], bool]


@dataclass(frozen=True)
class OpenedBundle:
    record: BundleRecord
    encoded: bytes
    """The record as it is in the file, which a signature covers."""
    signature: bytes | None
    paths: RunPaths
    """The run, in a temporary folder."""
    source: Path
    """The bundle."""

    @property
    def unchecked(self) -> UncheckedFiles:
        """What cannot be compared with the record."""
        return UncheckedFiles(self.record.unchecked)


def is_bundle(name: str) -> bool:
    """Return whether this is a file that claims to be a bundle."""
    path = Path(name)
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC or path.name.endswith(SUFFIX)
    except (OSError, ValueError):
        return False


def find_reproductions_folder(bundle: Path) -> Path:
    """Return where the reproductions of a bundle's run are by default: beside it."""
    return bundle.with_name(bundle.name.removesuffix(SUFFIX) + REPRODUCTIONS_SUFFIX)


def select_without_report_and_weights(file: FileHash) -> bool:
    """Select what readers need. A report is made from the record, never taken from the bundle."""
    return not file.path.startswith(REPORT) and not WEIGHTS.match(file.path)


def select_without_report(file: FileHash) -> bool:
    return not file.path.startswith(REPORT)


@contextmanager
def open_bundle(path: Path, select: SelectFile = select_without_report_and_weights) -> Iterator[OpenedBundle]:
    """Check a bundle and unpack the selected files into a folder that exists inside the context."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            record, encoded, signature = check_bundle(file)
            files = [each for each in record.files if select(each)]
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="agent2rl-bundle-")))
            _require_space(folder, files)
            paths = RunPaths(folder / record.run_id)
            _unpack_files(file, record, paths.root, {each.path for each in files})
        except InvalidBundle as error:
            raise UserError(f"{path} is refused: {error}.", HINT) from error
        except OSError as error:
            raise UserError(f"Cannot open {path}: {error.strerror or error}.") from error
        yield OpenedBundle(record, encoded, signature, paths, path)


def check_bundle(file: BinaryIO) -> tuple[BundleRecord, bytes, bytes | None]:
    """Read a whole bundle and return its record and signature; raise if anything is not as it must be."""
    return _read_bundle(file, _CodeChecker().check_file)


class _CodeChecker:
    """Checks the files of the record of code, as they come."""

    def __init__(self) -> None:
        self._offsets: dict[str, set[int]] = {}
        """By the name of a pack without suffix: the places that its index names."""

    def check_file(self, file: FileHash, content: Iterator[bytes]) -> None:
        try:
            self._check_file(file, content)
        except InvalidObjects as error:
            raise InvalidBundle(str(error)) from error

    def _check_file(self, file: FileHash, content: Iterator[bytes]) -> None:
        name, _, suffix = file.path.removeprefix(CODE).partition(".")
        if not file.path.startswith(CODE):
            return
        # git starts programs that a configuration names.
        if name == "config" and not CODE_CONFIG.fullmatch(b"".join(content)):
            raise InvalidBundle("the configuration of its record of code is not git's own")
        if suffix == "idx":
            if file.size > INDEX_BYTES:
                raise InvalidBundle("the index of its record of code is too large")
            self._offsets[name] = read_index_offsets(b"".join(content))
        elif name.startswith("objects/") and suffix != "rev":
            scanner = ObjectScanner.for_pack() if suffix else ObjectScanner.for_loose_object()
            for data in content:
                scanner.feed(data)
            if suffix and self._offsets.get(name, set()) != scanner.offsets:
                raise InvalidBundle("the index of its record of code does not fit the pack")


def _read_bundle(
    file: BinaryIO, handle: Callable[[FileHash, Iterator[bytes]], None]
) -> tuple[BundleRecord, bytes, bytes | None]:
    file.seek(0)
    reader = ArchiveReader(file)
    encoded = reader.read_bounded(RECORD_NAME, RECORD_BYTES)
    record = parse_record(encoded)
    weights, size = sum(each.size for each in record.weights), os.fstat(file.fileno()).st_size
    if weights > WEIGHTS_RATIO * size:
        raise InvalidBundle(f"{weights:,} bytes of weights cannot come out of a file of {size:,} bytes")
    signature = reader.read_bounded(SIGNATURE_NAME, SIGNATURE_BYTES) or None
    for each in record.files:
        content = check_content(
            each.path, reader.read_member(f"{FOLDER}/{each.path}", each.size), each.sha256
        )
        handle(each, content)
        for _ in content:  # what was not of interest
            pass
    reader.read_end()
    return record, encoded, signature


def parse_record(encoded: bytes) -> BundleRecord:
    """Parse the record of a bundle. Its version comes first, since another one may have other fields."""
    try:
        content = json.loads(encoded)
        version = content.get("format") if isinstance(content, dict) else None
    except (ValueError, RecursionError) as error:
        raise InvalidBundle("its record is not JSON") from error
    # Not `isinstance`: in Python, True is an integer too, and equals 1.
    if type(version) is not int or version != FORMAT:
        made_by = str(content.get("made_by"))[:40] if isinstance(content, dict) else "?"
        raise InvalidBundle(
            f"it has the format {version!r:.20}, and this version reads {FORMAT} (made by {made_by!r}): "
            "use the version of agent2rl that made it"
        )
    try:
        return BundleRecord.model_validate_json(encoded)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise InvalidBundle(f"{field}: {message}" if field else message) from error


def _require_space(folder: Path, files: list[FileHash]) -> None:
    needed, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if needed > 0.9 * free:
        raise MachineError(
            f"The bundle needs {needed >> 20:,} MiB in {folder.parent}, where {free >> 20:,} MiB are free.",
            "Free some space, or set TMPDIR to a directory elsewhere.",
        )


def _unpack_files(file: BinaryIO, record: BundleRecord, root: Path, names: set[str]) -> None:
    def write(entry: FileHash, content: Iterator[bytes]) -> None:
        if entry.path not in names:
            return
        target = root / entry.path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.open("xb") as opened:
            opened.writelines(content)

    if _read_bundle(file, write)[0] != record:
        raise InvalidBundle("it changed while it was read")
    if (root / CODE).is_dir():  # git wants these, and a bundle has no empty folders
        for name in ("objects", "refs"):
            (root / CODE / name).mkdir(exist_ok=True)


# Verify a bundle: its form, its signature, and the record of the run that is in it.


class ReproductionsBeside(Record):
    """A folder of reproductions beside a bundle, which is no part of it."""

    folder: str
    fault: str | None
    """The first fault in its record; None if it holds and belongs to the run."""
    head: str = ""
    """The hash of its last record."""
    answers: tuple[Reproduction, ...] = ()
    """Oldest first; empty if there is a fault."""


class BundleVerification(Verification):
    """The result of verifying a bundle. `holds` is about the record; see `accepted`."""

    run_id: str
    signature: SignatureCheck
    signature_required: bool
    """Whether allowed signers were named."""
    beside: ReproductionsBeside | None = None
    """What somebody found out about the run after it was bundled; None if there is nothing."""

    @property
    def accepted(self) -> bool:
        """Whether all records hold and the signature is as required."""
        state = self.signature.state
        holds = self.holds and (self.beside is None or self.beside.fault is None)
        return holds and state != "invalid" and (state == "valid" or not self.signature_required)


def read_reproductions(folder: Path, run_head: str) -> ReproductionsBeside | None:
    """Read and verify a folder of reproductions of the run with this head; None if there is none."""
    if not os.path.lexists(folder):
        return None
    paths = RunPaths(folder)
    if folder.is_symlink() or not folder.is_dir():
        fault: str | None = "it is not a folder"
    elif problem := find_untrusted_fault(paths):
        fault = f"it {problem}"
    else:
        fault = find_additions_fault(paths, run_head)
    added = read_additions(paths, run_head) if fault is None else AdditionsReading()
    return ReproductionsBeside(
        folder=folder.name, fault=fault, head=added.head, answers=added.list_reproductions()
    )


def verify_bundle(
    bundle: OpenedBundle,
    head: str | None = None,
    signers: Path | None = None,
    reproductions: Path | None = None,
) -> BundleVerification:
    """Verify an opened bundle, of which no weights were left packed, and the reproductions beside it."""
    signature = check_signature(bundle.encoded, bundle.signature, signers)
    verification = verify_run(bundle.paths, head, bundle.unchecked)
    fields = verification.model_dump(exclude={"notes", "not_covered"})
    if verification.holds and (fault := _find_mismatch(bundle, verification)):
        fields |= {"holds": False, "fault": fault}
    return BundleVerification(
        **fields,
        notes=verification.notes,
        not_covered=verification.not_covered,
        run_id=bundle.record.run_id,
        signature=signature,
        signature_required=signers is not None,
        beside=read_reproductions(
            reproductions or find_reproductions_folder(bundle.source), verification.head
        ),
    )


def _find_mismatch(bundle: OpenedBundle, verification: Verification) -> str | None:
    """Return what the bundle's own record says wrongly of the run, or None."""
    record = bundle.record
    try:
        view = read_run(bundle.paths)
    except UserError as error:
        return error.message
    if view.result is None:
        return "the run has no readable result"
    opened = next((entry.data.get("run_id") for entry in view.chain.entries if entry.kind == "opened"), None)
    if not record.run_id == view.result.run_id == opened:
        return "the bundle names another run than the record"
    if record.ledger_head != verification.head:
        return "the bundle names another last ledger record"
    if record.fingerprints != list_fingerprints(view):
        return "the bundle names other fingerprints than the record"
    return None
