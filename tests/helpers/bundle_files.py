"""Bundles for tests, of a run of an earlier version: taken apart, and put together again changed."""

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from agent2rl.bundles.archive import END, make_header
from agent2rl.bundles.bundle_record import FOLDER, RECORD_NAME, SIGNATURE_NAME
from agent2rl.record.files import canonical_json, extract_archive
from agent2rl.record.paths import RunPaths

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

EARLIER_RUN = Path(__file__).parents[1] / "whole_runs" / "earlier_version_run.tar.xz"

MakeHeader = Callable[[str, int], bytes]


def unpack_earlier_run(folder: Path) -> RunPaths:
    """A finished run without a report, in a moment."""
    with tarfile.open(EARLIER_RUN) as archive:
        extract_archive(archive, folder)
    return RunPaths(next(path for path in folder.iterdir() if path.is_dir()))


def decompress(bundle: bytes) -> bytes:
    return zstd.ZstdDecompressor().decompress(bundle)


def compress(content: bytes) -> bytes:
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {parameter.checksum_flag: 1, parameter.compression_level: 1}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(content) + compressor.flush()


@dataclass(frozen=True)
class BundleParts:
    """What a bundle consists of; `build` writes it, whatever it is."""

    record: dict[str, Any]
    files: dict[str, bytes]
    signature: bytes = b""
    headers: dict[str, MakeHeader] = field(default_factory=dict)
    """By a file's path: another header than a plain file's."""
    end: bytes = END

    @classmethod
    def read(cls, bundle: bytes) -> "BundleParts":
        with tarfile.open(fileobj=io.BytesIO(decompress(bundle))) as archive:
            content = {member.name: archive.extractfile(member) for member in archive}
            read = {name: file.read() for name, file in content.items() if file}
        record = json.loads(read.pop(RECORD_NAME))
        signature = read.pop(SIGNATURE_NAME)
        return cls(record, {name.removeprefix(f"{FOLDER}/"): data for name, data in read.items()}, signature)

    def with_file(self, path: str, content: bytes) -> "BundleParts":
        """With one more file, or another content, as its maker would list it."""
        files = {**self.files, path: content}
        return replace(self, files=files).list_anew()

    def with_record(self, **fields: Any) -> "BundleParts":
        return replace(self, record={**self.record, **fields})

    def with_header(self, path: str, header: MakeHeader) -> "BundleParts":
        return replace(self, headers={**self.headers, path: header})

    def list_anew(self) -> "BundleParts":
        files = dict(sorted(self.files.items()))
        listed = [
            {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in files.items()
        ]
        return replace(self, files=files, record={**self.record, "files": listed})

    def archive(self) -> bytes:
        encoded = canonical_json(self.record).encode()
        head = [(RECORD_NAME, encoded), (SIGNATURE_NAME, self.signature)]
        members = [*head, *((f"{FOLDER}/{path}", data) for path, data in self.files.items())]
        parts: list[bytes] = []
        for name, data in members:
            header = self.headers.get(name.removeprefix(f"{FOLDER}/"), make_any_header)
            parts += [header(name, len(data)), data, bytes(-len(data) % 512)]
        return b"".join([*parts, self.end])

    def build(self) -> bytes:
        return compress(self.archive())


def make_any_header(name: str, size: int) -> bytes:
    """A header as the bundle has it, or as long as the name needs it."""
    if len(name.encode()) <= 100 and name.isascii():
        return make_header(name, size)
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def make_typed_header(
    kind: bytes, target: str = "", form: Literal[0, 1, 2] = tarfile.GNU_FORMAT, **pax: str
) -> MakeHeader:
    """The header of a link, a device or anything else."""

    def header(name: str, size: int) -> bytes:
        member = tarfile.TarInfo(name)
        member.size, member.type, member.linkname, member.pax_headers = size, kind, target, pax
        return member.tobuf(form, "utf-8", "surrogateescape")

    return header
