"""Which command installs a package of the operating system here.

The distribution is read from os-release (freedesktop.org): its own name first, then those that it is like.
"""

import os
import re
from pathlib import Path

OS_RELEASE = (Path("/etc/os-release"), Path("/usr/lib/os-release"))
COMMANDS = {
    "debian": "apt-get install",
    "ubuntu": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "centos": "dnf install",
    "amzn": "dnf install",
    "arch": "pacman -S",
    "opensuse": "zypper install",
    "suse": "zypper install",
    "alpine": "apk add",
    "nixos": "nix-env -iA",
}
"""Name of a distribution in os-release: the command of its package manager."""
OTHER_NAMES = {
    ("alpine", "util-linux"): "setpriv",
    ("nixos", "bubblewrap"): "nixos.bubblewrap",
    ("nixos", "util-linux"): "nixos.util-linux",
}
"""Distributions that call a package differently than Debian."""
NO_ROOT_NEEDED = {"nixos"}


def suggest_install(
    package: str, os_release: tuple[Path, ...] = OS_RELEASE, is_root: bool | None = None
) -> str:
    """Return a sentence with the exact command that installs a package, named as in Debian.

    `is_root` says whose command it is: by default that of this process's user.
    """
    needs_sudo = not (_is_root() if is_root is None else is_root)
    for distribution in _read_distributions(os_release):
        if command := COMMANDS.get(distribution):
            sudo = "sudo " if needs_sudo and distribution not in NO_ROOT_NEEDED else ""
            name = OTHER_NAMES.get((distribution, package), package)
            return f"Install it: {sudo}{command} {name}"
    return f"Install the package {package} with your system's package manager."


def read_debian_codename(os_release: tuple[Path, ...] = OS_RELEASE) -> str:
    """Return the name of the Debian release that this is, or else `stable`."""
    fields = _read_fields(os_release)
    codename = fields.get("VERSION_CODENAME", "") if fields.get("ID") == "debian" else ""
    return codename if re.fullmatch(r"[a-z]+", codename) else "stable"


def _read_fields(os_release: tuple[Path, ...]) -> dict[str, str]:
    text = next((path.read_text(encoding="utf-8") for path in os_release if path.is_file()), "")
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name: value.strip().strip("\"'") for name, value in pairs}


def _read_distributions(os_release: tuple[Path, ...]) -> list[str]:
    """Return this distribution's name and those of the ones that it is like, the nearest first."""
    fields = _read_fields(os_release)
    distributions = [each for name in ("ID", "ID_LIKE") for each in fields.get(name, "").split()]
    return [each.partition("-")[0] if each.startswith("opensuse") else each for each in distributions]


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
