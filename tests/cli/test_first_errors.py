"""The errors that a newcomer meets first, each as it looks in the terminal.

The page docs/troubleshooting.md shows the same texts, and a test compares them.
"""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from agent2rl.system.packages import suggest_install
from tests.helpers.run_launcher import RunLauncher

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
NOWHERE = "http://127.0.0.1:9"
"""Nothing listens on this port, so a registry there cannot be reached."""
FULL_DISK = """
import errno, os

def fsync(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

os.fsync = fsync
"""
"""A sitecustomize.py with which nothing can be written to the disk."""

MESSAGES = {
    "agent2rl run --task gsm8k-mini --sandbox bubblewrap  (without it)": """\
error: The sandbox failed its self-test ('the sandbox starts' does not hold). The sandbox needs the \
program bwrap, which is not installed. Install it: sudo apt-get install bubblewrap. On a cluster: ask its \
administrators for it, or try `module load apptainer`.
""",
    "agent2rl run --task gsm8k-mini --agent claude-code --driver claude-opus-4-6": """\
error: claude-opus-4-6 needs a key of Anthropic, and ANTHROPIC_API_KEY is not set.
       Set it: export ANTHROPIC_API_KEY=YOUR_KEY. It never enters the sandbox.
       Without a key: a server of your own, MODEL@URL, or an agent without an LLM, --agent recipe.
""",
    "agent2rl run --task gsm8k-mini --agent claude-code": """\
error: The agent 'claude-code' needs a driver LLM.
       For example --driver claude-opus-4-6, or --driver MODEL@URL for a compatible endpoint.
""",
    "agent2rl run --task gsm8k-mini --agent nop --max-gpu-hours 1": """\
error: --max-gpu-hours limits GPU time, but this run has no GPU.
       Leave it out: the miniature tasks need no GPU. If this machine has one, `nvidia-smi` must list it, \
and CUDA_VISIBLE_DEVICES must not hide it.
""",
    "agent2rl run --task gsm8k-mini --model gpt-9": """\
error: There is no model named 'gpt-9'.
       Known models: abacus, seedling, smollm2-135m.
""",
    "agent2rl run --task gsm8k-mini --model ./nowhere": """\
error: There is no model directory './nowhere'.
       Name a directory, a shipped model, or one of the hub: org/name.
""",
    "agent2rl run --task gsm8k-mini --agent recipe": """\
error: The agent 'recipe' trains language models, and abacus is not one.
       For example --model seedling, or another: agent2rl list models.
""",
    "agent2rl run --task gsm8k-mini --model acme/tiny  (without a network)": """\
error: The hub cannot be reached, and acme/tiny@main is not complete in its cache.
       Check the network, HF_ENDPOINT and HF_HOME, or name a model directory.
""",
    "agent2rl agents install mini-swe  (without a network)": """\
error: pip cannot reach its index for mini-swe-agent VERSION: Failed to establish a new connection: \
[Errno 111] Connection refused.
       Try again with a network, or name an index that answers: PIP_INDEX_URL=URL.
""",
    "agent2rl run --task gsm8k  (without a network)": """\
error: The hub cannot be reached, and its cache does not have openai/gsm8k. Check the network and \
HF_ENDPOINT, or pass a directory with the official files: --data-dir DIR.
""",
    "agent2rl run --task gsm8k-mini  (on a full disk)": """\
error: The disk is full.
       Free some space, or write elsewhere: --runs-dir DIR for runs, AGENT2RL_CACHE=DIR for prepared models \
and data.
       `agent2rl resume` continues a run that has no result.
""",
    "agent2rl run --task gsm9k": """\
error: There is no task named 'gsm9k'.
       Did you mean 'gsm8k'? Known tasks: alfworld, alfworld-mini, alpacaeval, alpacaeval-mini, benchmark, \
deepsearchqa, deepsearchqa-mini, folder, gsm8k, gsm8k-mini, humaneval, humaneval-mini, smith, webshop, \
webshop-mini.
""",
    "agent2rl run --task gsm8k-mini --agent clade-code": """\
error: There is no agent named 'clade-code'.
       Did you mean 'claude-code'? Known agents: claude-code, codex, folder, gemini-cli, mini-swe, nop, \
opencode, openhands, rdagent, recipe, script, submit.
""",
    "agent2rl show yesterday": """\
error: There is no run 'yesterday': neither a run directory nor an id below RUNS.
       Name the directory, `latest`, or the runs directory with --runs-dir.
""",
    "agent2rl view --port PORT  (which is taken)": """\
error: Port PORT of this computer cannot be used: Address already in use.
       Choose another port, or leave out --port to use a free one.
""",
}
"""Command, as the page shows it → what it prints to stderr, from `error:` on."""


