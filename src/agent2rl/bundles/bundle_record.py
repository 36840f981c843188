"""The record of a bundle: what is in it, what is not, and which names and sizes are accepted.

A name is accepted if every system can create it and no reader can take it for another one. Of the code's git
repository only data are accepted: no hooks, no configuration but git's own for a bare repository, nothing
that refers to other folders.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agent2rl.core.grading_records import FileHash
from agent2rl.core.records import Record
from agent2rl.record.files import sha256_file
from agent2rl.record.reader import RunView

FORMAT = 1
RECORD_NAME, SIGNATURE_NAME, FOLDER = "bundle.json", "bundle.json.sig", "run"
"""Members of the archive: this record, its signature, and the folder with the files of the run."""
REQUIRED = ("spec.json", "ledger.jsonl", "ledger.head", "result.json")
RECORD_BYTES, SIGNATURE_BYTES = 16 << 20, 16 << 10
MOST_FILES = 50_000
FILE_BYTES, TOTAL_BYTES = 1 << 30, 2 << 30
"""Limits without weights. The largest files are the agent's log (512 MiB) and its code (640 MiB)."""
WEIGHTS_BYTES = 1 << 40
WEIGHTS_RATIO = 64
"""Weights may be this many times as large as the bundle. Real ones shrink to half, at best."""
LONGEST_PATH = 96
DEEPEST = 8

PART = re.compile(r"[A-Za-z0-9_@+=,-][A-Za-z0-9_@+=,.~-]*", re.ASCII)
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}", re.ASCII)
WEIGHTS = re.compile(r"submissions/[1-9][0-9]{0,8}/model/")
REPRODUCTIONS = "reproductions/"
CODE = "revisions/"
CODE_FILES = re.compile(
    r"HEAD|config|description|packed-refs|info/exclude|refs/heads/[a-z]+"
    r"|objects/[0-9a-f]{2}/[0-9a-f]{38}|objects/pack/pack-[0-9a-f]{40}\.(pack|idx|rev)"
)
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
SCRUBBABLE = re.compile(
    r"agent\.log|events\.jsonl|usage\.jsonl|network\.jsonl|transcript\.json|claims\.json|contamination\.log"
    r"|(submissions/[0-9]+|ablations/[^/]+|baseline|also/[0-9]+/(baseline|best))/grading\.log|(workspace|report)/.*"
)
"""Files in which secrets may be replaced. No score, verdict or decision is read from them."""


class ScrubbedFile(Record):
    """A file in which secrets were replaced with as many stars."""

    path: str
    secrets: Annotated[int, Field(ge=1)]
    original_sha256: str


class LeftOutFiles(Record):
    """Files of the record that are not in the bundle."""

    path: str
    """A folder, ending with `/`."""
    reason: Annotated[str, Field(max_length=300)]


class InputFingerprint(Record):
    """The hash of an input: the specification, the model, a split, the agent's Python."""

    name: str
    sha256: str


class BundleRecord(Record):
    format: Literal[1]
    made_by: str
    """The version of agent2rl."""
    run_id: str
    ledger_head: str
    """The hash of the last ledger record, for `verify --head`."""
    fingerprints: tuple[InputFingerprint, ...]
    left_out: tuple[LeftOutFiles, ...] = ()
    scrubbed: tuple[ScrubbedFile, ...] = ()
    files: tuple[FileHash, ...]

    @model_validator(mode="after")
    def has_only_accepted_names(self) -> Self:
        fault = find_fault(self)
        if fault:
            raise ValueError(fault)
        return self

    @property
    def unchecked(self) -> dict[str, str]:
        """Files that cannot be compared with the ledger, and folders that are left out, with the reason."""
        scrubbed = {
            each.path: f"{each.secrets} {'secret was' if each.secrets == 1 else 'secrets were'} replaced "
            "with stars when it was bundled, so the ledger's hash does not apply"
            for each in self.scrubbed
        }
        return {**{each.path: each.reason for each in self.left_out}, **scrubbed}

    @property
    def weights(self) -> tuple[FileHash, ...]:
        return tuple(file for file in self.files if WEIGHTS.match(file.path))


