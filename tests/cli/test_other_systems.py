"""On Windows and macOS every command can be imported, runs can be read, and `check` says what works.

Such a system is imitated in a process of its own: modules and functions that it lacks are removed before
agent2rl is imported. Third-party packages are imported before that, because they support these systems in
their own way.
"""

import json
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent2rl.cli.main import COMMANDS
from agent2rl.record.files import extract_archive
from agent2rl.run.preflight import CLONE_COMMAND, DOCKER_COMMANDS
from tests.helpers.run_launcher import RunLauncher

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "whole_runs" / "earlier_version_run.tar.xz"
NOT_ON_MACOS = {
    "modules": ["inotify_simple", "torch", "transformers"],
    "os": ["memfd_create", "sched_getaffinity", "sched_setaffinity", "pidfd_open", "O_PATH", "O_TMPFILE"],
    "time": ["CLOCK_BOOTTIME"],
    "fcntl": ["F_OFD_SETLK", "F_OFD_GETLK"],
}
NOT_ON_WINDOWS = {
    "modules": [*NOT_ON_MACOS["modules"], "fcntl", "resource", "pwd", "grp", "termios", "pty", "tty"],
    "os": [
        *NOT_ON_MACOS["os"],
        *("fork", "forkpty", "setsid", "killpg", "getpgid", "nice", "register_at_fork", "sysconf", "uname"),
        *("getuid", "geteuid", "getgid", "getegid", "getgroups", "chown", "lchown", "fchown", "fchmod"),
        *("pread", "pwrite", "mkfifo", "getloadavg", "posix_fallocate", "sendfile", "wait4"),
        *("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"),
    ],
    "signal": ["SIGKILL", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGUSR1", "alarm", "setitimer"],
    "socketserver": ["UnixStreamServer"],
    "select": ["poll", "epoll"],
    "time": ["CLOCK_BOOTTIME", "clock_gettime"],
}
PROGRAM = """
import contextlib, importlib, io, json, os, platform, shutil, signal, socket, socketserver, sys, time
import click, dulwich.repo, fastapi.testclient, httpx, matplotlib.backends.backend_svg, matplotlib.figure
import pynvml, rich.console, safetensors.numpy, scipy.stats, threadpoolctl, uvicorn, websockets

system, missing, commands, runs = json.loads(sys.argv[1])


for name in missing.pop("modules"):
    sys.modules[name] = None
for module, attributes in missing.items():
    for attribute in attributes:
        vars(importlib.import_module(module)).pop(attribute, None)
platform.system = lambda: system
if system == "Windows":
    unix_open, shutil._use_fd_functions, os.supports_dir_fd = os.open, False, set()

    def windows_open(path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        return unix_open(path, flags, mode)

    os.open = windows_open

from agent2rl.cli import main

results = {}
for arguments in commands:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["agent2rl", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main.main()
        except SystemExit as end:
            code = end.code
    results[" ".join(arguments)] = [code, out.getvalue(), err.getvalue()]

from pathlib import Path
from agent2rl.cli.leaderboard import list_task_traits
from agent2rl.cli.view import get_task_level
from agent2rl.dashboard.server import create_app
from agent2rl.dashboard.state import Dashboard

dashboard = Dashboard(Path(runs), Path(os.environ["AGENT2RL_CACHE"]), get_task_level, list_task_traits)
dashboard.index.start()
reader = fastapi.testclient.TestClient(create_app(dashboard), base_url="http://127.0.0.1")
while "Reading the runs directory" in (page := reader.get("/")).text:
    time.sleep(0.05)
results["page"] = [page.status_code, page.text, ""]
print(json.dumps(results))
"""


@dataclass(frozen=True)
class OtherSystem:
    name: str
    run_id: str
    report: Path
    results: dict[str, tuple[int, str, str]]


@pytest.fixture(scope="module", params=["Windows", pytest.param("Darwin", marks=pytest.mark.thorough)])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OtherSystem:
    place = tmp_path_factory.mktemp("other")
    launcher = RunLauncher(place / "runs", place / "cache", place)
    with tarfile.open(ARCHIVE) as archive:
        extract_archive(archive, launcher.runs)
    run_id = next(path.name for path in launcher.runs.iterdir() if path.is_dir())
    missing = NOT_ON_WINDOWS if request.param == "Windows" else NOT_ON_MACOS
    commands = [
        *([name, "--help"] for name in COMMANDS),
        ["show", run_id],
        ["show", run_id, "--json"],
        ["report", run_id, "-o", str(place / "report")],
        ["verify", run_id],
        ["leaderboard"],
        ["transcript", run_id],
        ["revisions", run_id],
        ["revisions", run_id, "--diff", "0", "1"],
        ["export", "jsonl"],
        ["list", "tasks"],
        ["check"],
        ["check", "--json"],
        ["run", "--task", "gsm8k-mini"],
        ["run", "--task", "alfworld-mini"],
        ["demo"],
        ["resume", run_id],
    ]
    arguments = json.dumps([request.param, missing, commands, str(launcher.runs)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments],
        env=launcher.environment(),
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return OtherSystem(request.param, run_id, place / "report", json.loads(done.stdout))


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_can_be_imported(other: OtherSystem, command: str) -> None:
    code, shown, errors = other.results[f"{command} --help"]
    assert (code, errors) == (0, "")
    assert shown.startswith(f"Usage: agent2rl {command}")


def test_runs_can_be_read_reported_verified_and_ranked(other: OtherSystem) -> None:
    results, run_id = other.results, other.run_id
    shows = {
        f"show {run_id}": "10.67 [6.7, 16.6] → 93.33 [88.2, 96.3]",
        f"show {run_id} --json": '"run_id"',
        f"report {run_id} -o {other.report}": "report.html",
        f"verify {run_id}": "the record holds",
        "leaderboard": "+82.67",
        f"revisions {run_id}": "as it was given",
        f"revisions {run_id} --diff 0 1": "+",
        "export jsonl": run_id,
        "list tasks": "gsm8k-mini",
        f"resume {run_id}": "93.33",
    }
    for command, text in shows.items():
        code, shown, errors = results[command]
        assert (code, text in shown) == (0, True), f"{command}: {shown}\n{errors}"
    assert "93.33" in (other.report / "report.md").read_text(encoding="utf-8")
    assert results["page"][0] == 200
    assert run_id in results["page"][1]


def test_check_says_what_works_and_what_does_not(other: OtherSystem) -> None:
    code, shown, _ = other.results["check"]
    name, where = {
        "Windows": ("Windows", "in WSL 2 (`wsl --install`), in a Linux container, or on a Linux server."),
        "Darwin": ("macOS", "in a Linux container or virtual machine, or on a Linux server."),
    }[other.name]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert code == 1
    assert lines[0] == (
        "ok reading runs: show, report, view, leaderboard, verify, transcript, revisions and export "
        "work here, on runs from Linux"
    )
    assert lines[1].startswith(f"BROKEN runs: need Linux, and this is {name} → Install agent2rl {where}")
    assert "bubblewrap" in lines[1]
    build, start = DOCKER_COMMANDS
    assert "`pip install 'agent2rl[train]' && agent2rl demo` works" in lines[1]
    assert lines[1].endswith(f"`{CLONE_COMMAND}`, then `{build}`, then `{start}`")
    findings = json.loads(other.results["check --json"][1])
    assert [finding["name"] for finding in findings] == ["reading runs", "runs", "cache"]


def test_the_docker_commands_are_documented_and_fit_the_image() -> None:
    build, start = DOCKER_COMMANDS
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    assert f"{build}\n{start}\n" in page
    options = start.partition(" agent2rl:cpu ")[0]
    documented = (ROOT / "docs" / "where-to-run.md").read_text(encoding="utf-8")
    assert all(option in documented for option in re.findall(r"--security-opt \S+|-e \S+", options))


@pytest.mark.parametrize("command", ["run --task gsm8k-mini", "run --task alfworld-mini", "demo"])
def test_a_run_is_refused_in_one_line_with_what_to_do(other: OtherSystem, command: str) -> None:
    """Linux comes first: nobody should install torch for a run that cannot start."""
    code, _, errors = other.results[command]
    name = "macOS" if other.name == "Darwin" else other.name
    assert code == 1
    assert errors == (
        f"error: Runs need Linux, and this is {name}.\n"
        "       `agent2rl check` lists what works here, and how to get a Linux for the rest.\n"
    )
