"""Explains why a sandbox does not start: what its program printed, the cause, and what would help.

Most remedies need root, often that of another machine: of the host of a container, or of a cluster's
administrators. Each remedy says whose command it is.
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.core.errors import Agent2RLError, MachineError
from agent2rl.system.packages import suggest_install

APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
CLONE = "kernel.unprivileged_userns_clone"
COUNT = "user.max_user_namespaces"
FORBIDDING = {APPARMOR: ("1", "0"), CLONE: ("0", "1"), COUNT: ("0", "65536")}
"""Kernel settings: the value that forbids user namespaces, and one that allows them."""
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/.singularity.d", "/var/run/secrets/kubernetes.io")
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")
PACKAGES = {"bwrap": "bubblewrap", "setpriv": "util-linux", "docker": "docker.io", "podman": "podman"}
"""The programs of sandboxes, and the packages of Debian that have them."""
OLDEST_BWRAP = "0.4.0"
NEWER_BWRAP = (
    f"Get bubblewrap {OLDEST_BWRAP} or newer: `conda install -c conda-forge bubblewrap`, or `module load "
    "bubblewrap` on a cluster that has it, or build https://github.com/containers/bubblewrap: `meson setup "
    "--prefix=$HOME/.local build && meson install -C build`. It must come first in PATH."
)
NEWER_APPTAINER = (
    "Get Apptainer 1.2 or newer, for which no root is needed: "
    "https://apptainer.org/docs/admin/latest/installation.html. On a cluster: `module avail apptainer`, or "
    "ask its administrators."
)
CHECK_HINT = "Run `agent2rl check`, which detects the known causes."
UNKNOWN = "agent2rl does not know this cause. Report it with the versions of the kernel and of the program."


@dataclass(frozen=True)
class MachineFacts:
    """What decides between causes that look the same from inside."""

    is_root: bool
    in_container: bool
    settings: Mapping[str, str] = field(default_factory=dict)
    """The kernel settings of `FORBIDDING` that this machine has."""

    @property
    def forbidding(self) -> list[str]:
        """The settings that forbid user namespaces to an ordinary user."""
        return (
            []
            if self.is_root
            else [name for name, value in self.settings.items() if value == FORBIDDING[name][0]]
        )


@dataclass(frozen=True)
class FailureDiagnosis:
    cause: str
    """Empty if the message says it."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".lstrip()


