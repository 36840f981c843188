"""Copy this package for a container, and list the packages that it needs there, as they are installed here.

A container of an agent gets the package without its tasks, as sandboxes do: the tasks generate or name the
evaluation data. Weights of shipped models are left out too, because the base model comes as a volume.
"""

import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import agent2rl
from agent2rl.core.errors import MachineError

PACKAGE = Path(agent2rl.__file__).parent
LEFT_OUT = ("__pycache__", "*.pyc", "*.safetensors")
REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)[^;]*(?:;\s*(?P<marker>.*))?$")
EXTRA = re.compile(r"""extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")


def copy_package(target: Path, with_tasks: bool) -> None:
    """Copy the package into a folder of its name below `target`."""
    shutil.copytree(PACKAGE, target / PACKAGE.name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if not with_tasks:
        tasks = target / PACKAGE.name / "tasks"
        shutil.rmtree(tasks)
        tasks.mkdir()
        shutil.copyfile(PACKAGE / "tasks" / "__init__.py", tasks / "__init__.py")


def list_requirements(extras: frozenset[str]) -> list[str]:
    """Return the package's own requirements and those of its extras, pinned as they are installed."""
    lines = set()
    for line in requires("agent2rl") or ():
        match = REQUIREMENT.match(line)
        marker = match["marker"] or "" if match else ""
        extra = EXTRA.search(marker)
        if match and (extra is None or extra["extra"] in extras):
            lines.add(_pin_requirement(match["name"], "" if extra else marker))
    return sorted(lines)


def _pin_requirement(name: str, marker: str) -> str:
    """Pin the installed version, without a local label such as +cpu: no registry has those.

    `marker` says which Pythons need the package: the container's may need it where this one does not.
    """
    suffix = f"; {marker}" if marker else ""
    try:
        return f"{name}=={version(name).partition('+')[0]}{suffix}"
    except PackageNotFoundError:
        if marker:
            return f"{name}{suffix}"
        raise MachineError(
            f"The package {name} is not installed, so its version for the container is not known.",
            f"Install it: pip install {name}.",
        ) from None
