"""The system-call filter, decided by an interpreter of classic BPF for both architectures."""

import errno
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.errors import MachineError
from agent2rl.sandboxes import seccomp
from agent2rl.sandboxes.seccomp import ALLOW, KILL, MACHINES, build_filter, make_refusal

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HARMLESS = {
    "x86_64": {"read": 0, "mmap": 9, "execve": 59, "openat": 257, "setresuid": 117, "prctl": 157},
    "aarch64": {"read": 63, "mmap": 222, "execve": 221, "openat": 56, "setresuid": 147, "prctl": 167},
}
NOT_SUPPORTED = make_refusal(errno.EAFNOSUPPORT)
DENIED = make_refusal(errno.EPERM)
AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK = 16, 17, 38, 40
SIGCHLD = 17
CLONE_NEW = {
    "ns": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
DANGEROUS = """
ptrace process_vm_readv process_vm_writev pidfd_getfd process_madvise kcmp userfaultfd
mount umount2 pivot_root move_mount open_tree fsopen fsmount mount_setattr chroot
unshare setns name_to_handle_at open_by_handle_at keyctl add_key request_key
bpf perf_event_open io_uring_setup io_uring_enter io_uring_register
init_module finit_module delete_module kexec_load kexec_file_load reboot
acct swapon swapoff quotactl clock_settime clock_adjtime settimeofday adjtimex
"""
THREAD = 0x3D0F00  # the flags with which the C library makes a thread

machines = pytest.mark.parametrize("machine", sorted(MACHINES))
words = st.integers(0, 2**64 - 1)
arguments = st.lists(words, min_size=6, max_size=6).map(tuple)


def decide(code: bytes, audit: int, number: int, arguments: tuple[int, ...] = (0,) * 6) -> int:
    """What the kernel would answer: runs the program on a `struct seccomp_data`."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *arguments)
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator = position = 0
    while True:
        operation, if_true, if_false, constant = instructions[position]
        position += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, constant)
            case 0x15:
                position += if_true if accumulator == constant else if_false
            case 0x35:
                position += if_true if accumulator >= constant else if_false
            case 0x54:
                accumulator &= constant
            case 0x45:
                position += if_true if accumulator & constant else if_false
            case 0x06:
                return int(constant)
            case _:
                raise AssertionError(f"unknown operation {operation:#x}")


def ask(machine: str, number: int, *given: int) -> int:
    return decide(build_filter(machine), AUDIT[machine], number, (*given, *[0] * (6 - len(given))))


@machines
def test_every_named_call_is_refused_whatever_its_arguments(machine: str) -> None:
    for number in MACHINES[machine].refused.values():
        assert ask(machine, number) == DENIED
        assert ask(machine, number, *[2**64 - 1] * 6) == DENIED


@machines
def test_what_led_out_of_sandboxes_is_on_the_list(machine: str) -> None:
    assert set(DANGEROUS.split()) <= MACHINES[machine].refused.keys()


@machines
def test_ordinary_calls_pass(machine: str) -> None:
    assert {ask(machine, number) for number in HARMLESS[machine].values()} == {ALLOW}


@machines
@given(number=st.integers(0, 0x3FFFFFFF), given_arguments=arguments)
def test_what_is_not_named_passes(machine: str, number: int, given_arguments: tuple[int, ...]) -> None:
    parts = MACHINES[machine]
    special = {seccomp.CLONE3, parts.clone, parts.socket, parts.socketpair, parts.ioctl}
    expected = DENIED if number in parts.refused.values() else ALLOW
    if number not in special:
        assert decide(build_filter(machine), AUDIT[machine], number, given_arguments) == expected


@machines
@given(audit=st.integers(0, 2**32 - 1), number=st.integers(0, 2**32 - 1), given_arguments=arguments)
def test_another_architecture_is_killed(
    machine: str, audit: int, number: int, given_arguments: tuple[int, ...]
) -> None:
    if audit != AUDIT[machine]:
        assert decide(build_filter(machine), audit, number, given_arguments) == KILL


@given(number=st.integers(0x40000000, 2**32 - 1), given_arguments=arguments)
def test_the_other_calling_convention_of_x86_is_refused(
    number: int, given_arguments: tuple[int, ...]
) -> None:
    answer = decide(build_filter("x86_64"), AUDIT["x86_64"], number, given_arguments)
    assert answer == make_refusal(errno.ENOSYS)


@machines
def test_clone3_is_said_not_to_exist_so_that_libraries_fall_back(machine: str) -> None:
    assert ask(machine, 435) == make_refusal(errno.ENOSYS)


@machines
@pytest.mark.parametrize("kind", sorted(CLONE_NEW))
def test_no_new_namespace_can_be_cloned(machine: str, kind: str) -> None:
    assert ask(machine, MACHINES[machine].clone, CLONE_NEW[kind] | SIGCHLD) == DENIED


@machines
@given(flags=words)
def test_clone_is_refused_exactly_for_new_namespaces(machine: str, flags: int) -> None:
    wants_namespace = any(flags & bit for bit in CLONE_NEW.values())
    assert ask(machine, MACHINES[machine].clone, flags) == (DENIED if wants_namespace else ALLOW)


@machines
def test_processes_and_threads_can_be_made(machine: str) -> None:
    for flags in (SIGCHLD, THREAD, 0x1200000 | SIGCHLD, 0x4100 | SIGCHLD):
        assert ask(machine, MACHINES[machine].clone, flags) == ALLOW


@machines
@given(family=st.integers(0, 2**32 - 1) | st.integers(0, 50), kind=words, protocol=words)
def test_only_four_socket_families_exist(machine: str, family: int, kind: int, protocol: int) -> None:
    low = protocol & 0xFFFFFFFF
    allowed = family in (1, 2, 10) or (family == AF_NETLINK and low == 0)
    answer = ask(machine, MACHINES[machine].socket, family, kind, protocol)
    assert answer == (ALLOW if allowed else NOT_SUPPORTED)


@machines
@pytest.mark.parametrize("family", [AF_VSOCK, AF_PACKET, AF_ALG])
@pytest.mark.parametrize("high", [0, 1 << 32])
def test_vsock_is_refused_even_with_rubbish_above_its_32_bits(machine: str, family: int, high: int) -> None:
    assert ask(machine, MACHINES[machine].socket, high | family, 1, 0) == NOT_SUPPORTED


@machines
@given(family=st.integers(0, 2**32 - 1) | st.integers(0, 50))
def test_socket_pairs_are_local_only(machine: str, family: int) -> None:
    assert ask(machine, MACHINES[machine].socketpair, family) == (ALLOW if family == 1 else NOT_SUPPORTED)


@machines
@given(request_number=words)
def test_nothing_can_be_typed_into_a_terminal_of_others(machine: str, request_number: int) -> None:
    ioctl = MACHINES[machine].ioctl
    forbidden = request_number & 0xFFFFFFFF in (0x5412, 0x541C)
    assert ask(machine, ioctl, 0, request_number) == (DENIED if forbidden else ALLOW)
    assert ask(machine, ioctl, 0, 0x5412) == ask(machine, ioctl, 0, 0x541C | 1 << 40) == DENIED


def test_a_machine_without_a_table_is_named() -> None:
    with pytest.raises(MachineError, match="riscv64"):
        build_filter("riscv64")


def headers(machine: str) -> dict[str, int]:
    """The kernel's own numbers, where its headers are installed."""
    places = {
        "aarch64": ["/usr/include/asm-generic/unistd.h"],
        "x86_64": ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"],
    }
    found = [Path(place) for place in places[machine] if Path(place).exists()]
    if not found:
        pytest.skip(f"no kernel headers with the numbers of {machine} on this machine")
    text = found[0].read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"#define __NR_(\w+)\s+(\d+)\s", text)}


