"""One `agent2rl campaign run`, as others can see it: that it is there, and how to ask it to stop.

Whoever works for a session, on whatever machine, looks for its stop file. A file of one session means
nothing to another, so that nothing is left that could stop a later one.
"""

import os
import secrets
import socket
import time
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError

from agent2rl.campaign.experiment_claims import is_process_dead, read_machine_id, read_process_start
from agent2rl.core.record import Record
from agent2rl.store.files import write_atomically, write_record
from agent2rl.store.paths import SessionPaths, sessions_folder

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
