"""Claims with leases on experiments, and campaign sessions that can be asked to stop, on shared storage.

The claims of an experiment are files with increasing numbers, and the highest number counts. A process claims
the experiment by creating the next number. The file system lets only one process do so (a hard link, atomic
on NFS too). This is allowed if the highest claim was released or its holder is dead. Claim files are never
replaced or removed. So a process with a stale view of the directory can only be too late, but can never take
the claim of another.

A holder touches its claim every few seconds. If a claim was not touched for the time of the lease, its holder
counts as dead. The clock of the storage decides, so that machines need not agree on the time. If the holder
was a process of this machine that is gone, there is no need to wait. A holder that could not touch its claim
for that long gives up by itself.

Every worker of a session, on any machine, checks the session's stop file. Each session has its own, so that
an old stop file cannot stop a later session.
"""

import errno
import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import ValidationError

from agent2rl.core.base_record import Record
from agent2rl.core.errors import MachineError, UserError
from agent2rl.record.files import write_atomically, write_record
from agent2rl.record.paths import SessionPaths, sessions_folder

logger = logging.getLogger(__name__)

# Claims on experiments

LEASE_SECONDS = 120.0
"""A claim expires if it is not renewed for this long. Longer than NFS caches attributes (60 s)."""
BEAT_SECONDS = 5.0
UNSUPPORTED = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class ExperimentClaim(Record):
    """The process that holds an experiment."""

    token: str
    host: str
    machine: str
    """Identifies one boot of one machine and one pid namespace on it."""
    pid: int
    born: str
    """Start time of the process, in clock ticks of the kernel: process ids are reused."""
    at: float
    session: str = ""


class _LatestClaim(NamedTuple):
    number: int
    claim: ExperimentClaim | None
    """None: the file cannot be parsed."""
    touched: float


class HeldClaim:
    """A claim that this process holds."""

    def __init__(self, path: Path, lease: float) -> None:
        self._next = path.with_name(str(int(path.name) + 1))
        self._file = os.open(path, os.O_RDWR)
        self._lease = lease
        self._beaten = _read_boot_clock()

    def renew_claim(self) -> bool:
        """Touch the claim every few seconds; return False if it has expired or was released."""
        if self._file < 0:
            return False
        if _read_boot_clock() - self._beaten < min(BEAT_SECONDS, self._lease / 4):
            return True
        # A holder that slept for longer than the lease, or whose storage hung, gives up without
        # asking: another process may be running the experiment by now.
        if _read_boot_clock() - self._beaten >= self._lease or self._next.exists():
            return False
        try:
            # Through the open file, so that only our own claim can be touched.
            os.utime(self._file)
        except OSError as error:  # the storage may be unavailable for a while
            logger.debug("Cannot renew claim %s: %s", self._next.parent.name, error)
            return True
        self._beaten = _read_boot_clock()
        return True

    def release(self) -> None:
        """Release the claim, so that any process can take the experiment."""
        if self._file >= 0:
            with suppress(OSError):
                # In 1970, so that it counts as expired. Removing the file would make its number
                # free again.
                os.utime(self._file, (0, 0))
            os.close(self._file)
            self._file = -1


class ExperimentClaims:
    def __init__(self, folder: Path, lease: float = LEASE_SECONDS) -> None:
        self._folder = folder
        self._lease = lease

    def require_writable(self) -> None:
        """Raise UserError if another user owns the claims: we could not read that user's runs either."""
        if self._folder.exists() and not os.access(self._folder, os.W_OK | os.X_OK):
            owner = self._folder.stat().st_uid
            raise UserError(
                f"{self._folder} belongs to another user (uid {owner}), whose runs you cannot read.",
                "Run the campaign under one account, or in your own runs directory (--runs-dir).",
            )

    def claim_experiment(self, experiment: str, session: str = "") -> HeldClaim | None:
        """Claim the experiment for this process; return None if another process holds it."""
        directory = self._folder / experiment
        directory.mkdir(parents=True, exist_ok=True)
        draft = directory / f".{secrets.token_hex(8)}"
        # Complete before it gets its number, so that nobody can read half a claim.
        with draft.open("x", encoding="utf-8") as file:
            file.write(_describe_this_process(draft.name[1:], session).model_dump_json() + "\n")
        try:
            last = _read_latest_claim(directory)
            # The draft was written just now, so its time stamp is the time by the storage's clock.
            if last and self._is_active(last, draft.stat().st_mtime):
                return None
            target = directory / str(last.number + 1 if last else 1)
            claimed = _create_exclusive_link(draft, target)
            logger.debug("%s claim %s", "Took" if claimed else "Lost the race for", target)
            return HeldClaim(target, self._lease) if claimed else None
        finally:
            draft.unlink(missing_ok=True)

    def find_holder(self, experiment: str, now: float | None = None) -> ExperimentClaim | None:
        """Return the holder of an experiment; `now` is the time from `read_storage_clock`."""
        last = _read_latest_claim(self._folder / experiment)
        if last is None or not self._is_active(last, self.read_storage_clock() if now is None else now):
            return None
        return last.claim

    def read_storage_clock(self) -> float:
        """Return the time by the clock of the storage."""
        probe = self._folder / f".{secrets.token_hex(8)}"
        try:
            probe.touch()
            now = probe.stat().st_mtime
            probe.unlink()
        except OSError:  # no claims directory yet, or we may only read it: use our own clock
            return time.time()
        return now

    def _is_active(self, claim: _LatestClaim, now: float) -> bool:
        if now - claim.touched >= self._lease:
            return False
        # A claim that cannot be read counts until it expires: its holder may be alive.
        return claim.claim is None or not _is_holder_dead(claim.claim)


