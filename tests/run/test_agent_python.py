"""The agent's Python environment: what is read of it without running it, and what is refused."""

import json
import os
import sys
from pathlib import Path

import pytest

from agent2rl.core.errors import UserError
from agent2rl.run.agent_python import AgentPython, find_agent_python, find_own_python
from tests.helpers.python_environments import add_package, get_packages, make_venv
from tests.helpers.run_launcher import RunLauncher

VERSION = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return make_venv(tmp_path / "env")


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        find_agent_python(path)
    assert error.value.hint
    return error.value.message


def is_shown(python: AgentPython, path: Path) -> bool:
    return any(path.is_relative_to(place) for place in (*python.shown, Path("/usr")))


def test_the_lock_lists_every_package_and_the_interpreter_by_their_files(environment: Path) -> None:
    add_package(environment, "Flash_Attn", "2.9.1", code="raise SystemExit('it was run')")
    add_package(environment, "torch", "2.13.0")
    python = find_agent_python(environment)
    assert (python.lock.kind, python.lock.version) == ("venv", VERSION)
    assert python.lock.packages == ("flash-attn==2.9.1", "torch==2.13.0")
    assert python.lock.training_packages == {"torch": "2.13.0", "flash-attn": "2.9.1"}
    assert python.render_package_list().splitlines()[1:] == ["flash-attn==2.9.1", "torch==2.13.0"]


def test_equal_packages_have_the_same_lock_wherever_they_lie(tmp_path: Path, environment: Path) -> None:
    other = make_venv(tmp_path / "other")
    assert find_agent_python(environment).lock.sha256 == find_agent_python(other).lock.sha256
    add_package(other, "torch", "2.13.0")
    assert find_agent_python(environment).lock.sha256 != find_agent_python(other).lock.sha256


def test_the_installation_that_an_environment_was_made_from_is_shown_too(environment: Path) -> None:
    python = find_agent_python(environment)
    assert is_shown(python, environment / "bin" / "python")
    assert is_shown(python, Path(os.path.realpath(sys.executable)))
    assert is_shown(python, Path(os.path.realpath(os.__file__)))
    sandbox_python = python.make_sandbox_python()
    assert sandbox_python is not None
    assert sandbox_python.variables == {"VIRTUAL_ENV": str(environment)}


def test_an_environment_is_found_by_its_project_its_interpreter_and_a_link(tmp_path: Path) -> None:
    project = tmp_path / "project"
    inside = make_venv(project / ".venv")
    (tmp_path / "link").symlink_to(inside)
    assert find_agent_python(project).prefix == inside
    assert find_agent_python(inside / "bin" / "python").prefix == inside
    linked = find_agent_python(tmp_path / "link")
    assert linked.prefix == tmp_path / "link"
    assert is_shown(linked, tmp_path / "link")
    assert is_shown(linked, inside)


def test_a_managed_installation_behind_a_linked_directory_is_shown_by_both_names(
    tmp_path: Path, environment: Path
) -> None:
    """uv makes environments that refer to `cpython-3.11-…`, a link to `cpython-3.11.7-…`."""
    (tmp_path / "managed").mkdir()
    (tmp_path / "managed" / "cpython-3").symlink_to(sys.base_prefix)
    (environment / "bin" / "python").unlink()
    (environment / "bin" / "python").symlink_to(tmp_path / "managed" / "cpython-3" / "bin" / "python3")
    python = find_agent_python(environment)
    assert tmp_path / "managed" / "cpython-3" in python.shown
    assert is_shown(python, Path(os.path.realpath(sys.base_prefix)))


def test_packages_of_the_installation_count_if_the_environment_uses_them(tmp_path: Path) -> None:
    base = make_venv(tmp_path / "base")
    (base / "pyvenv.cfg").unlink()
    add_package(base, "torch", "2.13.0")
    environment = make_venv(tmp_path / "env")
    add_package(environment, "trl", "1.16.0")
    home = f"home = {base}/bin\nversion = {VERSION}\ninclude-system-site-packages = "
    (environment / "pyvenv.cfg").write_text(f"{home}false\n")
    assert find_agent_python(environment).lock.packages == ("trl==1.16.0",)
    (environment / "pyvenv.cfg").write_text(f"{home}true\n")
    assert find_agent_python(environment).lock.packages == ("torch==2.13.0", "trl==1.16.0")


