"""Python environments for agents, made of files alone."""

import json
import shutil
import sys
import sysconfig
import venv
from pathlib import Path

from agent2rl.core.sandbox import BARE_PYTHON

SHORT = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "idlelib", "turtledemo", "config-*", "__pycache__")


def make_venv(place: Path) -> Path:
    venv.create(place, symlinks=True, with_pip=False)
    return place


def make_conda_prefix(place: Path) -> Path:
    """A prefix as conda lays it out: an interpreter and a standard library of its own, and `conda-meta`."""
    (place / "bin").mkdir(parents=True)
    shutil.copy2(Path(BARE_PYTHON).resolve(), place / "bin" / SHORT)
    (place / "bin" / "python").symlink_to(SHORT)
    library = place / "lib" / SHORT
    shutil.copytree(sysconfig.get_path("stdlib"), library, symlinks=True, ignore=LEFT_OUT)
    (library / "site-packages").mkdir()
    (place / "lib" / "python3").mkdir()
    # A copy of Debian's interpreter looks for packages only here.
    (place / "lib" / "python3" / "dist-packages").symlink_to(f"../{SHORT}/site-packages")
    (place / "conda-meta").mkdir()
    version = ".".join(map(str, sys.version_info[:3]))
    (place / "conda-meta" / f"python-{version}-h1234_0.json").write_text("{}")
    return place


def get_packages(environment: Path) -> Path:
    return environment / "lib" / SHORT / "site-packages"


def add_package(environment: Path, name: str, version: str, code: str = "", editable: bool = False) -> Path:
    """Install a package as an installer does, by writing its files; return its directory."""
    module = name.replace("-", "_").lower()
    package = get_packages(environment) / module
    metadata = get_packages(environment) / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nIts page.\n"
    )
    if editable:
        source = {"url": "file:///elsewhere", "dir_info": {"editable": True}}
        (metadata / "direct_url.json").write_text(json.dumps(source))
    else:
        package.mkdir()
        (package / "__init__.py").write_text(code)
    return package