def _read_latest_claim(directory: Path) -> _LatestClaim | None:
    """Read the claim that counts. Opening the file makes NFS ask the server for its current state."""
    try:
        numbers = [int(path.name) for path in directory.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return None
    if not numbers:
        return None
    with (directory / str(max(numbers))).open(encoding="utf-8") as file:
        touched = os.fstat(file.fileno()).st_mtime
        try:
            claim = ExperimentClaim.model_validate_json(file.read())
        except (ValidationError, UnicodeDecodeError):
            claim = None
    return _LatestClaim(max(numbers), claim, touched)


def _create_exclusive_link(draft: Path, target: Path) -> bool:
    """Link the draft and return whether it worked. NFS can lose a reply, so the link count decides."""
    try:
        os.link(draft, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in UNSUPPORTED:
            raise MachineError(
                f"{target.parent} is on storage without hard links, so experiments cannot be claimed there.",
                "Keep runs on a local disk, NFS, Lustre or similar (--runs-dir).",
            ) from error
        raise
    return draft.stat().st_nlink == 2


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


def is_process_dead(machine: str, pid: int, born: str) -> bool:
    """Return whether this was a process of this machine and is gone. Other machines are unknown: False."""
    if machine != read_machine_id():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # The number may be that of another process by now; the start time tells them apart.
    start = read_process_start(pid)
    return start is not None and start != born


def read_machine_id() -> str:
    """Identify this boot of this machine and our pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116


def read_process_start(pid: int) -> str | None:
    """Return the start time of a process: "" for a zombie, None if it cannot be read."""
    try:
        fields = (
            # The name in front, in brackets, may itself have blanks and brackets.
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _read_boot_clock() -> float:
    """Read a clock that keeps running while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# Sessions: one `agent2rl campaign run` each, visible to other processes, which can ask it to stop

StopRequest = Literal["", "stop", "now"]
"""No request; stop each run cleanly; abort all runs."""


_LOCAL_REQUESTS: dict[Path, StopRequest] = {}
"""Stop requests of this process to its own sessions: a full disk must not prevent them from stopping."""


class SessionRecord(Record):
    campaign: str
    executor: str
    host: str
    pid: int
    began: float
    machine: str = ""
    born: str = ""
    """As in ExperimentClaim."""

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
        record = SessionRecord(
            campaign=campaign,
            executor=executor,
            host=socket.gethostname(),
            pid=os.getpid(),
            began=time.time(),
            machine=read_machine_id(),
            born=read_process_start(os.getpid()) or "",
        )
        write_record(paths.record, record)
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
        request: StopRequest = "now" if paths.stop.read_text(encoding="ascii") == "now" else "stop"
    except OSError:  # no request, or the storage is unavailable for a while
        request = ""
    return (
        "now"
        if "now" in (request, _LOCAL_REQUESTS.get(paths.root))
        else request or _LOCAL_REQUESTS.get(paths.root, "")
    )


def list_open_sessions(runs: Path, campaign: str) -> list[tuple[CampaignSession, SessionRecord]]:
    """Return the sessions of a campaign without an end mark. A session that crashed has none."""
    sessions = []
    for path in sorted(sessions_folder(runs, campaign).glob("*/session.json")):
        session = CampaignSession(SessionPaths(path.parent))
        if not session.paths.ended.exists():
            try:
                sessions.append((session, SessionRecord.model_validate_json(path.read_bytes())))
            except (OSError, ValidationError):
                continue
    return sessions
