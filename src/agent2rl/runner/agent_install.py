"""Installs agents from npm and PyPI: each version in a directory of its own, there whole or not at all.

<cache>/agents/<name>-<version>/    readable by all, complete in itself but for what is in /usr
  bin/<program>                     starts it
  installed.json                    what it was made from
"""

import re
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from agent2rl import registry
from agent2rl.core.agent import AgentPackage, DrivenAgent
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Record
from agent2rl.runner import npm_install, pypi_install
from agent2rl.runner.directory_cache import lock_directory
from agent2rl.runner.pypi_install import ProgressCallback
from agent2rl.store.files import remove_tree, write_record

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
    """The agents that ask a driver LLM, by name."""
    found = {}
    for name in registry.list_names("agents"):
        try:
            agent = registry.find_agent(name)
        except UserError:  # one that needs an argument is no program to install
            continue
        if isinstance(agent, DrivenAgent):
            found[name] = agent
    return found


def get_install_path(name: str, package: AgentPackage, cache: Path) -> Path:
    """Where it is, or would be: by its real path, since sandboxes show it there and know no links."""
    return cache.resolve() / "agents" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{package.version}"


def find_installed(name: str, package: AgentPackage, cache: Path) -> Path | None:
    """Where it is, if it is there as it should be."""
    prefix = get_install_path(name, package, cache)
    try:
        same = InstallRecord.model_validate_json((prefix / RECORD).read_bytes()) == _make_install_record(
            package
        )
    except (OSError, ValueError):
        return None
    return prefix if same else None


def install_agent_package(name: str, package: AgentPackage, cache: Path, tell: ProgressCallback) -> Path:
    """Install it, unless it is there. What was broken off is begun anew."""
    target = get_install_path(name, package, cache)
    prefix = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o755)  # what else is in the cache is private; this is for sandboxes to read
        with lock_directory(target):
            if found := find_installed(name, package, cache):
                return found
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
    fill = npm_install.install_npm_package if package.registry == "npm" else pypi_install.install_pypi_package
    fill(package, prefix, tell)
    subprocess.run(["chmod", "-R", "a+rX,go-w", "--", prefix], check=True)
    for path in prefix.rglob("*"):
        leads = path.resolve() if path.is_symlink() else prefix
        if not leads.is_relative_to(prefix.resolve()) and not leads.is_relative_to("/usr"):
            raise MachineError(f"{package.name} is not complete in itself: {path} leads to {leads}.")
    _check_program_starts(package, prefix)


def _check_program_starts(package: AgentPackage, prefix: Path) -> None:
    """Whether it starts on this machine at all, with as much around it as it will have in a sandbox."""
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