ENGINE_FAILURES = {
    r"permission denied while trying to connect|dial unix \S+: connect: permission denied": FailureDiagnosis(
        "Your user may not use Docker's daemon.",
        "As root: `usermod -aG docker USER`, then log in again. Its members have the rights of root.",
    ),
    r"Cannot connect to the Docker daemon|error during connect": FailureDiagnosis(
        "Docker's client is installed, but no daemon answers.",
        "As root: `systemctl start docker`. Inside a container, agent2rl cannot use the daemon of its host.",
    ),
    r"bind source path does not exist|statfs \S+: no such file": FailureDiagnosis(
        "The container engine does not see the files of this machine: it works elsewhere.",
        "Start agent2rl where the engine's daemon runs. The snap package of Docker sees only home "
        "directories: keep runs there, or install another package of it.",
    ),
    r"no subuid ranges|no subgid ranges|requires additional UIDs|newuidmap": FailureDiagnosis(
        "Podman needs user ids for your containers, and your user has none.",
        "As root: `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`, then, as this "
        "user: `podman system migrate`.",
    ),
    r"crun: cgroups in hybrid mode": FailureDiagnosis(
        "crun cannot work with cgroups of both versions.",
        'As root: install runc, and write `runtime = "runc"` below `[engine]` in '
        "/etc/containers/containers.conf.",
    ),
    r"cannot (re-exec|clone)|cannot set up namespace|invalid internal status": FailureDiagnosis(
        "Podman may not create user namespaces here.",
        "Whoever starts the container must add `--security-opt seccomp=unconfined`. Elsewhere, as root: "
        f"`sysctl -w {COUNT}=65536`.",
    ),
    r"rootless needs no limits|cannot set (\w+ )?limits?\b|/sys/fs/cgroup\S*: (permission denied|read-only)|"
    r"opening file `(memory|pids|cpuset|cpu)\.": FailureDiagnosis(
        "The container engine may not make cgroups for containers of your user.",
        "Log in with a session of systemd's (ssh, not su). As root of the machine: `loginctl "
        "enable-linger USER`, and cgroups of version 2.",
    ),
    r"is not supported over \w+|kernel does not support overlay": FailureDiagnosis(
        "The container engine cannot keep images on this file system, as in a container.",
        'Install fuse-overlayfs, or write `driver = "vfs"` below `[storage]` in '
        "~/.config/containers/storage.conf.",
    ),
    r"could not select device driver|CDI device": FailureDiagnosis(
        "The container engine cannot show GPUs to containers.",
        "As root: install nvidia-container-toolkit, run `nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml` and restart the engine.",
    ),
    r"exec: \S*python\S*: stat \S+: permission denied": FailureDiagnosis(
        "The Python that runs agent2rl lies in a directory that the image closes, such as /root.",
        "Install agent2rl in a Python in another place. Without an image this one works.",
    ),
    r"version `GLIBC_\S+' not found": FailureDiagnosis(
        "The image's C library is older than the one that the Python of agent2rl needs.",
        "Use an image of a newer distribution, or install agent2rl in a Python that works with older ones "
        "(uv, conda).",
    ),
    r"(^|: )exec /\S*python\S*: no such file or directory": FailureDiagnosis(
        "The image does not have the C library that the Python of agent2rl needs.",
        "Use an image with glibc, such as one of Debian, Ubuntu or Fedora. Alpine has another C library.",
    ),
    r"python\S*\W+(stat \S+ )?no such file or directory": FailureDiagnosis(
        "The image does not have the Python that runs agent2rl.",
        "Install agent2rl in a Python outside of /usr (uv, conda, pyenv), which is mounted in the image. Or "
        "use an image with the same distribution's python3.",
    ),
}
"""What Docker, Podman and the programs below them print."""
BWRAP_FAILURES = {
    r"bwrap: Unknown option": FailureDiagnosis("The installed bwrap is too old.", NEWER_BWRAP),
    r"Unable to set up system call filtering|prctl\(PR_SET_SECCOMP\)": FailureDiagnosis(
        "The kernel takes no system-call filters: it has none, or an emulator (gVisor, qemu, Rosetta) is in "
        "its place.",
        "Run agent2rl on a kernel with CONFIG_SECCOMP_FILTER, without an emulator.",
    ),
    r"Failed to (create|bind) NETLINK_ROUTE": FailureDiagnosis(
        "A system-call filter forbids the netlink sockets by which bwrap sets up a network of its own.",
        "Whoever starts the container must add `--security-opt seccomp=unconfined`; for a service of "
        "systemd, add AF_NETLINK to `RestrictAddressFamilies`.",
    ),
}
MASKED_PROC = (
    r"Can't mount proc on|max_user_namespaces: Read-only|sysctl user\.max_user_namespaces|"
    r"mount(ing)? [\"`']?proc[\"`']? to \S.*(permission denied|operation not permitted)"
)
MOUNT_DENIED = (
    r"(Failed to make / slave|Failed to mount tmpfs|pivot_root|Can't bind mount|Can't mount (devpts|tmpfs))"
    r".*(Permission denied|Operation not permitted)"
)
APPTAINER_DENIED = (
    r"Failed to create \w+ namespace|Could not write (parent )?info to (setgroups|[ug]id_map)|"
    r"Failed to create container (process|namespace)"
)
LIMITED = (
    r"_namespaces exceeded|maximum number of \w+ namespaces|(namespace failed|cannot clone): No space left"
)
DENIED = r"No permissions to creat\w+ (a )?new namespace|Creating new namespace failed|set hostname"
DENIED_LATER = r"setting up [ug]id map|error writing to setgroups|loopback: Failed"
"""What Ubuntu's AppArmor makes fail: it allows user namespaces, but no rights in them."""
MISSING_LIBRARY = r"(?:error while loading shared libraries|ImportError): (\S+\.so\S*): cannot open"


def read_machine_facts() -> MachineFacts:
    settings = {}
    for name in FORBIDDING:
        path = Path("/proc/sys", name.replace(".", "/"))
        if path.exists():
            settings[name] = path.read_text(encoding="ascii").strip()
    in_container = any(Path(name).exists() for name in CONTAINER_FILES) or any(
        name in os.environ for name in CONTAINER_VARIABLES
    )
    return MachineFacts(os.geteuid() == 0, in_container, settings)


def explain_failure(error: Agent2RLError, facts: MachineFacts | None = None) -> tuple[str, str]:
    """Return the error with its cause and remedy if they are known, or else with its own hint; and the remedy
    or hint alone, which is empty for an unknown cause."""
    if diagnosis := diagnose_failure(error.message, facts or read_machine_facts()):
        return f"{error.message.rstrip('.')}. {diagnosis}", diagnosis.remedy
    if error.hint in ("", CHECK_HINT):
        return f"{error.message.rstrip('.')}. {UNKNOWN}", ""
    return f"{error.message} {error.hint}", error.hint


