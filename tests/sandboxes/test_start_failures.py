"""Why a sandbox does not start: the real words of bwrap and setpriv, and what is said about them."""

import os
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError
from agent2rl.sandboxes.start_failures import (
    APPARMOR,
    CHECK_HINT,
    CLONE,
    COUNT,
    MachineFacts,
    diagnose_failure,
    explain_failure,
    read_machine_facts,
)
from agent2rl.system.packages import suggest_install

ROOT, USER = MachineFacts(True, False), MachineFacts(False, False)
ROOT_IN_CONTAINER, USER_IN_CONTAINER = MachineFacts(True, True), MachineFacts(False, True)
ALLOWING = {APPARMOR: "0", CLONE: "1", COUNT: "15000"}
NO_PERMISSIONS = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged "
    "user namespaces."
)
OLD_NO_PERMISSIONS = (
    "bwrap: No permissions to creating new namespace, likely because the kernel does not allow "
    "non-privileged user namespaces. On e.g. debian "
    "this can be enabled with 'sysctl kernel.unprivileged_userns_clone=1'."
)
NOT_PERMITTED = "bwrap: Creating new namespace failed: Operation not permitted"
NOT_SETUID = (
    "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.  "
    "bwrap must be installed setuid on such systems."
)
TOO_MANY = (
    "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)"
)
DENIED_CASES = {
    "an ordinary user in a container": (NO_PERMISSIONS, USER_IN_CONTAINER, "seccomp=unconfined"),
    "an ordinary user in a container, older bwrap": (
        OLD_NO_PERMISSIONS,
        USER_IN_CONTAINER,
        "seccomp=unconfined",
    ),
    "an ordinary user whose container hides it": (NO_PERMISSIONS, USER, "seccomp=unconfined"),
    "an ordinary user in a container of Podman": (
        "bwrap: Can't set hostname to agent2rl: Operation not permitted",
        USER_IN_CONTAINER,
        "seccomp=unconfined",
    ),
    "root in a container": (NOT_PERMITTED, ROOT_IN_CONTAINER, "--cap-add SYS_ADMIN"),
    "root whose container hides it": (NOT_PERMITTED, ROOT, "--cap-add SYS_ADMIN"),
    "a container that masks /proc": (
        "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
        USER_IN_CONTAINER,
        "systempaths=unconfined",
    ),
    "a container whose /proc/sys is read-only": (
        "bwrap: cannot open /proc/sys/user/max_user_namespaces: Read-only file system",
        USER_IN_CONTAINER,
        "systempaths=unconfined",
    ),
    "a container with an AppArmor profile": (
        "bwrap: Failed to make / slave: Permission denied",
        ROOT_IN_CONTAINER,
        "apparmor=unconfined",
    ),
    "a container with SELinux": (
        "bwrap: Failed to mount tmpfs: Permission denied",
        USER_IN_CONTAINER,
        "label=disable",
    ),
    "a chroot": ("bwrap: pivot_root: Invalid argument", USER, "Run agent2rl outside of it"),
    "a kernel setting of Debian": (
        NO_PERMISSIONS,
        MachineFacts(False, False, ALLOWING | {CLONE: "0"}),
        f"sysctl -w {CLONE}=1",
    ),
    "a limit of 0": (TOO_MANY, MachineFacts(False, False, {COUNT: "0"}), f"sysctl -w {COUNT}=65536"),
    "a limit of 0, older bwrap": (
        "bwrap: Creating new namespace failed: No space left on device",
        USER,
        f"sysctl -w {COUNT}=65536",
    ),
    "AppArmor on Ubuntu 24.04": (
        "bwrap: setting up uid map: Permission denied",
        MachineFacts(False, False, ALLOWING | {APPARMOR: "1"}),
        f"sysctl -w {APPARMOR}=0",
    ),
    "AppArmor on Ubuntu 24.04, with a network namespace": (
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
        MachineFacts(False, False, ALLOWING | {APPARMOR: "1"}),
        f"sysctl -w {APPARMOR}=0",
    ),
    "no user namespaces and no setuid": (NOT_SETUID, USER, "CONFIG_USER_NS"),
    "a setuid bwrap": ("bwrap: The --size option is not permitted in setuid mode", USER, "chmod u-s"),
    "an ordinary user with capabilities": (
        "bwrap: Unexpected capabilities but not setuid, old file caps config?",
        USER_IN_CONTAINER,
        "without added capabilities",
    ),
    "a user namespace with a single id": (
        "setpriv: setresuid failed: Invalid argument",
        ROOT_IN_CONTAINER,
        "/etc/subuid",
    ),
    "a user namespace without setgroups": (
        "setpriv: setgroups failed: Operation not permitted",
        ROOT_IN_CONTAINER,
        "/etc/subuid",
    ),
    "root of a user namespace without free ids": (
        "The harness is root of a user namespace that has no free user id for the sandbox.",
        ROOT_IN_CONTAINER,
        "/etc/subuid",
    ),
    "Docker's daemon is for its group": (
        (
            "permission denied while trying to connect to the Docker daemon socket at "
            'unix:///var/run/docker.sock: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.50/info": dial unix '
            "/var/run/docker.sock: connect: permission denied"
        ),
        USER,
        "usermod -aG docker",
    ),
    "Docker's daemon is not there": (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        USER,
        "systemctl start docker",
    ),
    "Docker's daemon is elsewhere": (
        (
            'Error response from daemon: invalid mount config for type "bind": bind source path does not '
            "exist: /home/me/runs/1/workspace"
        ),
        USER_IN_CONTAINER,
        "where the engine's daemon runs",
    ),
    "Docker without the toolkit for GPUs": (
        'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]',
        ROOT,
        "nvidia-container-toolkit",
    ),
    "an image without this Python": (
        (
            "Error response from daemon: failed to create shim task: OCI runtime create failed: runc create "
            'failed: unable to start container process: exec: "/usr/bin/python3.12": stat '
            "/usr/bin/python3.12: no such file or directory: unknown"
        ),
        USER,
        "outside of /usr",
    ),
    "an image with an older C library": (
        (
            "/srv/v/bin/python: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by "
            "/srv/v/bin/python)"
        ),
        ROOT,
        "newer distribution",
    ),
    "an image without a library of Python": (
        (
            "/srv/v/bin/python: error while loading shared libraries: libz.so.1: cannot open shared object "
            "file: No such file or directory"
        ),
        ROOT,
        "libz.so.1",
    ),
    "an image without a library of Python's modules": (
        (
            "Traceback (most recent call last):\n  from _ctypes import Union, Structure, Array\n"
            "ImportError: libffi.so.8: cannot open shared object file: No such file or directory"
        ),
        ROOT,
        "libffi.so.8",
    ),
    "an image without the C library": (
        "exec /srv/v/bin/python: no such file or directory",
        ROOT,
        "glibc",
    ),
    "an image that closes the directory of this Python": (
        (
            "Error: unable to start container: runc: runc create failed: unable to start container process: "
            'exec: "/srv/v/bin/python": stat /srv/v/bin/python: permission denied: OCI permission denied'
        ),
        ROOT,
        "in another place",
    ),
    "Podman without subordinate ids": (
        (
            "Error: keep-id requires additional UIDs or GIDs defined in /etc/subuid and /etc/subgid to "
            "function correctly: %!w(<nil>)"
        ),
        USER,
        "--add-subuids",
    ),
    "Podman in a container without namespaces": (
        "cannot clone: Operation not permitted Error: cannot re-exec process",
        USER_IN_CONTAINER,
        "seccomp=unconfined",
    ),
    "Podman with both versions of cgroups": (
        (
            "Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers from "
            "cgroupv2"
        ),
        ROOT,
        "install runc",
    ),
    "Apptainer at the limit of namespaces": (
        (
            "ERROR  : Failed to create user namespace: maximum number of user namespaces exceeded, check "
            "/proc/sys/user/max_user_namespaces"
        ),
        USER,
        f"sysctl -w {COUNT}=65536",
    ),
    "Apptainer without user namespaces": (
        "ERROR  : Failed to create user namespace: not allowed to create user namespace",
        USER,
        "apptainer-suid",
    ),
    "bwrap is not installed": (
        "The sandbox needs the program bwrap, which is not installed.",
        USER,
        "On a cluster: ask its administrators for it, or try `module load apptainer`.",
    ),
    "bwrap is not installed, and root can install it": (
        "The sandbox needs the program bwrap, which is not installed.",
        ROOT,
        suggest_install("bubblewrap", is_root=True),
    ),
    "setpriv is not installed": (
        "The sandbox needs the program setpriv, which is not installed.",
        ROOT,
        suggest_install("util-linux", is_root=True),
    ),
    "no container engine is installed": (
        "The sandbox needs the program podman, which is not installed.",
        USER,
        "On a cluster: ask its administrators for it, or try `module load apptainer`.",
    ),
}