@machines
def test_the_numbers_are_the_kernels_own(machine: str) -> None:
    known = headers(machine)
    parts = MACHINES[machine]
    four = {
        "ioctl": parts.ioctl,
        "clone": parts.clone,
        "socket": parts.socket,
        "socketpair": parts.socketpair,
    }
    ours = parts.refused | parts.persistent | four | {"clone3": seccomp.CLONE3}
    # Older headers do not name the newest calls; those have one number everywhere.
    assert {name for name in ours if name not in known} <= seccomp.COMMON.keys()
    assert {name: number for name, number in ours.items() if known.get(name, number) != number} == {}


TCP, UDP, MPTCP, CLOSE_ON_EXEC = 6, 17, 262, 0x80000
STREAM, DATAGRAM, RAW = 1, 2, 3
REFUSED = make_refusal(errno.EACCES)


def ask_without_namespace(machine: str, number: int, *given: int, passes_tcp: bool = False) -> int:
    code = build_filter(machine, shares_namespaces=True, passes_tcp=passes_tcp)
    return decide(code, AUDIT[machine], number, (*given, *[0] * (6 - len(given))))


@machines
@pytest.mark.parametrize("family", [2, 10])
def test_without_a_network_namespace_tcp_is_the_only_protocol_of_the_internet(
    machine: str, family: int
) -> None:
    def open_socket(kind: int, protocol: int, passes_tcp: bool) -> int:
        number = MACHINES[machine].socket
        return ask_without_namespace(machine, number, family, kind, protocol, passes_tcp=passes_tcp)

    others = [(STREAM, MPTCP), (DATAGRAM, 0), (DATAGRAM | CLOSE_ON_EXEC, UDP), (RAW, 1), (5, 132)]
    for passes_tcp, answer in ((False, ALLOW), (True, seccomp.PASS_ON)):
        kind = STREAM | CLOSE_ON_EXEC
        assert {open_socket(kind, protocol, passes_tcp) for protocol in (0, TCP)} == {answer}
        assert {open_socket(kind, protocol, passes_tcp) for kind, protocol in others} == {REFUSED}


