"""All that a report shows, gathered before anything is drawn. Pages and figures are made from this alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent2rl.analysis.alive import AgentTime
from agent2rl.analysis.campaigns.digest import Digest
from agent2rl.analysis.findings import Cited, Findings, Played
from agent2rl.analysis.timeline import Doing as Doing
from agent2rl.analysis.timeline import Stretch as Stretch
from agent2rl.core.claims import Claims
from agent2rl.core.events import Asked, FileSeen, Sample
from agent2rl.core.llm import Exchange
from agent2rl.core.record import Record
from agent2rl.core.records import ExampleResult, Split
from agent2rl.store.reader import RunView
from agent2rl.store.revisions import Revision

Answers = Mapping[int, Sequence[ExampleResult]]
"""By submission; 0 is the untouched model."""


@dataclass(frozen=True)
class Timeline:
    """What happened when. Times are of the agent's time, but where a record has its own."""

    started: float | None = None
    """When the agent started, in seconds since the epoch; None where it never did."""
    spans: tuple[Stretch, ...] = ()
    samples: tuple[tuple[float, Sample], ...] = ()
    played: tuple[Played, ...] = ()
    """Counted from the start on."""
    requests: tuple[tuple[float, Asked], ...] = ()
    revisions: tuple[Revision, ...] = ()
    files: tuple[tuple[float, FileSeen], ...] = ()
    time: AgentTime | None = None
    """None: the agent was started once."""

    def at(self, time: float) -> float:
        """A time that is told in seconds since the epoch."""
        return self.time.at(time) if self.time else time - (self.started or 0.0)


class LlmSummary(Record):
    """What a model makes of the findings. It may be wrong where they are right."""

    text: str
    """Cites evidence as `[E12]`."""
    model: str
    cited: Cited = ()
    problems: tuple[str, ...] = ()
    """What a check of it found: evidence that does not exist, sentences that cite none."""


@dataclass(frozen=True)
class Shown:
    view: RunView
    findings: Findings
    timeline: Timeline = Timeline()
    diffs: Mapping[int, str] = field(default_factory=dict)
    """By attempt: the code against the attempt before, as a unified diff."""
    results: Mapping[Split, Answers] = field(default_factory=dict)
    claims: Claims | None = None
    usage: tuple[Exchange, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, beyond what the view says of itself."""
    llm_summary: LlmSummary | None = None
    digest: Digest | None = None
    """What statistics over many runs need of this one."""
