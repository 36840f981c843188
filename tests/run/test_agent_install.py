"""Agents are installed by the real npm and pip, from a registry of our own."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent2rl.core.agent import AgentPackage
from agent2rl.core.errors import ExternalServiceError, MachineError, UserError
from agent2rl.run.agent_install import find_installed, get_install_path, install_agent_package, pip_install
from tests.helpers.run_launcher import RunLauncher
from tests.run.package_registry import NpmRegistry, serve_npm_registry, write_wheel

SAYS_ITS_VERSION = '#!/usr/bin/env node\nconsole.log("1.0.0", process.argv.slice(2).join(" "))\n'
TINY = AgentPackage("npm", "tiny-agent", "1.0.0", program="tiny-agent")

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[NpmRegistry]:
    with serve_npm_registry() as server:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url)
        monkeypatch.setenv("NPM_CONFIG_CACHE", str(tmp_path / "npm"))
        monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "0")
        yield server


def tell(_: str) -> None:
    pass


@needs_npm
def test_an_npm_package_is_there_whole_and_readable_by_all(registry: NpmRegistry, tmp_path: Path) -> None:
    registry.publish("tiny-agent", "1.0.0", SAYS_ITS_VERSION)
    heard: list[str] = []
    assert find_installed("tiny", TINY, tmp_path) is None
    prefix = install_agent_package("tiny", TINY, tmp_path, heard.append)
    assert prefix == tmp_path / "agents" / "tiny-1.0.0" == find_installed("tiny", TINY, tmp_path)
    assert heard == ["installing tiny-agent 1.0.0 from npm"]
    said = subprocess.run([prefix / "bin" / "tiny-agent", "hi"], capture_output=True, text=True, check=True)
    assert said.stdout == "1.0.0 hi\n"
    for path in (prefix.parent, prefix, *prefix.rglob("*")):
        needed = 0o005 if path.is_dir() else 0o004
        assert path.stat().st_mode & needed == needed
    assert all(path.resolve().is_relative_to(prefix.resolve()) for path in prefix.rglob("*"))


@needs_npm
def test_what_is_there_is_not_fetched_again_and_what_is_broken_off_is_not_there(
    registry: NpmRegistry, tmp_path: Path
) -> None:
    target = get_install_path("tiny", TINY, tmp_path)
    for leftover in (target, target.with_name(f".{target.name}.new")):
        (leftover / "bin").mkdir(parents=True)
        (leftover / "bin" / "tiny-agent").write_text("half of it")
    assert find_installed("tiny", TINY, tmp_path) is None
    registry.publish("tiny-agent", "1.0.0", SAYS_ITS_VERSION)
    install_agent_package("tiny", TINY, tmp_path, tell)
    registry.pages.clear()
    heard: list[str] = []
    assert install_agent_package("tiny", TINY, tmp_path, heard.append) == target
    assert heard == []
    assert find_installed("tiny", replace(TINY, also=("more@1",)), tmp_path) is None
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == [target.name]


@needs_npm
@pytest.mark.parametrize(
    ("version", "more", "script", "error", "says"),
    [
        ("2.0.0", {}, SAYS_ITS_VERSION, UserError, "has no tiny-agent 1.0.0"),
        ("1.0.0", {"os": ["plan9"]}, SAYS_ITS_VERSION, MachineError, "no build for this machine"),
        ("1.0.0", {}, "#!/bin/sh\necho not here; exit 1\n", MachineError, "does not start.*not here"),
    ],
    ids=["no such version", "no build", "does not start"],
)
def test_what_cannot_be_installed_says_why_and_leaves_nothing(
    registry: NpmRegistry,
    tmp_path: Path,
    version: str,
    more: dict[str, object],
    script: str,
    error: type[Exception],
    says: str,
) -> None:
    registry.publish("tiny-agent", version, script, **more)
    with pytest.raises(error, match=says):
        install_agent_package("tiny", TINY, tmp_path, tell)
    assert find_installed("tiny", TINY, tmp_path) is None
    assert not get_install_path("tiny", TINY, tmp_path).exists()


@needs_npm
def test_without_a_network_npm_says_so(
    registry: NpmRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    with pytest.raises(ExternalServiceError, match="cannot reach"):
        install_agent_package("tiny", TINY, tmp_path, tell)


def test_a_python_package_brings_its_python_and_runs_wherever_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "wheels", "tinyagent", "1.0", "import sys\nprint(sys.argv[1:], sys.prefix)\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    package = AgentPackage("pypi", "tinyagent", "1.0", program="agent", probe=("-m", "tinyagent"))
    prefix = install_agent_package("tiny", package, tmp_path, tell)
    assert (prefix / "bin" / "agent").readlink().parts[0] == ".."
    for link in filter(Path.is_symlink, prefix.rglob("*")):
        leads = link.resolve()
        assert leads.is_relative_to(prefix.resolve()) or leads.is_relative_to("/usr")
    elsewhere = tmp_path / "elsewhere"
    prefix.rename(elsewhere)
    argv = [str(elsewhere / "bin" / "agent"), "-m", "tinyagent", "hi"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, env={}).stdout
    assert said.startswith(f"['hi'] {elsewhere}")


def test_pip_s_failures_say_whose_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ("--target", str(tmp_path), "tinyagent==1.0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ExternalServiceError, match="cannot reach its index for tinyagent"):
        pip_install("tinyagent", wanted)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="has no tinyagent"):
        pip_install("tinyagent", wanted)


def test_the_agents_are_listed_with_what_they_speak_and_whether_they_are_there(launcher: RunLauncher) -> None:
    done = launcher.cli("agents", "--json", AGENT2RL_CACHE=str(launcher.home))
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["claude-code"]["wires"] == ["anthropic"]
    assert not any(row["installed"] for row in rows.values())
    assert "nop" not in rows


def test_an_agent_that_does_not_exist_is_not_installed(launcher: RunLauncher) -> None:
    done = launcher.cli("agents", "install", "claude-code", "nop")
    assert done.returncode == 2
    assert "no agent 'nop' to install" in done.stderr
    assert "claude-code" in done.stderr
