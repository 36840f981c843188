"""The agent's Python environment: a virtual environment, a conda prefix or a project with a `.venv`.

`--agent-python` names one. The sandbox shows it read-only, with the installation that it was made from, and
it is first on the PATH. Without the option, the agent has the harness's own environment.

Nothing of the environment runs outside the sandbox. Versions come from the metadata of its packages, and the
architecture from the header of its interpreter. The lock is the list of all packages with their versions.
"""

import functools
import json
import os
import platform
import re
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent2rl
from agent2rl.core.errors import UserError
from agent2rl.core.records import Limits, PythonKind, PythonLock
from agent2rl.core.sandbox import Command, Enclosure, Exit, Mount, Sandbox, SandboxPython
from agent2rl.record.files import sha256_text

EXPECTED = "Name a virtual environment, a conda prefix, or a project directory with a .venv."
ALREADY_SHOWN = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives")
"""Places that every sandbox shows."""
PACKAGE_DIRECTORIES = ("lib*/python3*/*-packages", "envs/*/lib*/python3*/*-packages")
"""Where installations keep packages; conda keeps whole environments below its own prefix."""
PACKAGE = Path(agent2rl.__file__).parent


@dataclass(frozen=True)
class AgentPython:
    prefix: Path
    lock: PythonLock
    shown: tuple[Path, ...] = ()
    """Paths that the sandbox must show; empty for the harness's own environment, which it always shows."""
    packages: tuple[Path, ...] = ()
    """Directories of installed packages."""
    is_own: bool = False
    """Whether it is the harness's own environment."""

    @property
    def interpreter(self) -> Path:
        return Path(sys.executable) if self.is_own else self.prefix / "bin" / "python"

    @property
    def has_agent2rl(self) -> bool:
        """Whether its programs can import agent2rl: from a copy, or from the one that every sandbox shows."""
        copies = [directory / "agent2rl" / "__init__.py" for directory in self.packages]
        return self.is_own or any(map(Path.is_file, copies)) or _links_to_own_package(self.packages)

    def list_agent2rl_copies(self) -> tuple[Path, ...]:
        """Return the copies of this package in all that is shown. They contain evaluation data too."""
        directories = [*self.packages]
        for place in self.shown:
            directories += [path for pattern in PACKAGE_DIRECTORIES for path in place.glob(pattern)]
        copies = dict.fromkeys(directory / "agent2rl" for directory in directories)
        return tuple(copy for copy in copies if copy.is_dir())

    def find_home(self) -> str:
        """Return the directory of the interpreter that the environment was made from."""
        return _read_venv_settings(self.prefix).get("home", str(self.interpreter.parent))

    def list_mounts(self) -> tuple[Mount, ...]:
        return tuple(Mount(path, str(path)) for path in self.shown)

    def make_sandbox_python(self) -> SandboxPython | None:
        """Return how commands find it; None for the harness's own, which is the default."""
        if self.is_own:
            return None
        names = {"venv": "VIRTUAL_ENV", "conda": "CONDA_PREFIX"}
        variables = {names[self.lock.kind]: str(self.prefix)} if self.lock.kind in names else {}
        return SandboxPython(self.prefix / "bin", variables)

    def render_package_list(self) -> str:
        """Return the whole list, one package a line."""
        note = "" if self.is_own else "  # installed in place from elsewhere, so the sandbox does not show it"
        lines = [
            f"{line}{note if line.partition('==')[0] in self.lock.editable else ''}"
            for line in self.lock.packages
        ]
        return "\n".join([f"# Python {self.lock.version}, {self.interpreter}", *lines, ""])


@functools.cache
def find_own_python() -> AgentPython:
    """Return the environment that runs the harness."""
    packages = tuple({Path(sysconfig.get_path(name)): None for name in ("purelib", "platlib")})
    prefix = Path(sys.prefix)
    lock = _make_lock(_find_kind(prefix) or "installation", prefix, platform.python_version(), packages)
    return AgentPython(prefix, lock, packages=packages, is_own=True)


