"""A container for Harbor that needs no Docker: bubblewrap, with the files that the Dockerfile copies.

It is an environment of Harbor: `harbor run -e tests.interop.bubblewrap_container:BubblewrapContainer`. It
follows the lines COPY, ENV and WORKDIR of the image's Dockerfile. The lines FROM and RUN install programs
and packages; here those of this machine and of this Python are shown instead. Volumes of docker-compose.yaml
are directories of this machine, named as `volumes` of the environment's options, as JSON. There is no
network. Users are not switched.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

HOST = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")


class BubblewrapContainer(BaseEnvironment):
    def __init__(self, *args: Any, volumes: str | dict[str, str] = "{}", **kwargs: Any) -> None:
        self._volumes: dict[str, str] = json.loads(volumes) if isinstance(volumes, str) else volumes
        self._root = Path(tempfile.mkdtemp(prefix="container-"))
        self._image_env: dict[str, str] = {}
        self._workdir = "/"
        self._read_only: list[tuple[str, str]] = []
        super().__init__(*args, **kwargs)
        self._bound = [(mount["source"], mount["target"]) for mount in kwargs.get("mounts") or ()]

    @staticmethod
    def type() -> str:
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True, mounted=True)

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(f"There is no Dockerfile in {self.environment_dir}.")

    async def start(self, force_build: bool) -> None:  # noqa: ARG002
        for name in ("tmp", "root", "logs"):
            (self._root / name).mkdir()
        for line in (self.environment_dir / "Dockerfile").read_text().splitlines():
            self._follow_line(line)
        compose = yaml.safe_load((self.environment_dir / "docker-compose.yaml").read_text())
        for mount in compose["services"]["main"]["volumes"]:
            assert mount["type"] == "volume"
            assert mount["read_only"] is True
            name = compose["volumes"][mount["source"]]["name"]
            self._read_only.append((self._volumes[name], mount["target"]))
        for _, target in (*self._read_only, *self._bound):
            self._on_host(target).mkdir(parents=True, exist_ok=True)

    def _follow_line(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        words = [word for word in rest.split() if not word.startswith("--")]
        if kind == "COPY":
            source, target = self.environment_dir / words[0], self._in_root(words[1])
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)
        elif kind == "ENV":
            self._image_env.update((word.partition("=")[0], word.partition("=")[2]) for word in words)
        elif kind == "WORKDIR":
            self._workdir = words[0]
            self._in_root(words[0]).mkdir(parents=True, exist_ok=True)

    async def stop(self, delete: bool) -> None:  # noqa: ARG002
        shutil.rmtree(self._root, ignore_errors=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,  # noqa: ARG002
    ) -> ExecResult:
        argv = ["bwrap", "--die-with-parent", "--unshare-net", "--unshare-pid", "--cap-add", "ALL"]
        argv += ["--bind", str(self._root), "/"]
        for path in HOST:
            argv += ["--ro-bind-try", path, path]
        for prefix in sorted({sys.prefix, sys.base_prefix}):
            argv += ["--ro-bind", prefix, prefix]
        argv += ["--proc", "/proc", "--dev", "/dev", "--bind", "/sys", "/sys"]
        for source, target in self._read_only:
            argv += ["--ro-bind", source, target]
        for source, target in self._bound:
            argv += ["--bind", source, target]
        values = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin:/usr/sbin", "HOME": "/root", **self._image_env}
        values |= self._merge_env(env) or {}
        argv += ["--clearenv", *(part for name in values for part in ("--setenv", name, values[name]))]
        argv += ["--chdir", cwd or self.task_env_config.workdir or self._workdir, "bash", "-c", command]
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self._on_host(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source_path, target)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._on_host(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self._on_host(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._on_host(source_dir), target_dir, dirs_exist_ok=True)

    def _in_root(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _on_host(self, path: str) -> Path:
        """Return where a path of the container lies on this machine."""
        for source, target in self._bound:
            if PurePosixPath(path).is_relative_to(target):
                return Path(source) / PurePosixPath(path).relative_to(target)
        return Path(os.path.normpath(self._in_root(path)))
