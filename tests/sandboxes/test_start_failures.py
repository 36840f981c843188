"""Why a sandbox does not start: the real words of bwrap and setpriv, and what is said about them."""

import os
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError
from agent2rl.sandboxes import start_failures
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
UBUNTU_IN_CONTAINER = MachineFacts(False, True, ALLOWING | {APPARMOR: "1"})
UBUNTU = MachineFacts(False, False, ALLOWING | {APPARMOR: "1"})
UID_MAP = "bwrap: setting up uid map: Permission denied"
SETGROUPS = (
    "ERROR  : Could not write info to setgroups: Permission denied\n"
    "ERROR  : Error while waiting event for user namespace mappings: no event received"
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
    "bwrap before 0.4": ("bwrap: Unknown option --json-status-fd", USER, "0.4.0 or newer"),
    "AppArmor on Ubuntu 24.04, with groups": (
        "bwrap: error writing to setgroups: Permission denied",
        UBUNTU,
        f"sysctl -w {APPARMOR}=0",
    ),
    "AppArmor on Ubuntu 24.04, older bwrap": (
        "bwrap: setting up gid map: Permission denied",
        UBUNTU,
        f"sysctl -w {APPARMOR}=0",
    ),
    "a container that may not mount terminals": (
        "bwrap: Can't mount devpts on /newroot/dev/pts: Permission denied",
        USER_IN_CONTAINER,
        "apparmor=unconfined",
    ),
    "a container that may not mount memory": (
        "bwrap: Can't mount tmpfs on /newroot/dev/shm: Permission denied",
        USER_IN_CONTAINER,
        "apparmor=unconfined",
    ),
    "a path that root of a cluster's node cannot open": (
        "bwrap: Can't find source path /home/me/venv: Permission denied",
        ROOT,
        "NFS that maps root",
    ),
    "a kernel without system-call filters": (
        "bwrap: prctl(PR_SET_SECCOMP): Invalid argument",
        USER,
        "CONFIG_SECCOMP_FILTER",
    ),
    "a kernel without system-call filters, newer bwrap": (
        (
            "bwrap: Unable to set up system call filtering as requested: prctl(PR_SET_SECCOMP) reported "
            "EINVAL. (Hint: this requires a kernel configured with CONFIG_SECCOMP and CONFIG_SECCOMP_FILTER.)"
        ),
        USER,
        "without an emulator",
    ),
    "a service that may not use netlink": (
        "bwrap: loopback: Failed to create NETLINK_ROUTE socket: Address family not supported by protocol",
        USER,
        "AF_NETLINK",
    ),
    "root in a container without rights over networks": (
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
        ROOT_IN_CONTAINER,
        "--cap-add NET_ADMIN",
    ),
    "a full disk": (
        "OSError: [Errno 28] No space left on device: '/tmp/agent2rl-check-1/workspace'",
        USER,
        "Free some space",
    ),
    "a full disk of an engine": (
        "Error: writing blob: storing blob to file: write /var/tmp/storage1: no space left on device",
        USER,
        "Free some space",
    ),
    "Podman at the limit of namespaces": (
        "cannot clone: No space left on device Error: cannot re-exec process",
        USER,
        f"sysctl -w {COUNT}=65536",
    ),
    "Podman in a container that masks /proc": (
        (
            "Error: OCI runtime error: runc: runc create failed: unable to start container process: error "
            'during container init: error mounting "proc" to rootfs at "/proc": mount src=proc, dst=/proc, '
            "dstFd=/proc/thread-self/fd/8, flags=MS_NOSUID|MS_NODEV|MS_NOEXEC: permission denied"
        ),
        USER_IN_CONTAINER,
        "systempaths=unconfined",
    ),
    "Podman with crun in a container that masks /proc": (
        "Error: crun: mount `proc` to `proc`: Operation not permitted: OCI permission denied",
        USER_IN_CONTAINER,
        "unmask=ALL",
    ),
    "Podman without a session of systemd's": (
        (
            "Error: container_linux.go:380: starting container process caused: process_linux.go:385: "
            "applying cgroup configuration for process caused: rootless needs no limits + no cgrouppath when "
            "no permission is granted for cgroups: mkdir /sys/fs/cgroup/530a853f: permission denied: OCI "
            "permission denied"
        ),
        USER,
        "enable-linger",
    ),
    "Podman with crun and without cgroups": (
        "Error: cannot set limits without cgroups: OCI runtime error",
        USER,
        "enable-linger",
    ),
    "Podman's files on those of a container": (
        (
            "Error: configure storage: 'overlay' is not supported over overlayfs, a mount_program is "
            "required: backing file system is unsupported for this graph driver"
        ),
        USER_IN_CONTAINER,
        "fuse-overlayfs",
    ),
    "Docker's client is newer than its daemon": (
        "Error response from daemon: client version 1.51 is too new. Maximum supported API version is 1.47",
        USER,
        "DOCKER_API_VERSION=1.47`",
    ),
    "Apptainer on Ubuntu 24.04": (SETGROUPS, UBUNTU, f"sysctl -w {APPARMOR}=0"),
    "Apptainer on Ubuntu 24.04 without mounts": (
        (
            "ERROR  : Failed to create mount namespace: mount namespace requires privileges, check Apptainer "
            "installation"
        ),
        UBUNTU,
        f"sysctl -w {APPARMOR}=0",
    ),
    "Apptainer without mount namespaces": (
        (
            "ERROR  : Failed to create mount namespace: mount namespace requires privileges, check Apptainer "
            "installation"
        ),
        USER,
        "apptainer-suid",
    ),
    "Apptainer in a container": (
        "ERROR  : Failed to create container process: Operation not permitted",
        USER_IN_CONTAINER,
        "seccomp=unconfined",
    ),
    "Apptainer's setuid program without its bit": (
        "ERROR  : Installation issue: starter-suid doesn't have setuid bit set",
        USER,
        "allow setuid = no",
    ),
    "Apptainer before 1.1, or Singularity": (
        'Error for command "exec": unknown flag: --no-eval',
        USER,
        "Apptainer 1.2 or newer",
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


@pytest.mark.parametrize(
    "message",
    [
        "/bin/sh: 42: pivot_root: not found",
        "pivot_root: failed to change root from `.' to `old': No such file or directory",
        "bwrap: Can't bind mount /oldroot/run on /newroot/run: Too many levels of symbolic links",
    ],
)
def test_a_mount_that_fails_for_another_reason_is_no_security_profile(message: str) -> None:
    assert diagnose_failure(message, ROOT) is None


@pytest.mark.parametrize(
    "message",
    [
        NO_PERMISSIONS,
        UID_MAP,
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
        "bwrap: Failed to make / slave: Permission denied",
        SETGROUPS,
    ],
)
def test_in_a_container_on_ubuntu_options_and_the_hosts_setting_are_named_together(message: str) -> None:
    """With the options alone, it is `setting up uid map`; with the setting alone, nothing changes."""
    diagnosis = diagnose_failure(message, UBUNTU_IN_CONTAINER)
    assert diagnosis is not None
    for option in ("seccomp", "apparmor", "systempaths"):
        assert f"--security-opt {option}=unconfined" in diagnosis.remedy
    assert f"as root of the host: `sysctl -w {APPARMOR}=0`" in diagnosis.remedy


def test_a_pod_without_a_token_is_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_failures, "CONTAINER_FILES", ())
    for name in ("container", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert not read_machine_facts().in_container
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert read_machine_facts().in_container


@pytest.mark.parametrize(("version", "options"), [("1.1.6", "--no-eval --no-mount"), ("1.0.3", "--no-mount")])
def test_an_apptainer_that_would_ignore_what_it_must_not_show_is_refused(
    version: str, options: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before 1.2, it only warns of `--no-mount bind-paths`, and shows the directories that the site binds."""
    fake = tmp_path / "apptainer"
    fake.write_text(
        "#!/bin/sh\n"
        f"if [ $1 = --version ]; then echo apptainer version {version}; else echo '{options}'; fi\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (promise,) = registry.find_sandbox("apptainer").check().broken
    assert f"apptainer version {version} is too old" in promise.hint
    assert "bind-paths" in promise.hint
    assert "Apptainer 1.2 or newer" in promise.remedy


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
    unknown, remedy = explain_failure(
        MachineError("The sandbox did not start: bwrap: who knows", CHECK_HINT), USER
    )
    assert "does not know this cause" in unknown
    assert remedy == ""
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
