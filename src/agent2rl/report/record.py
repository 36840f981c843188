"""The record in report.json: everything known about a run and all findings, for programs.

docs/report.schema.json is its JSON schema. `version` increases when a field changes meaning or is removed.
"""

import json
from typing import Self

from agent2rl.analysis.findings import Findings
from agent2rl.core.audit_records import Audit
from agent2rl.core.grading_records import Contamination, EvalScore, Submission
from agent2rl.core.records import Record, Rollouts, RunResult, RunSpec
from agent2rl.core.reproduction import Reproduction
from agent2rl.core.self_reports import AttemptClaims
from agent2rl.record.reader import State
from agent2rl.report.report_data import LlmSummary, ReportData

VERSION = 3


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
