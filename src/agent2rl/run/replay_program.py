"""Runs recorded steps again, inside the sandbox, and submits the model that they train.

It is started by path and imports only the standard library: the agent's own Python may lack agent2rl. The
last line that it prints says how it ended; nothing is decided by it.
"""

import json
import os
import posixpath
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
POLL_SECONDS = 1.0
LONGEST_LINE = 300
STOP_SECONDS = 5.0
FAILED = 3
"""Exit code if there is nothing to submit."""


def main() -> int:
    plan = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))
    workspace = Path(os.environ["WORKSPACE"])
    copy_files(HERE / "code", workspace)
    grading = GradingApi(os.environ["GRADING_SERVER_URL"], workspace, plan["submitted"], plan["count"])
    replay = StepReplay(plan["steps"], workspace, plan["mark"], grading.is_done)
    replay.run()
    if grading.is_done():
        return finish(0, f"the steps submitted {plan['submitted']}")
    if not (workspace / plan["submitted"]).exists():
        why = f": {replay.failure}" if replay.failure else ""
        return finish(FAILED, f"the steps wrote no {plan['submitted']}{why}")
    failure = f"; {replay.failure}" if replay.failure else ""
    return finish(0, f"submitted {plan['submitted']}: {grading.submit()}{failure}")


def copy_files(source: Path, target: Path) -> None:
    """Copy all files. Folders stay as they are: the workspace may belong to somebody else."""
    for path in source.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


def finish(code: int, text: str) -> int:
    print(f"replay: {text}", flush=True)
    return code


class GradingApi:
    def __init__(self, url: str, workspace: Path, submitted: str, count: int) -> None:
        self._url, self._workspace, self._submitted, self._count = url, workspace, submitted, count

    def is_done(self) -> bool:
        """Check whether the steps submitted the model as often as in the original run, with a verdict."""
        try:
            answers = self._call_api("/submissions")
        except (OSError, ValueError):
            return False
        paths = [posixpath.join(str(self._workspace), str(each["model_path"])) for each in answers]
        target = posixpath.normpath(self._workspace / self._submitted)
        mine = [each for each, path in zip(answers, paths) if posixpath.normpath(path) == target]  # noqa: B905
        return len(mine) >= self._count and mine[self._count - 1]["verdict"] is not None

    def submit(self) -> str:
        try:
            return str(self._call_api("/submit", {"model_path": self._submitted})["verdict"])
        except urllib.error.HTTPError as error:
            return error.read().decode(errors="replace")[:LONGEST_LINE]

    def _call_api(self, path: str, body: "dict[str, str] | None" = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)


class StepReplay:
    """Runs the steps one after the other; those that ran in the background run beside the next ones."""

    def __init__(
        self, steps: "list[dict[str, Any]]", workspace: Path, mark: str, is_done: Callable[[], bool]
    ) -> None:
        self._steps, self._workspace, self._mark, self._is_done = steps, workspace, mark, is_done
        self._started: list[tuple[dict[str, Any], subprocess.Popen[bytes], threading.Thread]] = []
        self.failure = ""
        """How the last step that failed ended."""

    def run(self) -> None:
        """Run the steps, until the model was submitted or all that ended in the original run have ended."""
        for number, step in enumerate(self._steps, start=1):
            print(f"replay: step {number} of {len(self._steps)}: {' '.join(step['argv'])}", flush=True)
            process = self._start(number, step)
            if process and self._wait_for_step(process, step["gap_seconds"] if step["background"] else None):
                self._end_all()
                return
        for step, process, _ in self._started:
            if step["finished"] and self._wait_for_step(process, None):
                break
        self._end_all()

    def _start(self, number: int, step: "dict[str, Any]") -> "subprocess.Popen[bytes] | None":
        fill = self._fill_paths
        environment = {**os.environ, **{name: fill(value) for name, value in step["environment"].items()}}
        try:
            process = subprocess.Popen(
                [fill(word) for word in step["argv"]],
                cwd=self._workspace / step["directory"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self.failure = f"step {number} cannot start: {error.strerror}: {error.filename}"
            return None
        thread = threading.Thread(target=self._copy_output, args=(number, process), daemon=True)
        thread.start()
        self._started.append((step, process, thread))
        return process

    def _fill_paths(self, text: str) -> str:
        return text.replace(self._mark, str(self._workspace))

    def _copy_output(self, number: int, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            last = line.decode(errors="replace").strip() or last
        if process.wait() > 0:  # a negative one is a signal, such as our own
            self.failure = f"step {number} ended with exit code {process.returncode}: {last[:LONGEST_LINE]}"

    def _wait_for_step(self, process: "subprocess.Popen[bytes]", seconds: "float | None") -> bool:
        """Wait for a step, or for so long. Return whether the model was submitted meanwhile."""
        until = None if seconds is None else time.monotonic() + seconds
        while until is None or time.monotonic() < until:
            try:
                process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if self._is_done():
                    return True
            else:
                return self._is_done()
        return False

    def _end_all(self) -> None:
        for _, process, _ in self._started:
            process.terminate()
        for _, process, thread in self._started:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            thread.join(STOP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
