"""Watches the workspace while the agent works, and takes a revision of its code whenever that changes.

File events say that something changed; a look every now and then finds what no event told of. Changes that
follow each other fast are taken together, and the more revisions there are, the longer the next one waits.
"""

import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from inotify_simple import INotify, flags

from agent2rl.core.sandbox import Mount
from agent2rl.store import untrusted_files
from agent2rl.store.code_snapshot import CODE, WorkspaceReader, read_brought_files
from agent2rl.store.recorder import Recorder
from agent2rl.store.revisions import Revision, RevisionRecorder

QUIET_SECONDS, LOOK_SECONDS, REVISION_TURN_SECONDS = 0.3, 15.0, 0.25
EACH_SECONDS = 0.02
"""For each revision there is, the next one waits so much longer."""
MOST_WATCHED = 256
CODE_FULL = "More code was written than is recorded: from here on large files are kept by their hash alone."
CHANGES = flags.CREATE | flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE | flags.ONLYDIR


class RevisionWatcher:
    """Revisions as they come about."""

    def __init__(self, recorder: Recorder, given: frozenset[str]) -> None:
        self._recorder = recorder
        self._reader = WorkspaceReader(recorder.paths.workspace, given)
        self._revisions = RevisionRecorder(recorder.paths.revisions, self._reader)
        self._known = recorder.past.revisions
        self._warned = False
        self._noting = threading.Lock()
        self._over = threading.Event()

    def take_revision(self, reason: str) -> Revision:
        """The code as it is now; noted where it is new."""
        revision = self._revisions.take_revision(reason)
        with self._noting:
            new, self._known = revision.number > self._known, max(revision.number, self._known)
            full = self._revisions.full and not self._warned
            self._warned = self._warned or full
        if new:
            self._recorder.record_event("revision", **revision.model_dump())
        if full:
            self._recorder.record_event("warning", text=CODE_FULL)
        return revision

    def pin_submission(self, submission: int) -> None:
        """The code that a submission was made with: pinned before it is graded."""
        revision = self.take_revision(f"submission {submission}")
        printed = self._recorder.agent_log_bytes()
        self._recorder.record_entry(
            "revision_of", submission=submission, log_bytes=printed, **revision.model_dump()
        )

    @contextmanager
    def watch_workspace(self, brings: Sequence[Mount] = ()) -> Iterator[None]:
        """From the workspace as it was given to the workspace as it was left.

        What the agent brings along is read once: it cannot be written.
        """
        self._reader.brought = read_brought_files([(mount.source, mount.target) for mount in brings])
        self.take_revision("when the run was resumed" if self._recorder.past.started else "as it was given")
        thread = threading.Thread(target=self._watch_until_over, name="revisions", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            last = self.take_revision("as it was left")
            self._recorder.record_entry("revisions", head=last.commit, number=last.number)
            self.close()

    def close(self) -> None:
        self._revisions.close()

    def _watch_until_over(self) -> None:
        try:
            with INotify() as events:
                while not self._over.is_set():
                    self._add_watches(events, self._reader.folders)
                    if self._wait_for_change(events):
                        self.take_revision("changed")
                        self._over.wait(EACH_SECONDS * self._known)
        except Exception:  # then submissions alone are pinned
            self._recorder.record_event("fault", where="watching code", trace=traceback.format_exc())

    def _add_watches(self, events: INotify, folders: Iterable[tuple[bytes, ...]]) -> None:
        code = [path for path in folders if not path or path[0] == CODE.encode()]
        for path in code[:MOST_WATCHED]:
            with suppress(OSError), untrusted_files.open_folder(self._reader.root, path) as descriptor:
                events.add_watch(f"/proc/self/fd/{descriptor}", CHANGES)

    def _wait_for_change(self, events: INotify) -> bool:
        """Wait until something changed and was left alone for a moment, or it is time to look."""
        until = time.monotonic() + LOOK_SECONDS
        while not self._over.is_set() and time.monotonic() < until:
            if events.read(timeout=int(1000 * REVISION_TURN_SECONDS)):
                while events.read(timeout=int(1000 * QUIET_SECONDS)) and time.monotonic() < until:
                    pass
                break
        return not self._over.is_set()
