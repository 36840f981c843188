"""All data of a report, gathered before rendering, and the record of it in report.json.

Pages and figures use nothing but `ReportData`. `RunReport` is for programs: everything known about a run and
all findings. docs/report.schema.json is its JSON schema.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.analysis.findings import CumulativeRollouts, EvidenceIds, Findings
from agent2rl.analysis.generalisation import Answers as Answers
from agent2rl.analysis.timeline import Activity as Activity
from agent2rl.analysis.timeline import ActivityStretch as ActivityStretch
from agent2rl.analysis.timeline import AgentTime
from agent2rl.core.audit_records import Audit
from agent2rl.core.events import DriverRequest, FileSeen, ResourceSample
from agent2rl.core.grading_records import Contamination, EvalScore, Split, Submission
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import Record, Rollouts, RunResult, RunSpec
from agent2rl.core.reproduction import Reproduction
from agent2rl.core.self_reports import AttemptClaims
from agent2rl.record.reader import RunView, State
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


VERSION = 3
"""Increases when a field of report.json changes meaning or is removed."""


class RunReport(Record):
    version: int = VERSION
    run_id: str
    state: State
    spec: RunSpec
    baseline: EvalScore | None
    submissions: tuple[Submission, ...]
    contamination: Contamination | None
    contaminated: bool | None = None
    """Whether evaluation data was found in the workspace; None if it was not searched."""
    result: RunResult | None
    """None while the run is in progress, or if it crashed."""
    rollouts: Rollouts | None = None
    """What was played in the task's world; so far, if the run has no result. None if nothing is known."""
    environment_steps_left: int | None = None
    """None if there is no limit."""
    findings: Findings
    reproductions: tuple[Reproduction, ...] = ()
    """Attempts to train a submission again from its recorded code, oldest first."""
    claims: AttemptClaims | None
    """The agent's own account, which is not trusted."""
    llm_summary: LlmSummary | None
    audit: Audit | None = None
    """What a panel of judges said of the run; None if there was no audit. It changes no score."""
    record_fault: str | None
    """Where the ledger's hash chain first breaks; None if it is intact."""
    notes: tuple[str, ...]
    """What could not be read or was not recorded."""

    @classmethod
    def from_report_data(cls, data: ReportData) -> Self:
        view = data.view
        return cls(
            run_id=view.paths.run_id,
            state=view.state,
            spec=view.spec,
            baseline=view.baseline,
            submissions=view.submissions,
            contamination=view.contamination,
            contaminated=view.contaminated,
            result=view.result,
            rollouts=data.rollouts,
            environment_steps_left=(
                data.rollouts.count_steps_left(view.spec.budget.environment_steps) if data.rollouts else None
            ),
            findings=data.findings,
            reproductions=view.reproductions,
            claims=data.claims,
            llm_summary=data.llm_summary,
            audit=view.audit,
            record_fault=view.chain.fault,
            notes=(*view.notes, *data.notes),
        )


if __name__ == "__main__":
    print(json.dumps(RunReport.model_json_schema(), indent=1))
