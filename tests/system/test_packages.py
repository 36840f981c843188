"""A missing program is said with the command that installs it on this distribution."""

import os
from pathlib import Path

import pytest

from agent2rl.system.packages import suggest_install

SUDO = "" if os.geteuid() == 0 else "sudo "


@pytest.mark.parametrize(
    ("os_release", "line"),
    [
        ("ID=debian", f"{SUDO}apt-get install bubblewrap"),
        ("ID=ubuntu\nID_LIKE=debian", f"{SUDO}apt-get install bubblewrap"),
        ('ID=pop\nID_LIKE="ubuntu debian"', f"{SUDO}apt-get install bubblewrap"),
        ("ID=fedora", f"{SUDO}dnf install bubblewrap"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', f"{SUDO}dnf install bubblewrap"),
        ("ID=arch", f"{SUDO}pacman -S bubblewrap"),
        ("ID=manjaro\nID_LIKE=arch", f"{SUDO}pacman -S bubblewrap"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"', f"{SUDO}zypper install bubblewrap"),
        ('ID="sles"\nID_LIKE="suse"', f"{SUDO}zypper install bubblewrap"),
        ("NAME='Alpine Linux'\nID=alpine", f"{SUDO}apk add bubblewrap"),
        ("ID=nixos", "nix-env -iA nixos.bubblewrap"),
    ],
)
def test_each_distribution_has_its_own_install_line(tmp_path: Path, os_release: str, line: str) -> None:
    (tmp_path / "os-release").write_text(os_release + "\n")
    assert suggest_install("bubblewrap", (tmp_path / "os-release",)) == f"Install it: {line}"


def test_a_package_that_is_called_differently_has_its_name_there(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text("ID=alpine\n")
    assert suggest_install("util-linux", (tmp_path / "os-release",)) == f"Install it: {SUDO}apk add setpriv"


@pytest.mark.parametrize("os_release", ["", "ID=plan9\n", "no fields\n"])
def test_an_unknown_distribution_is_told_the_package(tmp_path: Path, os_release: str) -> None:
    (tmp_path / "os-release").write_text(os_release)
    told = suggest_install("bubblewrap", (tmp_path / "missing", tmp_path / "os-release"))
    assert told == "Install the package bubblewrap with your system's package manager."
