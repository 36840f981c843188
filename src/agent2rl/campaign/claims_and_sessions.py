"""Claims with leases on experiments, and campaign sessions that can be asked to stop, on shared storage.

An experiment's claims are files with rising numbers, of which the highest counts. To claim is to create the
next number, which the file system lets one process do and no other (a hard link, atomic on NFS too); that is
allowed where the highest one is given back or its holder is dead. Nothing is ever replaced or removed, so
whoever looks at an old state of the directory can only come too late, never take what is another's.

A holder touches its claim every few seconds. A claim that was not touched for the lease's time has a dead
holder: by the clock of the storage, so that machines need not agree on the time. Where the holder was a
process of this machine that is gone, nobody waits. A holder that could not touch its claim for that long
gives up by itself.

Whoever works for a session, on whatever machine, looks for its stop file. A file of one session means
nothing to another, so that nothing is left that could stop a later one.
"""

import errno
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import ValidationError

from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.record import Record
from agent2rl.record.files import write_atomically, write_record
from agent2rl.record.paths import SessionPaths, sessions_folder

# Who works on which experiment, on storage that several machines share.

LEASE_SECONDS = 120.0
"""Without a sign of life, after which a claim is anybody's. Longer than NFS keeps attributes (60 s)."""
BEAT_SECONDS = 5.0
UNSUPPORTED = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class ExperimentClaim(Record):
    """Who holds an experiment."""

    token: str
    host: str
    machine: str
    """One boot of one machine, and one space of process ids on it."""
    pid: int
    born: str
    """When the process began, in the kernel's own count: process ids are used again."""
    at: float
    session: str = ""


class _LatestClaim(NamedTuple):
    number: int
    claim: ExperimentClaim | None
    """None: it cannot be read."""
    touched: float


class HeldClaim:
    """A claim of this process."""

    def __init__(self, path: Path, lease: float) -> None:
        self._next = path.with_name(str(int(path.name) + 1))
        self._file = os.open(path, os.O_RDWR)
        self._lease = lease
        self._beaten = _read_boot_clock()

    def renew_claim(self) -> bool:
        """A sign of life, every few seconds; False where it came too late, or the claim was given back."""
        if self._file < 0:
            return False
        if _read_boot_clock() - self._beaten < min(BEAT_SECONDS, self._lease / 4):
            return True
        if _read_boot_clock() - self._beaten >= self._lease or self._next.exists():
            return False
        try:
            os.utime(self._file)
        except OSError:  # for a while the storage may be away
            return True
        self._beaten = _read_boot_clock()
        return True

    def release(self) -> None:
        """From here on it is anybody's."""
        if self._file >= 0:
            with suppress(OSError):
                os.utime(self._file, (0, 0))
            os.close(self._file)
            self._file = -1


class ExperimentClaims:
    def __init__(self, folder: Path, lease: float = LEASE_SECONDS) -> None:
        self._folder = folder
        self._lease = lease

    def require_writable(self) -> None:
        """Refuse to begin what could not be claimed. Nor could the runs be read that its owner has done."""
        if self._folder.exists() and not os.access(self._folder, os.W_OK | os.X_OK):
            owner = self._folder.stat().st_uid
            raise UserError(
                f"{self._folder} belongs to another user (number {owner}), whose runs you cannot see.",
                "Run the campaign under one account, or in a runs directory of your own (--runs-dir).",
            )

    def claim_experiment(self, experiment: str, session: str = "") -> HeldClaim | None:
        """The experiment, for this process alone; None where another has it."""
        place = self._folder / experiment
        place.mkdir(parents=True, exist_ok=True)
        mine = place / f".{secrets.token_hex(8)}"
        with mine.open("x", encoding="utf-8") as file:
            file.write(_describe_this_process(mine.name[1:], session).model_dump_json() + "\n")
        try:
            last = _read_latest_claim(place)
            if last and self._is_active(last, mine.stat().st_mtime):
                return None
            target = place / str(last.number + 1 if last else 1)
            return HeldClaim(target, self._lease) if _create_exclusive_link(mine, target) else None
        finally:
            mine.unlink(missing_ok=True)

    def find_holder(self, experiment: str, now: float | None = None) -> ExperimentClaim | None:
        """Who is at work on it; `now` is from `clock`."""
        last = _read_latest_claim(self._folder / experiment)
        if last is None or not self._is_active(last, self.read_storage_clock() if now is None else now):
            return None
        return last.claim

    def read_storage_clock(self) -> float:
        """The storage's time."""
        probe = self._folder / f".{secrets.token_hex(8)}"
        try:
            probe.touch()
            now = probe.stat().st_mtime
            probe.unlink()
        except OSError:  # nothing was ever claimed here, or one may only look and has to trust its own
            return time.time()
        return now

    def _is_active(self, seen: _LatestClaim, now: float) -> bool:
        if now - seen.touched >= self._lease:
            return False
        return seen.claim is None or not _is_holder_dead(seen.claim)


