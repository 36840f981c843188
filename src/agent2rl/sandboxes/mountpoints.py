"""Makes the places in a workspace where mounts will appear, without following a link that lies in it.

A workspace may hold what an earlier run of an agent left there; `models -> /etc` must not lead the harness
out.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Enclosure, Mount

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_enclosure(enclosure: Enclosure) -> Enclosure:
    """The same with real paths of its directories, so that nothing later need follow a link to them."""
    workspace, scratch = enclosure.workspace.resolve(strict=True), enclosure.scratch.resolve()
    return replace(enclosure, workspace=workspace, scratch=scratch)


def collect_mounts(command: Command, enclosure: Enclosure) -> tuple[Mount, ...]:
    """The enclosure's and the command's own, each with a source that exists."""
    mounts = (*enclosure.mounts, *command.mounts)
    for mount in mounts:
        if not mount.source.exists():
            raise UserError(f"{mount.source} does not exist, but is to be mounted at {mount.target}.")
        if ".." in PurePosixPath(mount.target).parts:
            raise UserError(f"The mount target {mount.target!r} contains '..'.", "Name the place itself.")
    return mounts


def make_mountpoint(workspace: Path, target: PurePosixPath, source: Path) -> None:
    """An empty directory or file below the workspace, as `source` is one, unless it is there already."""
    with open_parent(workspace, target) as directory, _refuse_links(target):
        if source.is_dir():
            with suppress(FileExistsError):
                os.mkdir(target.name, 0o755, dir_fd=directory)
            flags = DIRECTORY
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(target.name, flags, 0o644, dir_fd=directory))


@contextmanager
def open_parent(workspace: Path, target: PurePosixPath) -> Iterator[int]:
    """The directory below the workspace that holds `target`, made where it is missing."""
    directory = os.open(workspace, DIRECTORY)
    try:
        with _refuse_links(target):
            for part in target.parent.parts:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=directory)
                below = os.open(part, DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = below
        yield directory
    finally:
        os.close(directory)


@contextmanager
def _refuse_links(target: PurePosixPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"In the workspace something stands where {target} is to be mounted: {error.strerror}.",
            "Move it away.",
        ) from error
