"""All data of a report, gathered before rendering. Pages and figures use nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.analysis.findings import CumulativeRollouts, EvidenceIds, Findings
from agent2rl.analysis.generalisation import Answers as Answers
from agent2rl.analysis.timeline import Activity as Activity
from agent2rl.analysis.timeline import ActivityStretch as ActivityStretch
from agent2rl.analysis.timeline import AgentTime
from agent2rl.core.base_record import Record
from agent2rl.core.events import DriverRequest, FileSeen, ResourceSample
from agent2rl.core.grading_records import Split
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import Rollouts
from agent2rl.core.self_reports import AttemptClaims
from agent2rl.record.reader import RunView
from agent2rl.record.revisions import Revision


@dataclass(frozen=True)
class ReportTimeline:
    """What happened when. Times are in the agent's time, except those inside records."""

    started: float | None = None
    """When the agent started, in seconds since the epoch; None if it never did."""
    spans: tuple[ActivityStretch, ...] = ()
    samples: tuple[tuple[float, ResourceSample], ...] = ()
    played: tuple[CumulativeRollouts, ...] = ()
    """Cumulative counts from the start."""
    requests: tuple[tuple[float, DriverRequest], ...] = ()
    revisions: tuple[Revision, ...] = ()
    files: tuple[tuple[float, FileSeen], ...] = ()
    time: AgentTime | None = None
    """None if the agent was started only once."""

    def at(self, time: float) -> float:
        """Convert seconds since the epoch to the agent's time."""
        return self.time.seconds_at(time) if self.time else time - (self.started or 0.0)


class LlmSummary(Record):
    """A language model's summary of the findings. It may be wrong where the findings are right."""

    text: str
    """Cites evidence as `[E12]`."""
    model: str
    cited: EvidenceIds = ()
    problems: tuple[str, ...] = ()
    """Problems found by an automatic check: citations of missing evidence, sentences without citations."""


@dataclass(frozen=True)
class ReportData:
    view: RunView
    findings: Findings
    timeline: ReportTimeline = ReportTimeline()
    diffs: Mapping[int, str] = field(default_factory=dict)
    """By attempt: code changes since the previous attempt, as a unified diff."""
    results: Mapping[Split, Answers] = field(default_factory=dict)
    claims: AttemptClaims | None = None
    usage: tuple[LlmExchange, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, beyond the notes of the view."""
    llm_summary: LlmSummary | None = None
    digest: RunDigest | None = None
    """What statistics over many runs need from this one."""

    @property
    def rollouts(self) -> Rollouts | None:
        """What was played in the task's world; so far, if the run has no result. None if nothing is known."""
        if self.view.result:
            return self.view.result.rollouts
        if self.timeline.played:
            return Rollouts(**self.timeline.played[-1].model_dump(exclude={"at"}))
        return None if self.view.spec.budget.environment_steps is None else Rollouts()