def find_agent_python(path: Path) -> AgentPython:
    """Find the environment that `--agent-python` names; raise UserError if an agent cannot use it."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 (the environment may be known by a link)
    try:
        return _read_environment(path)
    except OSError as error:
        raise UserError(
            f"The agent's Python {path} cannot be read: {error.strerror} ({error.filename}).", EXPECTED
        ) from error


def _read_environment(path: Path) -> AgentPython:
    prefix, kind = _find_prefix(path)
    interpreter = _find_interpreter(prefix)
    settings = _read_venv_settings(prefix)
    installations = _list_installations(interpreter, settings)
    version = _read_version(prefix, installations, settings)
    packages = _list_package_directories(prefix, settings, version)
    shown = _select_shown((prefix, *installations))
    _require_real_files(prefix, packages, shown)
    _require_readable(prefix, (*shown, Path(os.path.realpath(interpreter))), packages)
    return AgentPython(prefix, _make_lock(kind, prefix, version, packages), shown, packages)


# Finding the environment and its interpreter.


def _find_prefix(path: Path) -> tuple[Path, PythonKind]:
    if path.is_file() and path.parent.name == "bin":  # an interpreter stands for its environment
        path = path.parent.parent
    if not path.is_dir():
        raise UserError(f"--agent-python: there is no directory {path}.", EXPECTED)
    for place in (path, path / ".venv"):
        if kind := _find_kind(place):
            return place, kind
    if any((path / name).exists() for name in ("pyproject.toml", "uv.lock")):
        raise UserError(f"The project {path} has no .venv.", "Run `uv sync` in it, which makes one.")
    raise UserError(
        f"{path} is not a Python environment: it has no pyvenv.cfg, no conda-meta and no .venv.", EXPECTED
    )


def _find_kind(place: Path) -> PythonKind | None:
    if (place / "pyvenv.cfg").is_file():
        return "venv"
    if (place / "conda-meta").is_dir():
        return "conda"
    return "installation" if any(place.glob("lib/python3*/os.py")) else None


def _find_interpreter(prefix: Path) -> Path:
    program = prefix / "bin" / "python"
    if program.is_symlink() and not program.exists():
        raise UserError(
            f"The interpreter of {prefix} is gone: bin/python leads to {os.path.realpath(program)}.",
            "Recreate the environment with a Python that exists.",
        )
    if not program.is_file():
        raise UserError(f"{prefix} has no interpreter bin/python.", EXPECTED)
    machine, own = _read_machine(program), _read_machine(Path(sys.executable))
    if machine is None:
        raise UserError(
            f"{program} is not a program of this system.", "Recreate the environment on this machine."
        )
    if machine != own:
        raise UserError(
            f"{program} is for another architecture ({_name_machine(machine)}, this machine has "
            f"{_name_machine(own)}).",
            "Recreate the environment on this machine.",
        )
    return program


def _read_machine(program: Path) -> bytes | None:
    """Return word size, byte order and machine from an ELF header; None if there is none."""
    with program.open("rb") as file:
        header = file.read(20)
    return header[4:6] + header[18:20] if header.startswith(b"\x7fELF") and len(header) == 20 else None


def _name_machine(machine: bytes | None) -> str:
    if machine is None:
        return "unknown"
    number = int.from_bytes(machine[2:], "big" if machine[1] == 2 else "little")
    return {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}.get(number, f"ELF {number}")


def _read_venv_settings(prefix: Path) -> dict[str, str]:
    file = prefix / "pyvenv.cfg"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _list_installations(interpreter: Path, settings: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the prefixes of the Python that an environment was made from, by each of their names."""
    programs = [*_follow_links(interpreter)[1:], Path(os.path.realpath(interpreter))]
    if home := settings.get("home"):
        programs.append(Path(home) / "python")
    own = interpreter.parent.parent
    places = map(_get_installation, programs)
    return tuple(dict.fromkeys(place for place in places if place != own and place.exists()))


