"""Search a workspace for evaluation data in a child process, after the agent has ended.

It is a child because only a child may open evaluation data, and because it reads untrusted files. It has its
own sandbox and sees the workspace read-only. If it does not finish, the result is an error, never "none
found".
"""

import logging
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import Contamination
from agent2rl.core.sandbox import Command, Enclosure, Mount
from agent2rl.grading import contamination_scanner
from agent2rl.grading.contamination_scanner import ScanJob, ScanOutcome, examples_file
from agent2rl.grading.grading_child import GradingChild, read_child_answer, require_normal_exit
from agent2rl.grading.worker import JOB, RESULT
from agent2rl.record.files import remove_tree, write_record

logger = logging.getLogger(__name__)

READ_SECONDS = 300.0
"""Time for reading. Remaining files are counted as not read."""
EXTRA_SECONDS = 300.0
"""Time for everything else: building the index, and listing millions of files."""


@dataclass(frozen=True)
class ContaminationScan:
    """Runs the search of one workspace."""

    child: GradingChild
    """The grading child's settings; its splits are the examples to search for."""
    workspace: Path
    given: tuple[str, ...]
    """Texts that the agent was given, which do not count as matches."""

    def run(self, log: Path, scratch: Path, stop: threading.Event) -> Contamination:
        if stop.is_set():
            raise GradingError("The run was stopped before the contamination search.")
        _make_readable(self.workspace)
        scratch.mkdir(parents=True, exist_ok=True)
        here = Path(tempfile.mkdtemp(prefix="scan-", dir=scratch))
        try:
            work = here / "work"
            work.mkdir()
            job = ScanJob(
                workspace=str(self.workspace.resolve()),
                splits=tuple(self.child.splits),
                given=self.given,
                seconds=READ_SECONDS,
            )
            write_record(work / JOB, job)
            enclosure = self._build_enclosure(work, here / "scratch", log)
            ended = self.child.sandbox.run(self._build_command(), enclosure, stop)
            require_normal_exit("The check", ended, enclosure.wall_seconds)
            outcome = read_child_answer(work / RESULT, ScanOutcome)
        finally:
            remove_tree(here)
        if outcome is None or outcome.found is None or ended.code != 0:
            said = outcome.error if outcome else ""
            raise GradingError(said or f"The check crashed (exit code {ended.code}).")
        logger.debug("Contamination search: %s after %.1f s", ended.reason, ended.wall_seconds)
        return outcome.found

    def _build_command(self) -> Command:
        environment = {"PYTHONDONTWRITEBYTECODE": "1"}
        if self.child.python_path:
            environment["PYTHONPATH"] = os.pathsep.join(str(entry) for entry in self.child.python_path)
        return Command((sys.executable, "-m", contamination_scanner.__name__), environment)

    def _build_enclosure(self, work: Path, scratch: Path, log: Path) -> Enclosure:
        workspace = self.workspace.resolve()
        files = [Mount(file.path, examples_file(split)) for split, file in self.child.splits.items()]
        files += [Mount(path, str(path)) for path in (workspace, *self.child.python_path)]
        return Enclosure(
            role="grader",
            workspace=work,
            scratch=scratch,
            log=log,
            wall_seconds=READ_SECONDS + EXTRA_SECONDS,
            limits=self.child.limits,
            mounts=tuple(files),
            grace_seconds=0,
        )


def _make_readable(workspace: Path) -> None:
    """Make all files readable, so that `chmod 0` hides nothing.

    If the harness is root, the child is another user than the owner of the files. No process is alive in the
    workspace by now, and links are not followed.
    """
    mode = "a+rX" if os.geteuid() == 0 else "u+rX"
    with suppress(subprocess.TimeoutExpired):  # unreadable files are counted as not read
        subprocess.run(
            ["chmod", "-R", mode, "--", workspace],
            check=False,
            timeout=EXTRA_SECONDS / 2,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
