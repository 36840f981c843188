"""List the packages that an agent installed, from names of folders and bounded parts of files.

The agent could write all of them, so no link is followed and nothing is started.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from agent2rl.record.untrusted_files import (
    JsonNode,
    list_names,
    open_folder,
    parse_json,
    read_untrusted_file,
    sanitize_line,
)

DIST_INFO = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)-([A-Za-z0-9][A-Za-z0-9.!+_]*)\.dist-info")
CONDA_FILE = re.compile(r"([a-z0-9_][a-z0-9._-]*)-([A-Za-z0-9][A-Za-z0-9.!+_]*)-[A-Za-z0-9_.]+\.json")
NODE_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,99}")
LONGEST_NAME = 200
MOST_PACKAGES = 2_000
MANIFEST_BYTES = 256 << 10
MOST_FOLDERS, MOST_DEPTH, MOST_ENTRIES = 2_000, 8, 10_000
NOT_ENTERED = frozenset({".git", "node_modules", "__pycache__", "conda-meta"})


def list_workspace_packages(workspace: Path) -> set[str]:
    """Return what was installed into other environments in the workspace.

    Folders nearest to the top are searched first. What pip, uv and conda installed is known by the folders
    and files that they make beside it, wherever that is.
    """
    lines: set[str] = set()
    waiting = deque([PurePosixPath()])
    for _ in range(MOST_FOLDERS):
        if not waiting or len(lines) > MOST_PACKAGES:
            break
        place = waiting.popleft()
        folders = _list_folders(workspace, place)
        installed = set(read_python_packages(folders))
        lines |= installed
        if "node_modules" in folders:
            lines.update(read_node_packages(workspace, place / "node_modules"))
        if "conda-meta" in folders:
            lines.update(_read_conda_packages(workspace, place / "conda-meta"))
        if not installed and len(place.parts) < MOST_DEPTH:
            waiting.extend(place / name for name in folders if name not in NOT_ENTERED)
    return lines


def sort_packages(lines: set[str]) -> tuple[str, ...]:
    return tuple(sanitize_line(line, LONGEST_NAME) for line in sorted(lines)[:MOST_PACKAGES])


def read_python_packages(names: list[str]) -> Iterator[str]:
    """Yield NAME==VERSION for the folders that pip makes."""
    for name in names:
        if match := DIST_INFO.fullmatch(name):
            yield f"{re.sub('[-_.]+', '-', match[1]).lower()}=={match[2]}"


def read_node_packages(root: Path, modules: PurePosixPath) -> Iterator[str]:
    """Yield npm:NAME==VERSION for the packages in a folder node_modules."""
    names = list_names(root, modules)
    places = [modules / name for name in names if not name.startswith(("@", "."))]
    for scope in (modules / name for name in names if name.startswith("@")):
        places += [scope / name for name in list_names(root, scope)]
    for place in places[:MOST_PACKAGES]:
        content = read_untrusted_file(root, str(place / "package.json"), MANIFEST_BYTES)
        if content is not None:
            version = (parse_json(content) or JsonNode())["version"].text
            known = version if NODE_VERSION.fullmatch(version) else "unknown"
            yield f"npm:{place.relative_to(modules)}=={known}"


def _read_conda_packages(root: Path, meta: PurePosixPath) -> Iterator[str]:
    for name in list_names(root, meta):
        if match := CONDA_FILE.fullmatch(name):
            yield f"conda:{match[1]}=={match[2]}"


def _list_folders(root: Path, place: PurePosixPath) -> list[str]:
    with suppress(OSError), open_folder(root, place.parts) as directory, os.scandir(directory) as entries:
        found = islice(entries, MOST_ENTRIES)
        return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    return []