def _get_installation(program: Path) -> Path:
    """Return the prefix of an interpreter; of one that is not in a `bin`, its own path."""
    # Where /bin is a link to /usr/bin, this is the installation in /usr.
    if program.parent == Path("/bin"):
        return Path("/usr")
    return program.parent.parent if program.parent.name == "bin" else program


def _follow_links(path: Path) -> list[Path]:
    """Return the path and each target of its chain of links."""
    chain = [path]
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / path.readlink()))
        chain.append(path)
    return chain


def _read_version(prefix: Path, installations: Iterable[Path], settings: Mapping[str, str]) -> str:
    for key in ("version", "version_info"):
        if match := re.match(r"\d+\.\d+(\.\d+)?", settings.get(key, "")):
            return match[0]
    for name in sorted(path.name for path in prefix.glob("conda-meta/python-3*.json")):
        if match := re.match(r"python-(\d+\.\d+\.\d+)-", name):
            return match[1]
    for place in (prefix, *installations):
        for header in place.glob("include/python3*/patchlevel.h"):
            if match := re.search(r'PY_VERSION\s+"(\d+\.\d+\.\d+)', header.read_text(encoding="utf-8")):
                return match[1]
        for library in sorted(place.glob("lib/python3.*")):
            return library.name.removeprefix("python")
    raise UserError(f"{prefix} does not say which Python it is.", EXPECTED)


# What the sandbox shows.


def _select_shown(places: Iterable[Path]) -> tuple[Path, ...]:
    """Return the places outside /usr by their given and real names, each once, parents first."""
    names = {name for place in places for name in (place, Path(os.path.realpath(place)))}
    new = {name for name in names if not any(name.is_relative_to(shown) for shown in ALREADY_SHOWN)}
    for name in new:
        if Path(os.path.realpath(Path.home())).is_relative_to(os.path.realpath(name)):
            raise UserError(
                f"The sandbox would have to show all of {name}, because a Python is installed there.",
                "Make the environment from a Python in a directory of its own, such as one of uv or conda.",
            )
    return tuple(sorted(name for name in new if not any(other in name.parents for other in new)))


def _list_package_directories(prefix: Path, settings: Mapping[str, str], version: str) -> tuple[Path, ...]:
    short = ".".join(version.split(".")[:2])
    patterns, places = [f"lib*/python{short}/site-packages"], [prefix]
    if settings.get("include-system-site-packages", "").lower() == "true":
        places.append(_get_installation(Path(settings.get("home", "/usr/bin")) / "python"))
        patterns += [f"lib/python{name}/dist-packages" for name in (short, "3")]
        patterns += [f"local/lib/python{short}/dist-packages"]
    found: dict[Path, Path] = {}
    for place in places:
        for pattern in patterns:
            for directory in sorted(place.glob(pattern)):
                found.setdefault(Path(os.path.realpath(directory)), directory)
    return tuple(found.values())


def _require_real_files(prefix: Path, packages: Iterable[Path], shown: Sequence[Path]) -> None:
    """Raise UserError if packages are links to files that the sandbox does not show."""
    visible = (*shown, *map(Path, ALREADY_SHOWN))
    for metadata in _list_metadata_files(packages):
        real = Path(os.path.realpath(metadata))
        if not any(real.is_relative_to(place) for place in visible):
            raise UserError(
                f"Packages of {prefix} are links to {real.parents[1]}, which the sandbox does not show.",
                "Install them as files: uv does so with UV_LINK_MODE=copy or hardlink.",
            )


def _require_readable(prefix: Path, places: Sequence[Path], packages: Sequence[Path]) -> None:
    """Raise UserError if the sandbox's user cannot read the main parts of the environment.

    The user is another one if the harness is root.
    """
    entries = (entry for directory in packages for entry in directory.iterdir() if entry.exists())
    for path in (*places, *packages, *entries):
        needed = 0o005 if path.is_dir() else 0o004
        if os.geteuid() == 0:
            readable = path.stat().st_mode & needed == needed
        else:
            readable = os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
        if not readable:
            raise UserError(
                f"The sandbox must read {path}, but its user cannot.",
                f"Run `chmod -R o+rX {path if path in places else prefix}`; "
                "its parent directories may stay closed.",
            )


