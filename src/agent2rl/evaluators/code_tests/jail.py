"""Lock in the calling process permanently: it can compute, and read only the interpreter's own files.

The seccomp filter is an allowlist, unlike the filter of the agent's sandbox: any other system call fails with
EPERM. A program cannot start processes, send signals, use sockets, open files for writing or change limits.
Threads are allowed. `restrict_process` (limits, and landlock if the kernel has it) is for the server and all
its children; `enter_jail` is for one child. Both add to the sandbox around the server and do not replace it.
"""

import ctypes
import os
import resource
import struct

CPU_SECONDS = 3
LIMITS = {
    resource.RLIMIT_AS: 1 << 30,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
}

NO_NEW_PRIVS, SECCOMP, DUMPABLE = 38, 22, 4
ALLOW, ABSENT, REFUSED, KILL = 0x7FFF0000, 0x00050026, 0x00050001, 0x80000000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06

# name: (x86_64, aarch64); None where an architecture has no such call.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "poll": (7, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "access": (21, None),
    "select": (23, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "set_tid_address": (218, 96),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "statx": (332, 291),
    "rseq": (334, 293),
    "faccessat2": (439, 439),
}
OPEN, OPENAT, CLONE, FCNTL, PRLIMIT = (2, None), (257, 56), (56, 220), (72, 25), (302, 261)
CLONE3 = 435
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
CLONE_THREAD = 0x10000
F_GETFD, F_SETFD, F_GETFL = 1, 2, 3
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Name: the kernel's architecture number, and the column of the table above."""

Instruction = tuple[int, int, int, int]


def _load_argument(index: int, high: bool = False) -> Instruction:
    return (LOAD, 0, 0, 16 + 8 * index + 4 * high)


def _return_answer(value: int) -> Instruction:
    return (RETURN, 0, 0, value)


def _build_argument_rules(column: int) -> list[tuple[int | None, list[Instruction]]]:
    """Return the system calls that are allowed only with some arguments, and the instructions to decide."""
    reading = [(ANY_BIT, 0, 1, WRITING), _return_answer(REFUSED), _return_answer(ALLOW)]
    thread = [
        _load_argument(0),
        (ANY_BIT, 1, 0, CLONE_THREAD),
        _return_answer(REFUSED),
        _return_answer(ALLOW),
    ]
    reads = [(EQUAL, 0, 1, command) for command in (F_GETFD, F_SETFD, F_GETFL)]
    flags = [step for test in reads for step in (test, _return_answer(ALLOW))]
    # A pointer has 64 bits, and the filter sees 32 of an argument at a time.
    pointer = [
        step
        for high in (False, True)
        for step in (_load_argument(2, high), (EQUAL, 1, 0, 0), _return_answer(REFUSED))
    ]
    return [
        (OPEN[column], [_load_argument(1), *reading]),
        (OPENAT[column], [_load_argument(2), *reading]),
        (CLONE[column], thread),
        (FCNTL[column], [_load_argument(1), *flags, _return_answer(REFUSED)]),
        (PRLIMIT[column], [*pointer, _return_answer(ALLOW)]),  # without new limits it only reads the old ones
        (
            CLONE3,
            [_return_answer(ABSENT)],
        ),  # its flags lie behind a pointer; the C library falls back to clone
    ]


def build_filter(machine: str = os.uname().machine) -> bytes:
    """Return the filter as an array of the kernel's `struct sock_filter`."""
    architecture, column = MACHINES[machine]
    code: list[Instruction] = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, architecture),
        _return_answer(KILL),
        (LOAD, 0, 0, 0),
    ]
    for numbers in ALLOWED.values():
        if (number := numbers[column]) is not None:
            code += [(EQUAL, 0, 1, number), _return_answer(ALLOW)]
    for number, body in _build_argument_rules(column):
        if number is not None:
            code += [(EQUAL, 0, len(body), number), *body]
    return b"".join(struct.pack("=HBBI", *step) for step in [*code, _return_answer(REFUSED)])


_libc = ctypes.CDLL(None, use_errno=True)
_filter = ctypes.create_string_buffer(build_filter())
_filter_head = struct.pack("@HP", len(_filter) // 8, ctypes.addressof(_filter))
"""The kernel's `struct sock_fprog`: built once, before any fork."""


def _call_libc(what: str, *arguments: int | bytes | None) -> int:
    words = [word if isinstance(word, (bytes, type(None))) else ctypes.c_ulong(word) for word in arguments]
    done = int(getattr(_libc, what)(*words))
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return done


def _lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, but not above the current hard limit, which cannot be raised."""
    wanted, most = (soft, soft if hard is None else hard), resource.getrlimit(kind)[1]
    soft, hard = (each if most == resource.RLIM_INFINITY else min(each, most) for each in wanted)
    resource.setrlimit(kind, (soft, hard))


def enter_jail() -> None:
    """Lock in this process before it runs a program. This cannot be undone."""
    # A program may catch the signal of the first limit. At the second, the kernel kills it.
    _lower_limit(resource.RLIMIT_CPU, CPU_SECONDS, CPU_SECONDS + 1)
    _call_libc("prctl", SECCOMP, 2, _filter_head, 0, 0)


CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_DIR = 1 << 2, 1 << 3
# What each version of landlock can forbid of files, of the network, and of reaching other processes.
FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
NETWORK, SCOPES = 0b11, 0b11


def restrict_process(readable: list[str]) -> bool:
    """Limit this process and all its children, and deny them all files except those below `readable`.

    Returns False if the kernel has no landlock: then only the sandbox around it and the filter protect.
    """
    for kind, limit in LIMITS.items():
        _lower_limit(kind, limit)
    _call_libc("prctl", DUMPABLE, 0, 0, 0, 0)  # other processes of this user cannot read its memory
    _call_libc("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        version = _call_libc("syscall", CREATE_RULESET, None, 0, 1)
    except OSError:
        return False
    files = FILES[max(known for known in FILES if known <= version)]
    rules = struct.pack("=QQQ", files, NETWORK if version >= 4 else 0, SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call_libc("syscall", CREATE_RULESET, rules, size, 0)
    for path in readable:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        access = READ_FILE | (READ_DIR if os.path.isdir(path) else 0)  # noqa: PTH112 (pathlib takes time to load)
        _call_libc("syscall", ADD_RULE, ruleset, 1, struct.pack("=QI", access, place), 0)
        os.close(place)
    _call_libc("syscall", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return True
