"""The harness's own places on this machine: runs, cache, task data, recordings. No sandbox may show them.

Every sandbox shares the Python that runs the harness, and gradings share the user's import path. Any of these
places may lie in there (`AGENT2RL_CACHE=.venv/cache`, `PYTHONPATH=.` beside `./runs`), so every sandbox hides
them. What a command needs of them is mounted for it.
"""

import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from agent2rl.core.records import Isolation, RunSpec
from agent2rl.core.sandbox import Command, Enclosure, Exit, Mount, Role, Sandbox
from agent2rl.run.assets import Assets
from agent2rl.run.settings import Settings

PREFIXES = tuple(Path(place).resolve() for place in {sys.prefix, sys.base_prefix})
LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class PrivatePlaces:
    records: tuple[Path, ...] = ()
    """Runs, caches, recordings, splits, temporary files: nothing that a grading would import."""
    sources: tuple[Path, ...] = ()
    """Task folders and task data. A grading may import code from a directory that holds them."""
    imports: tuple[Path, ...] = ()
    """The user's import path, which may hold tasks. An agent's own folder may be on it."""

    def hidden_from(self, role: Role, mounts: Iterable[Mount] = ()) -> tuple[Path, ...]:
        """What to hide from a command of this role, which is given these mounts."""
        if role == "grader":
            return (*self.records, *_exclude_mounted(self.sources, mounts))
        return (*self.records, *self.sources, *_exclude_mounted(self.imports, mounts))

    def with_assets(self, assets: Assets) -> "PrivatePlaces":
        """Also the prepared splits and folders themselves, in case a link leads out of the cache to them."""
        splits = tuple(split.path.parent for split in assets.splits.values())
        folders = tuple(folder.path for folder in assets.beside.values())
        return replace(self, records=(*self.records, *splits), sources=(*self.sources, *folders))


def find_private_places(settings: Settings, spec: RunSpec | None = None) -> PrivatePlaces:
    records = [settings.runs, settings.cache, *settings.downloads, Path(tempfile.gettempdir())]
    sources = [*settings.tasks]
    if spec:
        search, _, searched = (spec.search or "").partition(":")
        task, _, folder = spec.task.partition(":")
        files = (spec.record_driver, spec.replay_driver, spec.record_searches)
        records += [Path(file) for file in (*files, searched if search == "replay" else None) if file]
        folders = (spec.data_dir, folder if task == "folder" else "", searched if search == "local" else "")
        sources += [Path(name) for name in folders if name]
    imports = tuple(path for path in settings.python_path if not _is_part_of_python(path.resolve()))
    return PrivatePlaces(tuple(records), tuple(sources), imports)


@dataclass(frozen=True)
class PrivateSandbox:
    """A sandbox that hides the harness's own places from whatever runs in it."""

    sandbox: Sandbox
    places: PrivatePlaces

    def workspace(self, workspace: Path) -> PurePosixPath:
        return self.sandbox.workspace(workspace)

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        return self.sandbox.check((*self.places.hidden_from("agent"), *hidden))

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        hidden = self.places.hidden_from(enclosure.role, (*enclosure.mounts, *command.mounts))
        return self.sandbox.run(command, replace(enclosure, hidden=(*enclosure.hidden, *hidden)), stop)


def _exclude_mounted(places: Iterable[Path], mounts: Iterable[Mount]) -> list[Path]:
    """Those that lie in no mount: what is mounted is wanted with all that is in it."""
    given = [mount.source.resolve() for mount in mounts]
    return [path for path in places if not any(path.resolve().is_relative_to(source) for source in given)]


def _is_part_of_python(path: Path) -> bool:
    """Whether hiding it would take this Python's own libraries away."""
    if path in PREFIXES or INSTALLED & {*path.parts}:
        return True
    overlaps = any(path.is_relative_to(place) or place.is_relative_to(path) for place in LIBRARIES)
    return overlaps and not any(path in prefix.parents for prefix in PREFIXES)