def find_program(program: str) -> str:
    """Return the path of a sandbox's program; raise MachineError with the way to install it."""
    if path := shutil.which(program):
        return path
    raise build_missing_program(program)


def build_missing_program(program: str) -> MachineError:
    return MachineError(
        f"The sandbox needs the program {program}, which is not installed.",
        _suggest_program(program, read_machine_facts().is_root),
    )


def build_old_bwrap(version: str) -> MachineError:
    return MachineError(
        f"bwrap {version or '(of unknown version)'} is too old: the sandbox needs {OLDEST_BWRAP} or newer.",
        NEWER_BWRAP,
    )


def _suggest_program(program: str, is_root: bool) -> str:
    """Return how to install a program, and for ordinary users what to do if they may not."""
    line = suggest_install(PACKAGES[program], is_root=is_root)
    if is_root:
        return line
    return f"{line.rstrip('.')}. On a cluster: ask its administrators for it, or try `module load apptainer`."


def diagnose_failure(message: str, facts: MachineFacts) -> FailureDiagnosis | None:
    """Recognise the wordings of bwrap, setpriv and the container engines; None for others."""
    if missing := re.search(rf"needs the program ({'|'.join(PACKAGES)}), which is not installed", message):
        return FailureDiagnosis("", _suggest_program(missing[1], facts.is_root))
    if re.search(r"not permitted in setuid mode|doesn't work in setuid mode", message):
        return FailureDiagnosis(
            "bwrap is installed setuid root, and then it refuses what the sandbox needs.",
            "As root: `chmod u-s $(command -v bwrap)`, if the kernel allows user namespaces.",
        )
    if re.search(r"Unexpected capabilities but not setuid", message):
        return FailureDiagnosis(
            "bwrap refuses to run for an ordinary user who has capabilities.",
            "Start the container without added capabilities for this user, or run agent2rl as root in it.",
        )
    if re.search(r"setpriv: set\w+ failed|no free user id", message):
        return FailureDiagnosis(
            "This user namespace has too few user ids for the sandbox to have one of its own.",
            "Run agent2rl as an ordinary user, or map at least 65536 ids: as root of the host, give your "
            "user ranges in /etc/subuid and /etc/subgid.",
        )
    if re.search(LIMITED, message, re.IGNORECASE):
        return _diagnose_setting(COUNT, "The kernel's limit for user namespaces is used up or 0.")
    return (
        _diagnose_engine(message)
        or _diagnose_apptainer(message, facts)
        or _diagnose_bwrap(message)
        or _diagnose_mounts(message, facts)
        or _diagnose_namespaces(message, facts)
        or _diagnose_disk(message)
    )


def _diagnose_engine(message: str) -> FailureDiagnosis | None:
    """Recognise the wordings of Docker, Podman, runc, crun, and of the loader of programs in an image."""
    if missing := re.search(MISSING_LIBRARY, message):
        return FailureDiagnosis(
            "The image does not have a library that the Python of agent2rl needs.",
            f"Add the image's package that has {missing[1]}, or install agent2rl in a Python that brings its "
            "own libraries (uv, conda).",
        )
    if newest := re.search(
        r"client version \S+ is too new\. Maximum supported API version is ([\d.]+)", message
    ):
        return FailureDiagnosis(
            "Docker's client is newer than its daemon.",
            f"Run `export DOCKER_API_VERSION={newest[1].rstrip('.')}`, or update the daemon.",
        )
    return _find_diagnosis(ENGINE_FAILURES, message)


def _find_diagnosis(failures: Mapping[str, FailureDiagnosis], message: str) -> FailureDiagnosis | None:
    for pattern, diagnosis in failures.items():
        if re.search(pattern, message, re.IGNORECASE):
            return diagnosis
    return None


def _diagnose_apptainer(message: str, facts: MachineFacts) -> FailureDiagnosis | None:
    if re.search(r"unknown flag: --no-\w+", message):
        return FailureDiagnosis("The installed Apptainer is too old.", NEWER_APPTAINER)
    if re.search(r"starter-suid doesn't have setuid bit set", message):
        return FailureDiagnosis(
            "Apptainer is configured to use its setuid program, which has no effect: it was copied, its file "
            "system is mounted with nosuid, or the container forbids new privileges.",
            "As root of the machine: install apptainer-suid again, or write `allow setuid = no` in "
            "apptainer.conf to use user namespaces. On a cluster, ask its administrators for it.",
        )
    if not re.search(APPTAINER_DENIED, message):
        return None
    if facts.in_container or facts.forbidding:
        return _diagnose_forbidden(facts)
    return FailureDiagnosis(
        "Apptainer may not create user namespaces here.",
        "As root of the machine: allow them, or install apptainer-suid. On a cluster, ask its "
        "administrators for it.",
    )


