"""The command lines that Docker and Podman get. A program in their place records them.

`test_containers.py` runs real containers.
"""

import csv
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.sandbox import Mount
from agent2rl.run import sandbox_choice
from agent2rl.sandboxes import container_engine, selftest
from tests.helpers.recorded_docker import (
    DOCKER_FACTS,
    PODMAN_FACTS,
    RecordedDocker,
    install_recorded_docker,
)
from tests.helpers.sandbox_runner import SandboxRunner

DOCKER, PODMAN = registry.find_sandbox("docker"), registry.find_sandbox("podman")


def is_bwrap_allowed() -> bool:
    return shutil.which("bwrap") is not None and not registry.find_sandbox("bubblewrap").check().broken


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedDocker:
    if not is_bwrap_allowed():
        pytest.skip("bubblewrap cannot run here, and plays the containers")
    return install_recorded_docker(tmp_path / "docker", monkeypatch)


def test_a_container_gets_every_restriction_and_is_removed(docker: RecordedDocker, tmp_path: Path) -> None:
    model = tmp_path / "model, the first"
    model.mkdir()
    cell = SandboxRunner(DOCKER, tmp_path / "cell")
    exit_ = cell.shell("pwd; ls /; touch /workspace/mine; exit 7", mounts=(Mount(model, "model"),))
    assert (exit_.reason, exit_.code) == ("exited", 7), cell.log
    assert cell.log.startswith("/workspace\n")
    assert "workspace" in cell.log.split()
    options = docker.find_options()
    assert {
        *("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
        *("--interactive", "--rm", "--pull=never", "--log-driver=none", "--stop-signal=SIGKILL"),
        "--init=false",
    } <= set(options)
    given = dict(option.split("=", 1) for option in options if "=" in option)
    assert not given["--user"].startswith("0:")
    assert int(given["--memory"]) == int(given["--memory-swap"]) > 2 << 30
    assert int(given["--pids-limit"]) > 256
    assert given["--cpuset-cpus"].split(",")[0] == str(min(os.sched_getaffinity(0)))
    assert not any(option.startswith(("--privileged", "--volume", "-v", "--gpus")) for option in options)
    assert f'--mount=type=bind,"source={model}",destination=/workspace/model,ro' in options
    writable = [each for each in options if each.startswith("--mount=") and not each.endswith(",ro")]
    assert sorted(each.rpartition("destination=")[2] for each in writable) == [
        "/home/agent",
        "/tmp",
        "/workspace",
    ]
    assert docker.calls[-1][0] == "rm"
    assert docker.containers == []


def test_the_image_has_directories_and_links_and_is_imported_once(
    docker: RecordedDocker, tmp_path: Path
) -> None:
    cell = SandboxRunner(DOCKER, tmp_path / "cell")
    for _ in range(2):
        assert cell.shell("true").code == 0, cell.log
    assert len([call for call in docker.calls if call[0] == "import"]) <= 1
    assert len(container_engine.make_root_archive()) < 20_000


def find_options(recorded: RecordedDocker, name: str, folder: Path) -> list[str]:
    """The options of a container that the engine then refuses to create."""
    recorded.answer("create", stderr="Error response from daemon: no more containers", code=125)
    with pytest.raises(MachineError, match="no more containers"):
        SandboxRunner(registry.find_sandbox(name), folder).run("true")
    return recorded.find_options()


def test_a_daemon_that_maps_users_or_has_selinux_is_told_otherwise_and_has_no_limits_it_cannot_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"SecurityOptions": ["name=userns", "name=selinux"], "MemoryLimit": False}
    docker = install_recorded_docker(tmp_path / "docker", monkeypatch, facts=facts)
    options = find_options(docker, "docker", tmp_path / "cell")
    assert {"--userns=host", "--security-opt=label=disable"} <= set(options)
    assert not any(option.startswith(("--memory", "--pids-limit", "--cpuset")) for option in options)


@pytest.mark.parametrize("rootless", [True, False])
def test_podman_keeps_the_users_id_and_gets_no_writable_directories_and_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rootless: bool
) -> None:
    host = PODMAN_FACTS["host"] | {"security": {"rootless": rootless}}
    podman = install_recorded_docker(tmp_path / "podman", monkeypatch, "podman", {"host": host})
    options = find_options(podman, "podman", tmp_path / "cell")
    assert {"--read-only-tmpfs=false", "--image-volume=ignore", "--http-proxy=false"} <= set(options)
    assert ("--userns=keep-id" in options) == rootless
    assert any(option.startswith("--memory=") for option in options)


def test_rootless_docker_does_not_promise_another_user_than_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the caller is not root; a root harness has a user id for the command in any case."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    facts = DOCKER_FACTS | {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}
    docker = install_recorded_docker(tmp_path / "docker", monkeypatch, facts=facts)
    assert "--user=0:0" in find_options(docker, "docker", tmp_path / "cell")


def test_an_image_has_its_own_programs_and_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = install_recorded_docker(tmp_path / "docker", monkeypatch)
    with pytest.raises(UserError, match="not on this machine") as caught:
        SandboxRunner(registry.find_sandbox("docker:lab/cuda"), tmp_path / "first").run("true")
    assert caught.value.hint == "Get it: docker pull lab/cuda"
    (docker.folder / "images" / "lab_cuda").touch()
    options = find_options(docker, "docker:lab/cuda", tmp_path / "second")
    assert "sha256:lab_cuda" in options
    assert not any("destination=/usr," in option for option in options)
    assert any(f"destination={selftest.PROBE.parents[1]}," in option for option in options)