def list_fingerprints(view: RunView) -> tuple[InputFingerprint, ...]:
    """Return the hashes of what the run began with."""
    assets = view.result.assets if view.result else ()
    python = view.agent_python
    return (
        InputFingerprint(name="specification", sha256=sha256_file(view.paths.spec)),
        *(InputFingerprint(name=asset.name, sha256=asset.sha256) for asset in assets),
        *([InputFingerprint(name="agent's Python", sha256=python.sha256)] if python else []),
    )


def find_fault(record: BundleRecord) -> str | None:
    """Return the first thing in a record that is not accepted."""
    names = [file.path for file in record.files]
    if not RUN_ID.fullmatch(record.run_id) or RESERVED.fullmatch(record.run_id.lower()):
        return f"the run id {record.run_id[:100]!r} is not accepted"
    for path in names:
        if fault := find_name_fault(path):
            return f"the name {path[:100]!r} is not accepted: {fault}"
    return find_listing_fault(names) or _find_size_fault(record) or _find_unchecked_fault(record)


def find_name_fault(path: str) -> str | None:
    """Return why a file of a run must not have this path, or None."""
    parts = path.split("/")
    if len(path) > LONGEST_PATH or len(parts) > DEEPEST:
        return "it is too long or too deep"
    for part in parts:
        if not PART.fullmatch(part) or part.endswith("."):
            return "it has other characters than letters, digits and . _ - @ + = , ~, or begins with a dot"
        if RESERVED.fullmatch(part.lower()):
            return "it is a device on some systems"
    if path.startswith(CODE) and not CODE_FILES.fullmatch(path.removeprefix(CODE)):
        return "a record of code has no such file"
    if parts[0] in ("lock", "scratch"):
        return "no finished run has such a file"
    return None


def find_listing_fault(names: Sequence[str]) -> str | None:
    """Return why these names do not go together, or None."""
    if len(names) > MOST_FILES:
        return f"there are {len(names):,} files; {MOST_FILES:,} are accepted"
    if any(one >= other for one, other in pairwise(names)):
        return "the files are not sorted, or a name is listed twice"
    if fault := find_collision(names):
        return fault
    missing = [name for name in REQUIRED if name not in {*names}]
    return f"{missing[0]} is missing" if missing else None


def find_collision(names: Sequence[str]) -> str | None:
    """Return why not every system can have files with these names beside each other, or None."""
    lower = [name.lower() for name in names]
    if len({*lower}) < len(names):
        return "two names differ only in upper and lower case"
    folders: dict[str, str] = {}
    for name in names:
        for folder in accumulate(name.split("/")[:-1], "{}/{}".format):
            if folders.setdefault(folder.lower(), folder) != folder:
                return "two folders differ only in upper and lower case"
    return "a name is both a file and a folder" if folders.keys() & {*lower} else None


def _find_size_fault(record: BundleRecord) -> str | None:
    total = 0
    for file in record.files:
        is_weights = WEIGHTS.match(file.path)
        total += 0 if is_weights else file.size
        if not 0 <= file.size <= (WEIGHTS_BYTES if is_weights else FILE_BYTES):
            return f"{file.path} has {file.size:,} bytes"
    return f"the files have {total:,} bytes; {TOTAL_BYTES:,} are accepted" if total > TOTAL_BYTES else None


def _find_unchecked_fault(record: BundleRecord) -> str | None:
    names = {file.path for file in record.files}
    for scrubbed in record.scrubbed:
        if scrubbed.path not in names or not SCRUBBABLE.fullmatch(scrubbed.path):
            return f"nothing may be replaced in {scrubbed.path[:100]!r}"
    for left_out in record.left_out:
        if left_out.path not in (CODE, REPRODUCTIONS) and not WEIGHTS.fullmatch(left_out.path):
            return f"{left_out.path[:100]!r} may not be left out"
        if any(name.startswith(left_out.path) for name in names):
            return f"{left_out.path} is both listed as left out and included"
    return None