def read_error(done: "subprocess.CompletedProcess[str]") -> str:
    assert "Traceback" not in done.stderr, done.stderr
    _, mark, rest = done.stderr.partition("error: ")
    return mark + rest


def call(launcher: RunLauncher, shown: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Call the command of a title, without its remark."""
    return launcher.cli(*shown.partition("  (")[0].split()[1:], **environment)


@pytest.mark.parametrize(
    "shown",
    [
        "agent2rl run --task gsm8k-mini --agent claude-code --driver claude-opus-4-6",
        "agent2rl run --task gsm8k-mini --agent claude-code",
        "agent2rl run --task gsm8k-mini --agent nop --max-gpu-hours 1",
        "agent2rl run --task gsm8k-mini --model gpt-9",
        "agent2rl run --task gsm8k-mini --model ./nowhere",
        "agent2rl run --task gsm8k-mini --agent recipe",
        "agent2rl run --task gsm9k",
        "agent2rl run --task gsm8k-mini --agent clade-code",
        "agent2rl show yesterday",
    ],
)
def test_a_wrong_name_or_a_missing_part_is_said_with_what_to_do(launcher: RunLauncher, shown: str) -> None:
    done = call(launcher, shown, CUDA_VISIBLE_DEVICES="")
    assert read_error(done).replace(str(launcher.runs), "RUNS") == MESSAGES[shown]
    assert done.returncode == 2
    assert not launcher.runs.exists()


def test_a_missing_bubblewrap_is_said_with_the_install_line(launcher: RunLauncher, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("chmod", "rm", "ldd"):
        (programs / name).symlink_to(shutil.which(name) or "/bin/false")
    done = launcher.cli("run", "--task", "gsm8k-mini", "--sandbox", "bubblewrap", PATH=str(programs))
    assert done.returncode == 1
    shown = MESSAGES["agent2rl run --task gsm8k-mini --sandbox bubblewrap  (without it)"]
    before, line, advice = shown.partition("Install it: sudo apt-get install bubblewrap")
    own_line = suggest_install("bubblewrap")
    assert read_error(done) == (
        f"{before}{own_line}\n" if os.geteuid() == 0 else f"{before}{own_line.rstrip('.')}{advice}"
    )
    assert line


@pytest.mark.parametrize(
    ("shown", "environment"),
    [
        (
            "agent2rl run --task gsm8k-mini --model acme/tiny  (without a network)",
            {"HF_ENDPOINT": NOWHERE},
        ),
        (
            "agent2rl agents install mini-swe  (without a network)",
            {
                "PIP_INDEX_URL": NOWHERE,
                "PIP_RETRIES": "1",
                "PIP_EXTRA_INDEX_URL": "",
                "PIP_CONFIG_FILE": os.devnull,
            },
        ),
        ("agent2rl run --task gsm8k  (without a network)", {"HF_ENDPOINT": NOWHERE}),
    ],
)
def test_a_registry_that_cannot_be_reached_is_named(
    launcher: RunLauncher, tmp_path: Path, shown: str, environment: dict[str, str]
) -> None:
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("pyarrow")
    cache = str(tmp_path / "cache")
    done = call(launcher, shown, HF_HOME=str(tmp_path / "hf"), AGENT2RL_CACHE=cache, **environment)
    error = re.sub(r"(mini-swe-agent) [0-9.]*[0-9]", r"\1 VERSION", read_error(done))
    assert error == MESSAGES[shown]
    assert done.returncode == 1


def test_a_full_disk_is_said_without_a_traceback(launcher: RunLauncher) -> None:
    (launcher.home / "sitecustomize.py").write_text(FULL_DISK)
    done = subprocess.run(
        launcher.command("run", "--task", "gsm8k-mini"),
        env=launcher.environment(PYTHONPATH=str(launcher.home)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert read_error(done) == MESSAGES["agent2rl run --task gsm8k-mini  (on a full disk)"]
    assert done.returncode == 1


def test_a_port_that_is_taken_is_said_with_another_way(launcher: RunLauncher) -> None:
    launcher.runs.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = launcher.cli("view", "--no-browser", "--port", port)
    assert read_error(done).replace(port, "PORT") == MESSAGES["agent2rl view --port PORT  (which is taken)"]
    assert done.returncode == 2


def test_the_page_shows_every_message_as_it_looks() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for shown, message in MESSAGES.items():
        assert f"```text\n$ {shown}\n{message}```\n" in page, f"docs/troubleshooting.md lacks: {shown}"
    assert page.count("```text\n") == len(MESSAGES)