@pytest.mark.parametrize(("message", "facts", "remedy"), DENIED_CASES.values(), ids=DENIED_CASES)
def test_the_cause_is_recognised_and_something_helps(message: str, facts: MachineFacts, remedy: str) -> None:
    said, alone = explain_failure(MachineError(f"The sandbox did not start: {message}", CHECK_HINT), facts)
    assert remedy in said
    assert remedy in alone
    assert message.rstrip(".") in said
    assert "agent2rl check" not in said


@pytest.mark.parametrize(("message", "facts", "remedy"), DENIED_CASES.values(), ids=DENIED_CASES)
def test_what_needs_root_says_so_and_sudo_is_never_the_only_way(
    message: str, facts: MachineFacts, remedy: str
) -> None:
    diagnosis = diagnose_failure(message, facts)
    assert diagnosis is not None
    installs = diagnosis.remedy.startswith("Install it: ")
    if installs and not facts.is_root:
        assert "On a cluster: ask its administrators" in diagnosis.remedy
    assert installs or "sudo" not in diagnosis.remedy
    if not installs and any(word in diagnosis.remedy for word in ("sysctl", "apt-get", "chmod", "/etc/")):
        assert "s root" in diagnosis.remedy
    if "--security-opt" in diagnosis.remedy:
        assert "Whoever starts the container" in diagnosis.remedy


def test_an_unknown_cause_is_shown_with_the_hint_of_the_sandbox() -> None:
    assert explain_failure(MachineError("No engine answers.", "Start docker."), USER)[0] == (
        "No engine answers. Start docker."
    )
    unknown, _ = explain_failure(
        MachineError("The sandbox did not start: bwrap: who knows", CHECK_HINT), USER
    )
    assert "does not know this cause" in unknown
    assert "agent2rl check" not in unknown


def test_the_self_test_of_bubblewrap_without_bwrap_shows_the_install_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (promise,) = registry.find_sandbox("bubblewrap").check().broken
    assert diagnose_failure(promise.hint, read_machine_facts()) is not None
    assert promise.remedy.startswith(suggest_install("bubblewrap"))
    assert promise.hint.endswith(promise.remedy)


@pytest.mark.parametrize("message", [NO_PERMISSIONS, NOT_PERMITTED])
def test_the_self_test_of_bubblewrap_names_the_remedy(
    message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program in its place prints the real words."""
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (promise,) = registry.find_sandbox("bubblewrap").check().broken
    assert promise.name == "the sandbox starts"
    assert message.rstrip(".") in promise.hint
    assert "agent2rl check" not in promise.hint