def test_a_package_that_is_installed_in_place_is_listed_as_not_shown(environment: Path) -> None:
    add_package(environment, "vllm", "0.32.0", editable=True)
    python = find_agent_python(environment)
    assert python.lock.editable == ("vllm",)
    assert python.lock.training_packages == {}
    assert "vllm==0.32.0  # installed in place" in python.render_package_list()


def test_a_copy_of_agent2rl_is_known_so_that_its_evaluation_data_can_be_hidden(environment: Path) -> None:
    assert not find_agent_python(environment).has_agent2rl
    copy = add_package(environment, "agent2rl", "0.1.0")
    python = find_agent_python(environment)
    assert python.has_agent2rl
    assert copy in python.list_agent2rl_copies()


def test_a_copy_of_agent2rl_in_the_installation_is_known_too(tmp_path: Path, environment: Path) -> None:
    base = make_venv(tmp_path / "conda")
    beside = make_venv(base / "envs" / "other")
    copies = [add_package(place, "agent2rl", "0.1.0") for place in (base, beside)]
    (environment / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = {VERSION}\n")
    python = find_agent_python(environment)
    assert not python.has_agent2rl
    assert {*copies} <= {*python.list_agent2rl_copies()}


def test_without_an_environment_the_agent_has_the_one_of_the_harness() -> None:
    own = find_own_python()
    assert own.lock.version == VERSION
    assert own.has_agent2rl
    assert own.make_sandbox_python() is None
    assert own.list_mounts() == ()
    assert {"agent2rl", "numpy"} <= {line.partition("==")[0] for line in own.lock.packages}


def test_a_path_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    assert "no directory" in refusal(tmp_path / "absent")
    (tmp_path / "folder").mkdir()
    assert "is not a Python environment" in refusal(tmp_path / "folder")
    (tmp_path / "folder" / "pyproject.toml").write_text("")
    assert "has no .venv" in refusal(tmp_path / "folder")


def test_an_environment_without_a_working_interpreter_is_refused(environment: Path) -> None:
    program = environment / "bin" / "python"
    program.unlink()
    assert "has no interpreter" in refusal(environment)
    program.symlink_to("/gone/bin/python3")
    assert "leads to /gone/bin/python3" in refusal(environment)
    program.unlink()
    program.write_text("#!/bin/sh\n")
    assert "is not a program of this system" in refusal(environment)


def test_an_interpreter_of_another_architecture_is_refused_by_name(environment: Path) -> None:
    header = bytearray(Path(sys.executable).read_bytes()[:64])
    header[18:20] = (243).to_bytes(2, "little")
    (environment / "bin" / "python").unlink()
    (environment / "bin" / "python").write_bytes(header)
    assert "another architecture (riscv" in refusal(environment)


def test_packages_that_are_links_into_a_hidden_cache_are_refused(tmp_path: Path, environment: Path) -> None:
    package = add_package(environment, "torch", "2.13.0")
    metadata = package.with_name("torch-2.13.0.dist-info")
    (tmp_path / "cache").mkdir()
    (metadata / "METADATA").rename(tmp_path / "cache" / "METADATA")
    (metadata / "METADATA").symlink_to(tmp_path / "cache" / "METADATA")
    assert "are links to" in refusal(environment)


@pytest.mark.parametrize("part", ["", "lib", "package"])
def test_what_the_user_of_the_sandbox_cannot_read_is_refused(environment: Path, part: str) -> None:
    closed = {"": environment, "lib": get_packages(environment)}.get(part) or add_package(
        environment, "torch", "2.13.0"
    )
    closed.chmod(0o000 if os.geteuid() else 0o700)
    try:
        message = refusal(environment)
    finally:
        closed.chmod(0o755)
    assert "cannot" in message


def test_an_installation_around_the_home_directory_is_refused(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(environment / "home"))
    assert "would have to show all of" in refusal(environment)


def test_check_starts_the_environment_in_the_sandbox(launcher: RunLauncher, environment: Path) -> None:
    add_package(environment, "torch", "2.13.0")
    done = launcher.cli("check", "--json", "--agent-python", str(environment))
    finding = json.loads(done.stdout)[0]
    assert (finding["name"], finding["state"]) == ("agent's python", "ok")
    assert "torch 2.13.0" in finding["detail"]
    done = launcher.cli("check", "--json", "--agent-python", str(environment / "lib"))
    assert done.returncode == 1
    assert json.loads(done.stdout)[0]["state"] == "broken"