def list_mounts(options: list[str]) -> dict[str, tuple[str, bool]]:
    """The targets of bind mounts, each with its source and whether it is read-only."""
    lines = [next(csv.reader([each[len("--mount=") :]])) for each in options if each.startswith("--mount=")]
    values = [[field.partition("=")[2] for field in line] for line in lines]
    return {each[2]: (each[1], "ro" in line) for each, line in zip(values, lines, strict=True)}


def test_what_docker_would_make_writable_in_an_image_is_empty_and_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker makes a volume of every directory that the image declares, and nothing would count it."""
    docker = install_recorded_docker(tmp_path / "docker", monkeypatch)
    volumes = {key: {} for key in ("/data", "/workspace", "/workspace/old", "/home")}
    (docker.folder / "images" / "lab_db").write_text(json.dumps(volumes))
    mounts = list_mounts(find_options(docker, "docker:lab/db", tmp_path / "cell"))
    assert mounts["/data"][1]
    assert mounts["/workspace/old"][1]
    assert mounts["/home"][1]
    assert not mounts["/workspace"][1]
    assert not mounts["/home/agent"][1]


def test_a_python_below_root_is_reached_in_an_image_that_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images give /root to root alone."""
    docker = install_recorded_docker(tmp_path / "docker", monkeypatch)
    (docker.folder / "images" / "lab_cuda").touch()
    (tmp_path / "tool").mkdir(mode=0o755)
    tool = (Mount(tmp_path / "tool", "/root/tools/python"),)
    docker.answer("create", stderr="Error response from daemon: no more containers", code=125)
    with pytest.raises(MachineError, match="no more containers"):
        SandboxRunner(registry.find_sandbox("docker:lab/cuda"), tmp_path / "cell").run("true", mounts=tool)
    mounts = list_mounts(docker.find_options())
    assert mounts["/root"][1]
    assert list(mounts).index("/root") < list(mounts).index("/root/tools/python")
    with pytest.raises(MachineError, match="no more containers"):
        SandboxRunner(DOCKER, tmp_path / "other").run("true", mounts=tool)
    assert "/root" not in list_mounts(docker.find_options())


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_an_image_whose_name_would_be_an_option_is_refused(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_recorded_docker(tmp_path / "engine", monkeypatch, engine)
    with pytest.raises(UserError, match="not the name of an image"):
        SandboxRunner(registry.find_sandbox(f"{engine}:--privileged"), tmp_path / "cell").run("true")


def test_gpus_of_an_image_are_named_to_the_vendors_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_recorded_docker(tmp_path / "docker", monkeypatch)
    engine = container_engine.find_engine("docker")
    (tmp_path / "dev").mkdir()

    def list_arguments(gpus: tuple[str, ...] | None) -> list[str]:
        return container_engine.make_gpu_arguments(engine, gpus, tmp_path / "dev", [tmp_path / "cdi"])

    assert list_arguments(("0",)) == []  # no driver
    (tmp_path / "dev" / "nvidiactl").touch()
    assert list_arguments(()) == []
    assert list_arguments(("2", "3")) == ["--gpus", '"device=2,3"']
    assert list_arguments(None) == ["--gpus", "all"]
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "nvidia.yaml").touch()
    assert list_arguments(("2", "3")) == ["--device=nvidia.com/gpu=2", "--device=nvidia.com/gpu=3"]


def test_a_daemon_that_does_not_answer_is_a_broken_promise_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = install_recorded_docker(tmp_path / "docker", monkeypatch)
    words = "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"
    docker.answer("info", stdout='{"ServerErrors": ["' + words + '"]}')
    isolation = DOCKER.check()
    (promise,) = isolation.broken
    assert "systemctl start docker" in promise.remedy
    assert sandbox_choice.describe_failure(isolation).startswith("Cannot connect to the Docker daemon")


def test_a_missing_engine_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for sandbox, package in ((DOCKER, "docker.io"), (PODMAN, "podman")):
        (promise,) = sandbox.check().broken
        assert package in promise.remedy


def test_containers_come_before_confined_and_after_bubblewrap() -> None:
    assert sandbox_choice.list_candidates() == ["bubblewrap", "docker", "podman", "apptainer", "confined"]


def test_containers_of_dead_harnesses_are_removed_and_those_of_live_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = install_recorded_docker(tmp_path / "docker", monkeypatch)
    live = container_engine.name_container()
    prefix, pid, started, _ = live.rsplit("-", 3)
    dead = f"{prefix}-{pid}-{int(started) + 1}-0123456789ab"
    # Of another machine with the same daemon, where pids mean other processes.
    with monkeypatch.context() as other:
        other.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
        elsewhere = container_engine.name_container().replace(f"-{pid}-", "-1-")
    for name in (live, dead, elsewhere, "agent2rl-of-somebody"):
        (docker.folder / "containers" / name).touch()
    container_engine.remove_orphans(container_engine.find_engine("docker"))
    assert sorted(docker.containers) == sorted([live, elsewhere, "agent2rl-of-somebody"])