@machines
def test_a_broker_gets_nothing_but_tcp_sockets(machine: str) -> None:
    parts = MACHINES[machine]
    for family in (1, AF_NETLINK):
        given = (family, STREAM, 0)
        assert ask_without_namespace(machine, parts.socket, *given, passes_tcp=True) == ALLOW
    assert ask_without_namespace(machine, parts.socket, AF_VSOCK, 1, passes_tcp=True) == NOT_SUPPORTED
    assert ask_without_namespace(machine, parts.socketpair, 2, 1, passes_tcp=True) == NOT_SUPPORTED


@machines
def test_without_an_ipc_namespace_nothing_can_be_made_that_outlives_the_sandbox(machine: str) -> None:
    for number in MACHINES[machine].persistent.values():
        assert ask(machine, number) == ALLOW
        assert ask_without_namespace(machine, number) == DENIED


@machines
def test_without_a_network_namespace_other_families_are_as_before(machine: str) -> None:
    for family, kind, protocol in (
        (1, STREAM, 0),
        (1, DATAGRAM, 0),
        (AF_NETLINK, RAW, 0),
        (AF_VSOCK, STREAM, 0),
    ):
        asked = (MACHINES[machine].socket, family, kind, protocol)
        assert ask_without_namespace(machine, *asked) == ask(machine, *asked)


@machines
def test_without_a_network_namespace_sending_does_not_connect(machine: str) -> None:
    for number, index in MACHINES[machine].sends:
        flags = [0] * index + [0x20000000 | 0x40]
        assert ask_without_namespace(machine, number, *flags) == REFUSED
        assert ask_without_namespace(machine, number, *[0] * index, 0x40) == ALLOW
        assert ask(machine, number, *flags) == ALLOW