def _read_latest_claim(place: Path) -> _LatestClaim | None:
    """The claim that counts. Opened, so that NFS asks the server what it is now."""
    try:
        numbers = [int(path.name) for path in place.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return None
    if not numbers:
        return None
    with (place / str(max(numbers))).open(encoding="utf-8") as file:
        touched = os.fstat(file.fileno()).st_mtime
        try:
            claim = ExperimentClaim.model_validate_json(file.read())
        except (ValidationError, UnicodeDecodeError):
            claim = None
    return _LatestClaim(max(numbers), claim, touched)


def _create_exclusive_link(mine: Path, target: Path) -> bool:
    """Whether the name is ours. An answer of NFS can be lost, so what counts is the number of names."""
    try:
        os.link(mine, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in UNSUPPORTED:
            raise MachineError(
                f"{target.parent} is on storage without hard links, so that nothing can be claimed there.",
                "Keep runs on a local disk, NFS, Lustre or the like (--runs-dir).",
            ) from error
        raise
    return mine.stat().st_nlink == 2


def _describe_this_process(token: str, session: str) -> ExperimentClaim:
    pid = os.getpid()
    return ExperimentClaim(
        token=token,
        host=socket.gethostname(),
        machine=read_machine_id(),
        pid=pid,
        born=read_process_start(pid) or "",
        at=time.time(),
        session=session,
    )


def _is_holder_dead(claim: ExperimentClaim) -> bool:
    return is_process_dead(claim.machine, claim.pid, claim.born)


def is_process_dead(where: str, pid: int, began: str) -> bool:
    """Whether it was a process of this machine that is gone. Of others' nothing is known."""
    if where != read_machine_id():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    found = read_process_start(pid)
    return found is not None and found != began


def read_machine_id() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116


def read_process_start(pid: int) -> str | None:
    """None where it may not be looked at; a process that has ended and was not fetched yet is nobody."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _read_boot_clock() -> float:
    """Goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# One `agent2rl campaign run`, as others can see it: that it is there, and how to ask it to stop.

StopRequest = Literal["", "stop", "now"]
"""Nothing; to end each run in order; to end them at once."""


_LOCAL_REQUESTS: dict[Path, StopRequest] = {}
"""What this process asked of its own sessions: a full disk must not keep them from ending."""


class SessionRecord(Record):
    campaign: str
    executor: str
    host: str
    pid: int
    began: float
    machine: str = ""
    born: str = ""
    """As of a claim's holder."""

    @property
    def dead(self) -> bool:
        return is_process_dead(self.machine, self.pid, self.born)


class CampaignSession:
    def __init__(self, paths: SessionPaths) -> None:
        self.paths = paths

    @classmethod
    def open(cls, runs: Path, campaign: str, executor: str) -> Self:
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        paths = SessionPaths(sessions_folder(runs, campaign) / name)
        paths.jobs.mkdir(parents=True)
        paths.log_file("").parent.mkdir()
        who = SessionRecord(
            campaign=campaign,
            executor=executor,
            host=socket.gethostname(),
            pid=os.getpid(),
            began=time.time(),
            machine=read_machine_id(),
            born=read_process_start(os.getpid()) or "",
        )
        write_record(paths.record, who)
        return cls(paths)

    @property
    def token(self) -> str:
        return self.paths.root.name

    def request_stop(self, how: StopRequest) -> None:
        _LOCAL_REQUESTS[self.paths.root] = how
        write_atomically(self.paths.stop, how)

    def read_stop_request(self) -> StopRequest:
        return read_stop_request(self.paths)

    def close(self) -> None:
        self.paths.ended.touch()


def read_stop_request(paths: SessionPaths) -> StopRequest:
    try:
        found: StopRequest = "now" if paths.stop.read_text(encoding="ascii") == "now" else "stop"
    except OSError:  # nobody asked, or the storage is away for a while
        found = ""
    return (
        "now"
        if "now" in (found, _LOCAL_REQUESTS.get(paths.root))
        else found or _LOCAL_REQUESTS.get(paths.root, "")
    )


def list_open_sessions(runs: Path, campaign: str) -> list[tuple[CampaignSession, SessionRecord]]:
    """The sessions of a campaign that have not ended, as far as they could say so."""
    found = []
    for path in sorted(sessions_folder(runs, campaign).glob("*/session.json")):
        session = CampaignSession(SessionPaths(path.parent))
        if not session.paths.ended.exists():
            try:
                found.append((session, SessionRecord.model_validate_json(path.read_bytes())))
            except (OSError, ValidationError):
                continue
    return found
