"""The Dockerfile: what can be said of it without building the image."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def print_build(*options: str) -> str:
    """The command of `make image`, which is not run."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "--dry-run", "--no-print-directory", "image", "ENGINE=docker", "ARGS=", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", " ")


def test_it_installs_the_torch_of_the_makefile_and_bubblewrap() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (pinned,) = re.findall(r"^TORCH := (\S+)$", makefile, re.M)
    assert f"ARG TORCH={pinned}\n" in DOCKERFILE
    assert "bubblewrap" in DOCKERFILE


def test_its_user_is_not_root_and_owns_the_repository() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, re.M)
    assert users == ["agent2rl"]
    copies = re.findall(r"^COPY (.*)$", DOCKERFILE, re.M)
    assert all(copy.startswith("--chown=agent2rl ") for copy in copies)


def test_make_image_builds_it_for_cpus_and_for_cuda() -> None:
    assert print_build().split()[-3:] == ["-t", "agent2rl:cpu", "."]
    cuda = print_build("CUDA=1")
    assert "--build-arg TORCH_INDEX= " in cuda
    assert cuda.split()[-3:] == ["-t", "agent2rl:cuda", "."]
    assert "TORCH_INDEX" not in print_build()


def make_image(folder: Path, **programs: str) -> "subprocess.CompletedProcess[str]":
    """Run `make image` with shell scripts in place of the engines."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name, script in programs.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        ["make", "image"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_make_image_takes_the_engine_that_answers(tmp_path: Path) -> None:
    no_daemon = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"
    done = make_image(tmp_path, docker=no_daemon, podman='echo podman "$1"')
    assert (done.returncode, done.stdout, done.stderr) == (0, "podman build\n", "")
    done = make_image(tmp_path, docker=no_daemon, podman="exit 125")
    assert done.returncode != 0
    assert "neither docker nor podman works here: see `docker info`" in done.stderr


def test_no_build_output_and_no_run_is_copied_into_it() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "runs", "build"} <= set(ignored)
