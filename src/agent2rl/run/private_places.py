"""Hide the harness's private directories from sandboxes: runs, cache, task data, recordings.

Every sandbox shares the Python that runs the harness, and gradings share the user's import path. A private
directory may lie inside one of these (`AGENT2RL_CACHE=.venv/cache`, `PYTHONPATH=.` next to `./runs`), so
every sandbox hides them all. Files that a command needs are mounted for it.
"""

import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from agent2rl import registry
from agent2rl.core.records import Isolation, RunSpec
from agent2rl.core.sandbox import Command, Enclosure, Exit, Mount, Role, Sandbox
from agent2rl.run.assets import Assets
from agent2rl.run.settings import Settings

PREFIXES = tuple(Path(prefix).resolve() for prefix in {sys.prefix, sys.base_prefix})
LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class PrivatePlaces:
    records: tuple[Path, ...] = ()
    """Runs, caches, recordings, splits, temporary files. Gradings import nothing from them."""
    sources: tuple[Path, ...] = ()
    """Task folders and task data. A grading may import code from a directory that contains them."""
    imports: tuple[Path, ...] = ()
    """The user's import path, which may contain tasks. An agent's own folder may be on it."""

    def hidden_from(self, role: Role, mounts: Iterable[Mount] = ()) -> tuple[Path, ...]:
        """Return the paths to hide from a command with this role and these mounts."""
        if role == "grader":
            return (*self.records, *_exclude_mounted(self.sources, mounts))
        return (*self.records, *self.sources, *_exclude_mounted(self.imports, mounts))

    def with_records(self, records: Iterable[Path]) -> "PrivatePlaces":
        """Add further runs directories."""
        return replace(self, records=(*self.records, *records))

    def with_assets(self, assets: Assets) -> "PrivatePlaces":
        """Add the prepared splits and folders themselves, in case the cache links to them."""
        files = (*assets.splits.values(), *(each.examples for each in assets.regression_panel))
        splits = tuple(file.path.parent for file in files)
        every = (assets.evaluator_folders, *(each.evaluator_folders for each in assets.regression_panel))
        folders = tuple(folder.path for each in every for folder in each.values())
        return replace(self, records=(*self.records, *splits), sources=(*self.sources, *folders))


def find_private_places(settings: Settings, spec: RunSpec | None = None) -> PrivatePlaces:
    records = [settings.runs, settings.cache, *settings.downloads, Path(tempfile.gettempdir())]
    sources = [*settings.tasks]
    if spec:
        search, _, searched = (spec.search or "").partition(":")
        task, _, folder = spec.task.partition(":")
        files = (spec.record_driver, spec.replay_driver, spec.record_searches, *spec.siblings)
        records += [Path(file) for file in (*files, searched if search == "replay" else None) if file]
        folder = folder if task in registry.TASK_FOLDER_KINDS else ""
        folders = (spec.data_dir, folder, searched if search == "local" else "")
        sources += [Path(name) for name in folders if name]
    imports = tuple(path for path in settings.python_path if not _is_part_of_python(path.resolve()))
    return PrivatePlaces(tuple(records), tuple(sources), imports)


@dataclass(frozen=True)
class PrivateSandbox:
    """A sandbox that hides the harness's private directories."""

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
    """Return the places outside all mounts; a mount is shown with everything in it."""
    mounted = [mount.source.resolve() for mount in mounts]
    return [path for path in places if not any(path.resolve().is_relative_to(source) for source in mounted)]


def _is_part_of_python(path: Path) -> bool:
    """Return whether hiding the path would hide this Python's own libraries."""
    if path in PREFIXES or INSTALLED & {*path.parts}:
        return True
    overlaps = any(path.is_relative_to(place) or place.is_relative_to(path) for place in LIBRARIES)
    return overlaps and not any(path in prefix.parents for prefix in PREFIXES)