def _diagnose_bwrap(message: str) -> FailureDiagnosis | None:
    if missing := re.search(r"Can't find source path (\S+): ", message):
        return FailureDiagnosis(
            f"bwrap cannot open {missing[1]}, although agent2rl can.",
            "Keep Python, runs, the cache and models where every process of your user can open them: not on "
            "FUSE without `allow_other`, and, if you are root, not on NFS that maps root to another user.",
        )
    return _find_diagnosis(BWRAP_FAILURES, message)


def _diagnose_mounts(message: str, facts: MachineFacts) -> FailureDiagnosis | None:
    if re.search(MASKED_PROC, message, re.IGNORECASE):
        return FailureDiagnosis(
            "The container masks parts of /proc, so no new /proc can be mounted.",
            "Whoever starts the container must add `--security-opt systempaths=unconfined` (Docker), "
            "`--security-opt unmask=ALL` (Podman) or `procMount: Unmasked` (Kubernetes).",
        )
    if re.search(r"pivot_root: Invalid argument", message):
        return FailureDiagnosis(
            "The root directory is a chroot or an initial RAM disk, where bwrap cannot change it.",
            "Run agent2rl outside of it, or in a container or virtual machine.",
        )
    if not re.search(MOUNT_DENIED, message):
        return None
    # Without the profile, Ubuntu's setting would be the next to forbid it.
    if facts.in_container and facts.forbidding:
        return _diagnose_forbidden(facts)
    return FailureDiagnosis(
        "The container's AppArmor or SELinux profile forbids mounting.",
        "Whoever starts the container must add `--security-opt apparmor=unconfined` (AppArmor) or "
        "`--security-opt label=disable` (SELinux).",
    )


def _diagnose_namespaces(message: str, facts: MachineFacts) -> FailureDiagnosis | None:
    if re.search(r"does not support user namespaces", message):
        return FailureDiagnosis(
            "This kernel has no user namespaces, or they are turned off at boot.",
            "As root: boot with `user_namespace.enable=1` (RHEL 7) or a kernel with CONFIG_USER_NS. A setuid "
            "bwrap does not help.",
        )
    if re.search(DENIED_LATER, message):
        if facts.in_container:
            return _diagnose_forbidden(facts)
        return _diagnose_setting(APPARMOR, "Ubuntu's AppArmor takes the rights in new user namespaces away.")
    return _diagnose_forbidden(facts) if re.search(DENIED, message) else None


def _diagnose_disk(message: str) -> FailureDiagnosis | None:
    if not re.search(r"No space left on device|Disk quota exceeded", message, re.IGNORECASE):
        return None
    return FailureDiagnosis(
        "A disk is full, or your quota of it.",
        "Free some space where runs, temporary files and the engine's images are, or keep runs elsewhere "
        "with --runs-dir.",
    )


def _diagnose_setting(name: str, cause: str) -> FailureDiagnosis:
    remedy = f"As root of the machine: `sysctl -w {name}={FORBIDDING[name][1]}`."
    return FailureDiagnosis(cause, f"{remedy} On a cluster, ask its administrators for it.")


def _diagnose_forbidden(facts: MachineFacts) -> FailureDiagnosis:
    """Say who forbids namespaces: the kernel, the container, or both, which must then change together."""
    forbidding = facts.forbidding
    if forbidding and not facts.in_container:
        return _diagnose_setting(
            forbidding[0], f"The kernel setting {forbidding[0]} forbids user namespaces."
        )
    cause = "The container's system-call filter or its missing capabilities forbid namespaces."
    if not facts.in_container:
        cause = "A system-call filter, a chroot or missing capabilities forbid namespaces, as in a container."
    capabilities = "--cap-add SYS_ADMIN --cap-add NET_ADMIN " if facts.is_root else ""
    remedy = (
        f"Whoever starts the container must add `{capabilities}--security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
    )
    if forbidding:
        settings = " ".join(f"{name}={FORBIDDING[name][1]}" for name in forbidding)
        cause = f"The container and its host's kernel setting {', '.join(forbidding)} forbid namespaces."
        remedy += f", and as root of the host: `sysctl -w {settings}`. One without the other does not help"
    return FailureDiagnosis(cause, f"{remedy}. Rented pods do not offer this.")
