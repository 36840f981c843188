"""Events of a run's timeline, as the harness observed them from outside: one line of events.jsonl each.

`kind` determines what `data` holds. Ledger entries are on the timeline too, with their own kinds. Kinds that
only the timeline has:

    phase           name, and its subject: self-test, assets, baseline, held-out, contamination, also
    preparing       text
    grading         submission: its grading starts
    revision        `record.revisions.Revision`: the agent's code changed
    began           `ProcessStart`: a process of the agent was seen for the first time
    left            `ProcessEnd`: it is gone
    sample          `ResourceSample`: machine resources that the agent's processes use
    file            `FileSeen`: weights, a log or metrics appeared in the workspace, or changed and then
                    stayed stable
    rollouts        `source` (claimed, served, replayed or refuted) and `RolloutCounts` since the last such
                    event; for refuted ones `detail` describes the first
    request         `DriverRequest`: a request to the driver LLM
    tool            `ClaimedToolCall`: by the agent's own account, reported after it has exited
    refused warning fault preparing    messages for people
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from agent2rl.core.base_record import Record

LedgerKind = Literal[
    "opened",
    "resumed",
    "isolation",
    "assets",
    "agent",
    "python",
    "limits",
    "results",
    "baseline",
    "started",
    "submitted",
    "lineage",
    "revision_of",
    "graded",
    "dropped",
    "continued",
    "ended",
    "revisions",
    "account",
    "usage",
    "network",
    "train_judge",
    "rollout_totals",
    "heldout",
    "contamination",
    "files",
    "closed",
]
"""Decisions: chained in the ledger, and also on the timeline."""
EventKind = (
    LedgerKind
    | Literal[
        "phase",
        "preparing",
        "grading",
        "revision",
        "began",
        "left",
        "sample",
        "file",
        "rollouts",
        "request",
        "tool",
        "refused",
        "warning",
        "fault",
    ]
)
"""All kinds that are written. Files of a later version may hold others."""

MAX_EVENTS: Mapping[EventKind, int] = {"file": 2_000, "request": 20_000, "tool": 20_000}
"""Caps per run on events whose number the agent controls. Processes, rollouts and refusals are capped where
they are detected."""

EARLIER_SOURCES = {"witnessed": "served"}
"""Names of rollout sources in runs of earlier versions."""


class TimelineEvent(Record):
    """One event, for the timeline and for live viewers."""

    time: Annotated[float, Field(allow_inf_nan=False)]
    """Seconds since the epoch, by the harness's clock."""
    kind: str
    data: dict[str, JsonValue]


class ProcessStart(Record):
    """A process in the agent's sandbox. One that lives shorter than the polling interval is not seen."""

    pid: int
    """On the host; together with `began` it identifies the process."""
    began: float
    """Seconds since the epoch."""
    parent: int
    name: str
    command: Annotated[str, Field(max_length=2000)]
    """Its command line, truncated if it is long."""
    exact: bool | None = None
    """Whether `command` is the whole command line, unchanged. None in runs of earlier versions."""
    directory: Annotated[str, Field(max_length=1000)] = ""
    """Its working directory, as the agent sees it; empty if that is not known."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that differ from those that the agent was started with. Likely secrets are left out."""


class ProcessEnd(Record):
    pid: int
    began: float
    seconds: float
    """Observed lifetime."""
    cpu_seconds: float
    """CPU time used, at least."""
    peak_bytes: int
    """Peak resident memory, at least."""


class GpuSample(Record):
    index: int
    busy: Annotated[float, Field(ge=0, le=1)] | None
    """None if the GPU driver does not report it, as for a partitioned GPU."""
    memory_bytes: int
    """Peak seen."""


class ResourceSample(Record):
    """Resources of all the agent's processes together, since the previous sample."""

    seconds: float
    """Time that this sample covers."""
    cores: float
    """Cores busy on average."""
    resident_bytes: int
    processes: int
    disk_bytes: int | None = None
    """Of the workspace, HOME and /tmp; None until the first sum is complete."""
    log_bytes: int = 0
    """Size of the agent's output so far."""
    gpus: tuple[GpuSample, ...] = ()
    """As the GPU driver reports them; this includes other users of a GPU."""


class FileSeen(Record):
    path: Annotated[str, Field(max_length=1000)]
    """Relative to the workspace; for weights, the folder that holds them."""
    what: Literal["weights", "log", "metrics"]
    """`metrics` are files of curves that are no text to read, or that only hold numbers."""
    bytes: int
    changed: float
    """Modification time in seconds since the epoch; the agent can forge it."""


class DriverRequest(Record):
    """One exchange with the driver LLM; usage.jsonl has the full record."""

    began: float
    seconds: float
    stalled_seconds: float = 0.0
    outcome: str
    input: int | None = None
    output: int | None = None
    """Token counts; None if the provider reported none."""


class ClaimedToolCall(Record):
    """A tool call of the agent, by its own account."""

    at: float | None
    name: Annotated[str, Field(max_length=200)]
    shown: Annotated[str, Field(max_length=500)]
    """Its command, or its arguments."""
    failed: bool = False
