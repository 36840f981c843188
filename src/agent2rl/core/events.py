"""The timeline of a run: what happened, as the harness saw it from outside. One line of events.jsonl each.

`kind` says what `data` holds. Ledger entries are on the timeline too, with their own kinds. Kinds that only
the timeline has:

    phase           name, and what it is about: self-test, assets, baseline, held-out, contamination
    preparing       text
    grading         submission: its grading begins
    revision        `store.revisions.Revision`: the agent's code changed
    began           `ProcessStart`: a process of the agent was seen for the first time
    left            `ProcessEnd`: it is gone
    sample          `ResourceSample`: what the agent's processes use of the machine
    file            `FileSeen`: weights or a log appeared in the workspace, or changed and came to rest
    rollouts        `source` (claimed or witnessed) and `Counts` since the last such event
    request         `DriverRequest`: the driver LLM was asked
    tool            `ClaimedToolCall`: by the agent's own account, told when it has ended
    refused warning fault preparing    for people
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from agent2rl.core.record import Record

LedgerKind = Literal[
    "opened",
    "resumed",
    "isolation",
    "assets",
    "agent",
    "limits",
    "results",
    "baseline",
    "started",
    "submitted",
    "lineage",
    "revision_of",
    "graded",
    "continued",
    "ended",
    "revisions",
    "account",
    "usage",
    "train_judge",
    "rollout_totals",
    "heldout",
    "contamination",
    "files",
    "closed",
]
"""Decisions, chained in the ledger and on the timeline as well."""
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
"""All that is written. What is read may be of a later version and have others."""

MAX_EVENTS: Mapping[EventKind, int] = {"file": 2_000, "request": 20_000, "tool": 20_000}
"""In one run, of events whose number the agent decides. Processes, rollouts and refusals are bounded where
they are noticed."""


class TimelineEvent(Record):
    """Something that happened, for the timeline and for whoever watches."""

    time: Annotated[float, Field(allow_inf_nan=False)]
    """Seconds since the epoch, by the harness's clock."""
    kind: str
    data: dict[str, JsonValue]


class ProcessStart(Record):
    """A process in the agent's sandbox. What lives shorter than the time between two looks is not seen."""

    pid: int
    """As the host counts; with `began` it names the process."""
    began: float
    """Seconds since the epoch."""
    parent: int
    name: str
    command: Annotated[str, Field(max_length=2000)]
    """Its command line, cut where it is long."""


class ProcessEnd(Record):
    pid: int
    began: float
    seconds: float
    """That it lived, as far as it was seen."""
    cpu_seconds: float
    """That it used, at least."""
    peak_bytes: int
    """Of resident memory, at least."""


class GpuSample(Record):
    index: int
    busy: Annotated[float, Field(ge=0, le=1)] | None
    """None: the driver does not tell, as of a GPU in parts."""
    memory_bytes: int
    """The most that was seen."""


class ResourceSample(Record):
    """All of the agent's processes together, since the sample before."""

    seconds: float
    """That this sample stands for."""
    cores: float
    """Busy on average: 1.5 is one and a half cores."""
    resident_bytes: int
    processes: int
    disk_bytes: int | None = None
    """Of the workspace, HOME and /tmp; None where it has not been added up yet."""
    log_bytes: int = 0
    """What the agent has printed by now."""
    gpus: tuple[GpuSample, ...] = ()
    """As the driver reports them: other users of a GPU count too."""


class FileSeen(Record):
    path: Annotated[str, Field(max_length=1000)]
    """Below the workspace; of weights, the folder that holds them."""
    what: Literal["weights", "log"]
    bytes: int
    changed: float
    """When it was last written, in seconds since the epoch; the agent could have set it."""


class DriverRequest(Record):
    """One exchange with the driver LLM; usage.jsonl has all of it."""

    began: float
    seconds: float
    stalled_seconds: float = 0.0
    outcome: str
    input: int | None = None
    output: int | None = None
    """Tokens; None where the provider told none."""


class ClaimedToolCall(Record):
    """A tool call of the agent, by its own account."""

    at: float | None
    name: Annotated[str, Field(max_length=200)]
    shown: Annotated[str, Field(max_length=500)]
    """Its command, or its arguments."""
    failed: bool = False
