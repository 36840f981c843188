"""Installs a PyPI package with a Python that a sandbox sees: one in /usr, or else a copy of its own.

A virtual environment names its Python by an absolute path, and a prefix is seen elsewhere than it lies. So
only a Python in /usr gets one; of any other, interpreter and library are copied into the prefix.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.agent import AgentPackage
from agent2rl.core.errors import MachineError, UserError, WorldError
from agent2rl.core.sandbox import BARE_PYTHON

ProgressCallback = Callable[[str], None]
"""Is told, in a line, of work that takes a while."""
UV = "uv==0.13.7"
OWN_PYTHON, FETCHED = "python", "fetched"
"""Below the prefix: the Python that is copied, and where uv puts one."""
NEWEST = 16
LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "idlelib", "turtledemo", "config-*")
ABOUT = "import json, ssl, sys; print(json.dumps([sys.base_prefix, sys.executable, sys.version_info[:2]]))"
PIP_FLAGS = (
    *("install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"),
    *("--progress-bar=off", "--break-system-packages"),  # what it goes into is nobody else's
)
PIP_UNREACHABLE = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "SSLError", "ProxyError")


@dataclass(frozen=True)
class Interpreter:
    program: Path
    base: Path
    version: tuple[int, ...]


def install_pypi_package(package: AgentPackage, prefix: Path, tell: ProgressCallback) -> None:
    python = _prepare_python(_find_interpreter(package, prefix, tell), prefix)
    tell(f"fetching {package.name} and its libraries")
    wanted = (f"{package.name}=={package.version}", *package.also)
    pip_install(f"{package.name} {package.version}", ("--no-user", *wanted), python)
    link = prefix / "bin" / package.program
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(Path("..") / python.relative_to(prefix))


def pip_install(what: str, wanted: tuple[str, ...], python: Path | None = None) -> None:
    """For that Python, by the pip of this one; for none, into the `--target` that is wanted."""
    with _find_python_with_pip() as pip:
        place = ("--python", str(python)) if python else ()
        command = [str(pip), "-m", "pip", *place, *PIP_FLAGS, *wanted]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        return
    said = (done.stdout + done.stderr).decode(errors="replace")
    if any(name in said for name in PIP_UNREACHABLE):
        raise WorldError(
            f"pip cannot reach its index for {what}: {find_error_line(said, 'Error')}",
            "Try again with a network, or name an index that answers in PIP_INDEX_URL.",
        )
    if "No matching distribution" in said:
        raise UserError(
            f"PyPI has no {what} for this Python and machine, or not all that it needs: "
            f"{find_error_line(said, 'No matching')}",
            "Indexes that mirror others may lag behind; name another in PIP_INDEX_URL.",
        )
    raise MachineError(f"pip could not install {what}: {find_error_line(said, 'ERROR', 'error')}")


def find_error_line(said: str, *marks: str) -> str:
    """The last line with one of the marks, or simply the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    marked = [line for line in lines if any(mark in line for mark in marks)]
    return (marked or lines or ["it said nothing"])[-1][-400:]


@contextmanager
def _find_python_with_pip() -> Iterator[Path]:
    """A Python that has pip: this one, or one for the time being."""
    if importlib.util.find_spec("pip"):
        yield Path(sys.executable)
        return
    with tempfile.TemporaryDirectory(prefix="agent2rl-") as place:
        yield _make_venv(Path(BARE_PYTHON), Path(place))


def _find_interpreter(package: AgentPackage, prefix: Path, tell: ProgressCallback) -> Interpreter:
    """This Python where it will do, else one on the PATH, else one that uv fetches."""
    wanted = tuple(int(part) for part in (package.python or "3").split("."))
    names = (f"python3.{minor}" for minor in range(wanted[1] if wanted[1:] else 0, NEWEST))
    for program in (BARE_PYTHON, *filter(None, map(shutil.which, names))):
        found = _inspect_interpreter(Path(program))
        if found and found.version >= wanted:
            return found
    tell(f"fetching Python {package.python}")
    with tempfile.TemporaryDirectory(prefix="agent2rl-") as place:
        pip_install("uv", ("--target", place, UV))
        fetch = [str(Path(place, "bin/uv")), "python", "install", "--no-bin", "--no-config"]
        done = subprocess.run(
            [*fetch, "--install-dir", str(prefix / FETCHED), package.python],
            capture_output=True,
            text=True,
            check=False,
        )
    fetched = [_inspect_interpreter(path) for path in prefix.glob(f"{FETCHED}/*/bin/python{package.python}")]
    if done.returncode != 0 or not fetched or fetched[0] is None:
        raise WorldError(
            f"{package.name} needs Python {package.python} or newer: there is none here, "
            f"and uv could not fetch one: {find_error_line(done.stderr)}",
            f"Put a python{package.python} on the PATH, or try again with a network.",
        )
    return fetched[0]


def _inspect_interpreter(program: Path) -> Interpreter | None:
    """None where it is no Python that runs."""
    done = subprocess.run([program, "-I", "-c", ABOUT], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    base, executable, version = json.loads(done.stdout)
    return Interpreter(Path(executable).resolve(), Path(base).resolve(), tuple(version))


def _prepare_python(found: Interpreter, prefix: Path) -> Path:
    """A Python below the prefix to install into."""
    if found.base.is_relative_to(prefix.resolve()):
        return prefix.resolve() / found.program.relative_to(prefix.resolve())
    if found.base.is_relative_to("/usr"):
        return _make_venv(found.program, prefix, "--without-pip")
    return _copy_interpreter(found, prefix / OWN_PYTHON)


def _copy_interpreter(found: Interpreter, place: Path) -> Path:
    name = "python" + ".".join(map(str, found.version))
    (place / "bin").mkdir(parents=True)
    shutil.copy2(found.program, place / "bin" / name)
    shutil.copytree(found.base / "lib" / name, place / "lib" / name, symlinks=True, ignore=LEFT_OUT)
    for library in (found.base / "lib").glob("*.so*"):
        shutil.copy2(library, place / "lib" / library.name)
    python = place / "bin" / name
    _patch_library_path(python, found.base)
    copied = _inspect_interpreter(python)
    needed = subprocess.run(["ldd", python], capture_output=True, text=True, check=False).stdout
    if copied is None or copied.base != place.resolve() or str(found.base) in needed:
        raise MachineError(
            f"{found.program} does not run where it is copied to.",
            "Put another Python on the PATH: one in /usr, or one that uv installed.",
        )
    return python


def _patch_library_path(program: Path, base: Path) -> None:
    """Have the loader look for the library beside the program, and no more where it was built for."""
    old, new = bytes(base / "lib") + b"\0", b"$ORIGIN/../lib\0"
    if len(new) <= len(old):
        program.write_bytes(program.read_bytes().replace(old, new.ljust(len(old), b"\0")))


def _make_venv(python: Path, place: Path, *flags: str) -> Path:
    done = subprocess.run([python, "-m", "venv", *flags, place], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(
            f"{python} cannot make a virtual environment: {find_error_line(done.stdout + done.stderr)}",
            "Debian and Ubuntu have it in a package of its own: apt-get install python3-venv.",
        )
    return place / "bin" / "python"
