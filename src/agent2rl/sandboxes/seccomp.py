"""The sandbox's system-call filter, as the bytes that `bwrap --seccomp` takes.

A namespace hides things; it does not take system calls away. This filter refuses what a training job never
needs and what has been used in sandbox escapes: other processes' memory, mounts, new namespaces, modules,
clocks, io_uring, bpf, file handles, and socket families that no network namespace covers (AF_VSOCK reaches
the hypervisor).

It is a denylist: a new harmless system call works, a new dangerous one must be added here. It cannot
dereference pointers, so namespaces must restrict paths and addresses.
"""

import errno
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from agent2rl.core.errors import MachineError

# Numbers that are the same on every architecture (all system calls since 5.1).
COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,  # memory that no other process can measure
    "open_tree_attr": 467,
}
X86_64 = COMMON | {
    "ptrace": 101,
    "syslog": 103,
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "_sysctl": 156,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "init_module": 175,
    "delete_module": 176,
    "get_kernel_syms": 177,
    "query_module": 178,
    "quotactl": 179,
    "nfsservctl": 180,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
AARCH64 = COMMON | {
    "lookup_dcookie": 18,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "nfsservctl": 42,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "adjtimex": 171,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}
CLONE3 = 435


@dataclass(frozen=True)
class SyscallNumbers:
    """What differs between architectures; the fields named after system calls hold their numbers."""

    audit: int
    refused: dict[str, int]
    ioctl: int
    fcntl: int
    clone: int
    socket: int
    socketpair: int
    sends: tuple[tuple[int, int], ...]
    """The calls that send, each with the index of its flags."""
    persistent: dict[str, int]
    """The calls that make shared memory, semaphores and queues, which stay until somebody removes them."""
    foreign: int | None = None
    """System-call numbers from here on belong to another calling convention."""


MACHINES = {
    "x86_64": SyscallNumbers(
        0xC000003E,
        X86_64,
        ioctl=16,
        fcntl=72,
        clone=56,
        socket=41,
        socketpair=53,
        sends=((44, 3), (46, 2), (307, 3)),
        persistent={"shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240},
        foreign=0x40000000,
    ),
    "aarch64": SyscallNumbers(
        0xC00000B7,
        AARCH64,
        ioctl=29,
        fcntl=25,
        clone=220,
        socket=198,
        socketpair=199,
        sends=((206, 3), (211, 2), (269, 3)),
        persistent={"mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194},
    ),
}

# Every CLONE_NEW* flag of clone(2). CLONE_NEWTIME is not one: there its bit is part of the exit signal.
NEW_NAMESPACE = 0x7E020000
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
SOCK_STREAM, SOCKET_TYPES = 1, 0xF
IPPROTO_DEFAULT, IPPROTO_TCP = 0, 6
MSG_FASTOPEN = 0x20000000
"""Connects while it sends, which Landlock does not see."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
F_SETLEASE = 1024
"""A lease on a file blocks others that open it, including the harness if it is the same user."""

ALLOW = 0x7FFF0000
PASS_ON = 0x7FC00000
"""A process outside answers in place of the kernel (`loopback_sockets`)."""
KILL = 0x80000000


def make_refusal(error: int) -> int:
    """Return the filter's action that makes a system call fail with `error`."""
    return 0x00050000 | error


# Classic BPF: an operation, two jump distances (if true, if false) and a constant.
Instruction = tuple[int, int, int, int]
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE = 0, 4


def _get_argument_offset(index: int) -> int:
    """Return the offset of an argument's low half (little-endian); the kernel ignores the high half of those
    that are tested here."""
    return 16 + 8 * index


def _answer_when(test: int, value: int, answer: int) -> list[Instruction]:
    return [(test, 0, 1, value), (RETURN, 0, 0, answer)]


def _match_call(number: int, body: list[Instruction]) -> list[Instruction]:
    """Apply `body` to this call; it must end in an action."""
    return [(EQUAL, 0, len(body), number), *body]


def _allow_families(allowed: Iterable[int]) -> list[Instruction]:
    tests = [test for family in allowed for test in _answer_when(EQUAL, family, ALLOW)]
    return [(LOAD, 0, 0, _get_argument_offset(0)), *tests]


def _filter_socket() -> list[Instruction]:
    return [
        *_allow_families((AF_UNIX, AF_INET, AF_INET6)),
        # Programs list the network's interfaces with this one protocol of the family.
        (EQUAL, 1, 0, AF_NETLINK),
        (RETURN, 0, 0, make_refusal(errno.EAFNOSUPPORT)),
        (LOAD, 0, 0, _get_argument_offset(2)),
        *_answer_when(EQUAL, NETLINK_ROUTE, ALLOW),
        (RETURN, 0, 0, make_refusal(errno.EAFNOSUPPORT)),
    ]


def _filter_tcp_socket(answer: int) -> list[Instruction]:
    """Leave TCP alone of all internet sockets: Landlock restricts neither UDP nor other protocols."""
    refusal: Instruction = (RETURN, 0, 0, make_refusal(errno.EACCES))
    stream = [
        (LOAD, 0, 0, _get_argument_offset(1)),
        (AND, 0, 0, SOCKET_TYPES),
        (EQUAL, 1, 0, SOCK_STREAM),
        refusal,
        (LOAD, 0, 0, _get_argument_offset(2)),
        *_answer_when(EQUAL, IPPROTO_DEFAULT, answer),
        *_answer_when(EQUAL, IPPROTO_TCP, answer),
        refusal,
    ]
    family: Instruction = (LOAD, 0, 0, _get_argument_offset(0))
    length = len(stream)
    return [family, (EQUAL, 1, 0, AF_INET), (EQUAL, 0, length, AF_INET6), *stream, *_filter_socket()]


def _refuse_fast_open(machine: SyscallNumbers) -> list[Instruction]:
    code: list[Instruction] = []
    denied, allow = _answer_when(ANY_BIT, MSG_FASTOPEN, make_refusal(errno.EACCES)), (RETURN, 0, 0, ALLOW)
    for number, index in machine.sends:
        code += _match_call(number, [(LOAD, 0, 0, _get_argument_offset(index)), *denied, allow])
    return code


def _build_instructions(
    machine: SyscallNumbers, shares_namespaces: bool, passes_tcp: bool
) -> list[Instruction]:
    denied = make_refusal(errno.EPERM)
    allow: Instruction = (RETURN, 0, 0, ALLOW)
    code: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, machine.audit),
        # The numbers below mean other system calls on another architecture.
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if machine.foreign is not None:
        # x32 has the same calls under numbers with this bit, which no test below would match.
        code += _answer_when(AT_LEAST, machine.foreign, make_refusal(errno.ENOSYS))
    refused = machine.refused | (machine.persistent if shares_namespaces else {})
    for number in sorted(refused.values()):
        code += _answer_when(EQUAL, number, denied)
    # Its flags are behind a pointer; ENOSYS makes every C library fall back to clone.
    code += _answer_when(EQUAL, CLONE3, make_refusal(errno.ENOSYS))
    flags: Instruction = (LOAD, 0, 0, _get_argument_offset(0))
    code += _match_call(machine.clone, [flags, *_answer_when(ANY_BIT, NEW_NAMESPACE, denied), allow])
    tcp = _filter_tcp_socket(PASS_ON if passes_tcp else ALLOW)
    code += _match_call(machine.socket, tcp if shares_namespaces else _filter_socket())
    code += _refuse_fast_open(machine) if shares_namespaces else []
    refusal: Instruction = (RETURN, 0, 0, make_refusal(errno.EAFNOSUPPORT))
    code += _match_call(machine.socketpair, [*_allow_families((AF_UNIX,)), refusal])
    request: Instruction = (LOAD, 0, 0, _get_argument_offset(1))
    terminal_input = _answer_when(EQUAL, TIOCSTI, denied) + _answer_when(EQUAL, TIOCLINUX, denied)
    code += _match_call(machine.ioctl, [request, *terminal_input, allow])
    code += _match_call(machine.fcntl, [request, *_answer_when(EQUAL, F_SETLEASE, denied), allow])
    return [*code, allow]


def build_filter(
    machine: str = platform.machine(), shares_namespaces: bool = False, passes_tcp: bool = False
) -> bytes:
    """Return the filter for an architecture, as an array of the kernel's `struct sock_filter`.

    `shares_namespaces` is for a sandbox in the host's network and IPC namespaces. Of the internet's protocols
    it leaves the one that Landlock can restrict. It refuses System V and POSIX objects that would outlive the
    sandbox: their memory belongs to no process, so no limit counts it. `passes_tcp` is for such a sandbox
    whose TCP sockets a broker makes.
    """
    if machine not in MACHINES:
        raise MachineError(
            f"There is no system-call filter for {machine!r} machines.",
            f"Use a machine with {', '.join(MACHINES)}, or --sandbox local, which isolates nothing.",
        )
    instructions = _build_instructions(MACHINES[machine], shares_namespaces, passes_tcp)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
