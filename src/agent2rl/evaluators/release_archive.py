"""Downloads an archive that a project has released, and unpacks what is wanted of it, once."""

import shutil
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import httpx

from agent2rl.core.errors import MachineError

DOWNLOAD_TIMEOUT_SECONDS = 60.0
"""Without a byte."""
TELL_BYTES = 20 << 20


def fetch_archive(url: str, home: Path, folder: str, wanted: str) -> Path:
    """The folder of an archive below `home`, with the files that match; downloaded where it is not there."""
    place = home / folder
    if place.is_dir():
        return place
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=home) as temporary:
        archive = Path(temporary) / "archive.zip"
        _download_archive(url, archive)
        _unpack_archive(archive, Path(temporary), folder, wanted, url)
        try:
            (Path(temporary) / folder).rename(place)
        except OSError:
            if not place.is_dir():  # somebody else was faster
                raise
    return place


def _download_archive(url: str, archive: Path) -> None:
    size, told = 0, 0
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=DOWNLOAD_TIMEOUT_SECONDS) as answer,
            archive.open("wb") as file,
        ):
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                size += file.write(piece)
                if size - told >= TELL_BYTES:
                    told = size
                    print(f"{size >> 20} MiB of {url}", file=sys.stderr, flush=True)
    except (httpx.HTTPError, OSError) as error:
        raise MachineError(
            f"Cannot download {url}: {type(error).__name__}: {error}.",
            "Download and unpack it where there is a network, and name the folder with --data-dir.",
        ) from error


def _unpack_archive(archive: Path, target: Path, folder: str, wanted: str, url: str) -> None:
    try:
        with zipfile.ZipFile(archive) as members:
            for name in members.namelist():
                path = PurePosixPath(name)
                if path.parts[:1] == (folder,) and ".." not in path.parts and path.match(wanted):
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    with members.open(name) as source, (target / path).open("wb") as file:
                        shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise MachineError(f"What {url} gave cannot be unpacked: {error}.", "Try again.") from error
    if not (target / folder).is_dir():
        raise MachineError(f"The archive {url} has no folder {folder!r}.", "Name the data with --data-dir.")
