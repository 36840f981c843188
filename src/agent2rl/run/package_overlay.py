"""A writable environment on top of the agent's Python, so that `pip install NAME` works during a run.

It is a virtual environment in the run's scratch directory, which is deleted when the run ends. It sees all
packages of the agent's Python, and its own packages come first. The harness writes it and starts nothing
from it. Later the agent owns it, so the installed packages are read from the names of its directories alone.
"""

import importlib.resources
import os
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from agent2rl.core.sandbox import Mount, SandboxPython
from agent2rl.record.untrusted_files import list_names, sanitize_line
from agent2rl.run.agent_python import AgentPython

DIST_INFO = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)-([A-Za-z0-9][A-Za-z0-9.!+_]*)\.dist-info")
LONGEST_NAME = 200
MOST_PACKAGES = 2_000
SEEN_AT = PurePosixPath("/opt/agent-python")
PIP_PROGRAM = """\
#!{python}
import sys
from pip._internal.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class PackageOverlay:
    prefix: Path
    """Directory of the environment on this computer."""
    seen_at: PurePosixPath
    """Its path inside the sandbox."""
    base: AgentPython

    @property
    def interpreter(self) -> Path:
        """The interpreter, as the agent sees it."""
        return Path(self.seen_at / "bin" / "python")

    @property
    def _site_packages(self) -> PurePosixPath:
        short = ".".join(self.base.lock.version.split(".")[:2])
        return PurePosixPath("lib") / f"python{short}" / "site-packages"

    @classmethod
    def place_in(cls, scratch: Path, base: AgentPython, same_paths: bool) -> Self:
        """Return the overlay of a run. `same_paths`: the sandbox has the paths of this computer."""
        prefix = scratch / "python"
        return cls(prefix, PurePosixPath(prefix) if same_paths else SEEN_AT, base)

    def list_mounts(self) -> tuple[Mount, ...]:
        return (*self.base.list_mounts(), Mount(self.prefix, str(self.seen_at), writable=True))

    def make_sandbox_python(self) -> SandboxPython:
        below = self.base.make_sandbox_python() or SandboxPython(Path(sys.executable).parent)
        variables = {**below.variables, "VIRTUAL_ENV": str(self.seen_at)}
        return SandboxPython(self.interpreter.parent, variables, more_bins=(below.bin,))

    def build(self) -> None:
        """Create the environment, unless an earlier start of the run did."""
        if self.prefix.exists():
            return
        packages = self.prefix / self._site_packages
        programs = self.prefix / "bin"
        for directory in (packages, programs):
            directory.mkdir(parents=True)
        shared = "false" if self.base.lock.kind == "venv" else "true"
        settings = (
            f"home = {self.base.find_home()}\ninclude-system-site-packages = {shared}\n"
            f"version = {self.base.lock.version}\n"
        )
        (self.prefix / "pyvenv.cfg").write_text(settings, encoding="utf-8")
        lines = [f"import site; site.addsitedir({str(path)!r})\n" for path in self.base.packages]
        (packages / "_agent2rl_base.pth").write_text("".join(lines), encoding="utf-8")
        for name in ("python", "python3", f"python{packages.parent.name.removeprefix('python')}"):
            (programs / name).symlink_to(self.base.interpreter)
        if not any((directory / "pip").is_dir() for directory in self.base.packages):
            _unpack_bundled_pip(packages)
        for name in ("pip", "pip3"):
            (programs / name).write_text(PIP_PROGRAM.format(python=self.interpreter), encoding="utf-8")
            (programs / name).chmod(0o755)
        for path, *_ in os.walk(self.prefix):
            Path(path).chmod(0o755)

    def list_installed_packages(self) -> tuple[str, ...]:
        """Return what is installed here now as NAME==VERSION, sorted; without what the base has."""
        names = list_names(self.prefix, self._site_packages)
        found = [match for name in names if (match := DIST_INFO.fullmatch(name))]
        lines = {f"{re.sub('[-_.]+', '-', each[1]).lower()}=={each[2]}" for each in found}
        return tuple(sanitize_line(line, LONGEST_NAME) for line in sorted(lines)[:MOST_PACKAGES])


def _unpack_bundled_pip(target: Path) -> None:
    """Unpack the pip that this Python ships, if it ships one."""
    try:
        bundled = importlib.resources.files("ensurepip") / "_bundled"
        wheels = [each for each in bundled.iterdir() if each.name.startswith("pip-")]
    except (ModuleNotFoundError, OSError):
        return
    for wheel in wheels[:1]:
        with wheel.open("rb") as file, zipfile.ZipFile(file) as archive:
            archive.extractall(target)
