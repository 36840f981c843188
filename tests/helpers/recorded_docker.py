"""A program in place of Docker's that records its command lines, and runs containers in bubblewrap."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """\
#!{python} -I
import csv, json, os, subprocess, sys
from pathlib import Path

folder, arguments = Path({folder!r}), sys.argv[1:]
with open(folder / "calls.jsonl", "a") as file:
    file.write(json.dumps(arguments) + "\\n")
answer = (folder / "answers" / arguments[0])
if answer.exists():
    words = json.loads(answer.read_text())
    print(words["stdout"])
    print(words["stderr"], file=sys.stderr)
    sys.exit(words["code"])
match arguments:
    case ["image", "inspect", *_, image]:
        known = folder / "images" / image.replace("/", "_")
        if not known.exists():
            known = folder / "images" / image.removeprefix("sha256:")
        if not known.exists():
            sys.exit("Error response from daemon: No such image: " + image)
        print(known.read_text() or "null" if "Volumes" in " ".join(arguments) else "sha256:" + known.name)
    case ["import", "-", image]:
        sys.stdin.buffer.read()
        (folder / "images" / image).touch()
    case ["create", "--name", name, *options]:
        (folder / "containers" / name).write_text(json.dumps(options))
    case ["start", *_, name]:
        options = json.loads((folder / "containers" / name).read_text())
        image = next(number for number, each in enumerate(options) if each.startswith("sha256:"))
        flags = dict(each.split("=", 1) for each in options[:image] if "=" in each)
        view = ["--unshare-pid", "--unshare-net", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
        for link in ("bin", "lib", "lib64", "sbin"):
            if os.path.islink("/" + link):
                view += ["--symlink", os.readlink("/" + link), "/" + link]
        for option in options[:image]:
            if option.startswith("--mount="):
                (fields,) = csv.reader([option.removeprefix("--mount=")])
                source, target = (each.partition("=")[2] for each in fields[1:3])
                view += ["--ro-bind" if "ro" in fields else "--bind", source, target]
        command = [flags["--entrypoint"], *options[image + 1 :]]
        sys.exit(subprocess.run(["bwrap", *view, "--chdir", flags["--workdir"], "--", *command]).returncode)
    case ["rm", *_, name]:
        if not (folder / "containers" / name).exists():
            sys.exit("Error response from daemon: No such container: " + name)
        (folder / "containers" / name).unlink()
    case ["ps", *_]:
        print(*[each.name for each in (folder / "containers").iterdir()], sep="\\n")
"""
DOCKER_FACTS = {
    "MemoryLimit": True,
    "PidsLimit": True,
    "CPUSet": True,
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
}
PODMAN_FACTS: dict[str, dict[str, Any]] = {
    "host": {
        "cgroupControllers": ["cpu", "memory", "pids"],
        "cgroupVersion": "v2",
        "security": {"rootless": False, "selinuxEnabled": False},
        "serviceIsRemote": False,
    }
}


@dataclass(frozen=True)
class RecordedDocker:
    folder: Path

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    @property
    def containers(self) -> list[str]:
        return [each.name for each in (self.folder / "containers").iterdir()]

    def answer(self, command: str, stdout: str = "", stderr: str = "", code: int = 0) -> None:
        """Let a command print this from now on, and do nothing."""
        words = {"stdout": stdout, "stderr": stderr, "code": code}
        (self.folder / "answers" / command).write_text(json.dumps(words))

    def find_options(self) -> list[str]:
        """The options of the last container."""
        return [call for call in self.calls if call[0] == "create"][-1]


def install_recorded_docker(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "docker", facts: Any = None
) -> RecordedDocker:
    for part in ("answers", "images", "containers", "bin"):
        (folder / part).mkdir(parents=True)
    program = folder / "bin" / name
    program.write_text(PROGRAM.format(python=os.path.realpath(sys.executable), folder=str(folder)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    docker = RecordedDocker(folder)
    docker.answer("info", json.dumps(facts or (DOCKER_FACTS if name == "docker" else PODMAN_FACTS)))
    return docker