def _links_to_own_package(packages: Iterable[Path]) -> bool:
    """Return whether the environment has this very package, installed in place."""
    files = (file for directory in packages for file in directory.glob("*.pth"))
    lines = (line for file in files for line in file.read_text(errors="replace").splitlines())
    return any(line.strip() == str(PACKAGE.parent) for line in lines)


# The lock.


def _make_lock(kind: PythonKind, prefix: Path, version: str, packages: Sequence[Path]) -> PythonLock:
    versions: dict[str, str] = {}
    editable = set()
    for metadata in _list_metadata_files(packages):
        name, installed = _read_name_and_version(metadata)
        if not name or name in versions:  # the first directory is the one that Python imports from
            continue
        versions[name] = installed
        if _is_editable(metadata.parent):
            editable.add(name)
    if _links_to_own_package(packages):
        editable.discard("agent2rl")
    lines = tuple(f"{name}=={installed}" for name, installed in sorted(versions.items()))
    return PythonLock(
        kind=kind,
        path=str(prefix),
        version=version,
        packages=lines,
        editable=tuple(sorted(editable)),
        sha256=sha256_text("\n".join([f"python=={version}", *lines])),
    )


def _list_metadata_files(packages: Iterable[Path]) -> list[Path]:
    return [
        file
        for directory in packages
        for pattern in ("*.dist-info/METADATA", "*.egg-info/PKG-INFO")
        for file in sorted(directory.glob(pattern))
    ]


def _read_name_and_version(metadata: Path) -> tuple[str, str]:
    """Return the normalized name and the version from the head of a metadata file."""
    fields: dict[str, str] = {}
    with metadata.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if not line.strip() or len(fields) == 2:
                break
            if key in ("Name", "Version"):
                fields.setdefault(key, value.strip())
    name = re.sub(r"[-_.]+", "-", fields.get("Name", "")).lower()
    return name, fields.get("Version", "unknown")


def _is_editable(folder: Path) -> bool:
    try:
        source = json.loads((folder / "direct_url.json").read_bytes())
        return bool(source["dir_info"]["editable"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


# The proof: it starts in the sandbox.

PROBE = "import sys; print(sys.prefix)"
PROBE_SECONDS = 60.0
PROBE_LIMITS = Limits(memory_bytes=4 << 30, disk_bytes=1 << 30, processes=64)


def run_in_sandbox(sandbox: Sandbox, program: str, **changes: Any) -> tuple[Exit, str]:
    """Run a short Python program as an agent's. Return how it ended and the last line that it printed.

    `changes` are further fields of its enclosure.
    """
    with tempfile.TemporaryDirectory(prefix="agent2rl-python-") as name:
        root = Path(name).resolve()
        for part in ("workspace", "scratch"):
            (root / part).mkdir()
        enclosure = Enclosure(
            role="agent",
            workspace=root / "workspace",
            scratch=root / "scratch",
            log=root / "log",
            wall_seconds=PROBE_SECONDS,
            limits=PROBE_LIMITS,
            **changes,
        )
        ended = sandbox.run(Command(("python", "-c", program)), enclosure, threading.Event())
        lines = enclosure.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return ended, lines[-1] if lines else ""


def require_start_in_sandbox(python: AgentPython, sandbox: Sandbox) -> None:
    """Start the interpreter in the sandbox; raise UserError if it does not start."""
    ended, line = run_in_sandbox(
        sandbox, PROBE, mounts=python.list_mounts(), python=python.make_sandbox_python()
    )
    if ended.code != 0:
        raise UserError(
            f"{python.interpreter} does not start in the sandbox: {line[-300:] or ended.reason}",
            "Try it outside: it may need libraries that the sandbox does not show.",
        )
    if os.path.realpath(line) != os.path.realpath(python.prefix):
        raise UserError(
            f"The interpreter of {python.prefix} belongs to another environment, {line}.",
            "Recreate the environment.",
        )
