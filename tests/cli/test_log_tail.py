"""What is shown of an agent while it works."""

import os
import pty
import subprocess
import threading
from pathlib import Path

import pytest

from agent2rl.cli.terminal_output import LogTail, read_last_line
from tests.helpers.run_launcher import RunLauncher


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"", ""),
        (b"half a li", ""),
        (b"one\ntwo\n", "two"),
        (b"one\ntwo\nhalf", "two"),
        (b"one\n\n  \n", "one"),
        (b"\xff\n", "�"),
        (b"long " * 9999 + b"end\n", "end"),
    ],
)
def test_the_last_whole_line_is_what_counts(tmp_path: Path, written: bytes, shown: str) -> None:
    (tmp_path / "log").write_bytes(written)
    assert read_last_line(tmp_path / "log")[-3:] == shown


def test_a_log_that_is_not_there_yet_says_nothing(tmp_path: Path) -> None:
    assert read_last_line(tmp_path / "log") == ""


def test_each_new_line_is_told_once(tmp_path: Path) -> None:
    log, again = tmp_path / "log", threading.Event()
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        again.set()

    with LogTail(log, tell, 0.01):
        for line in ("one", "two"):
            again.clear()
            log.write_text(f"{line}\n")
            assert again.wait(20)
    assert told == ["one", "two"]


AGENT = """
import os, pathlib, time

print('epoch 7 \\x1b[2J of 9', flush=True)
deadline = time.monotonic() + 120
while not pathlib.Path(os.environ["WORKSPACE"], "seen").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
"""
"""Works until its progress was seen."""


def test_on_a_terminal_the_agents_own_progress_is_seen_and_cannot_steer_it(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    main, terminal = pty.openpty()
    command = launcher.command("run", "--task", "gsm8k-mini", "--agent", f"script:{agent}", "--budget", "20m")
    started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=terminal, env=launcher.environment(TERM="xterm")
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            seen += os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        if b"epoch 7" in seen:
            for workspace in launcher.runs.glob("*/workspace"):
                (workspace / "seen").touch()
    os.close(main)
    assert started.wait() == 0
    assert b"epoch 7" in seen
    assert b"epoch 7 \x1b[2J" not in seen
