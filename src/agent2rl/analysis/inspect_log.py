"""Export a run as Inspect logs (schema version 2), which `inspect view` and Inspect's Python API open.

One log has the agent's transcript as its only sample, with the run's scores. One more log for each grading
has a sample per example, with the answer of the graded model. Scores of the agent's log are percentages, as
everywhere in agent2rl. In the logs of gradings they are shares from 0 to 1, as Inspect's scorers write them.
A score that is not known is left out, because Inspect's readers would take 0 for a measurement.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field, JsonValue

from agent2rl import __version__
from agent2rl.core.grading_records import EvalScore, ExampleResult, Split
from agent2rl.core.llm import TokenCounts
from agent2rl.core.records import Record, RunResult
from agent2rl.core.self_reports import AgentToolCall, Transcript, TranscriptStep
from agent2rl.core.units import strip_path
from agent2rl.record.paths import SubmissionPaths
from agent2rl.record.reader import RunView, read_results, read_transcript

SCORER = "agent2rl"
UNSAFE = re.compile(r"[^A-Za-z0-9.+-]+")
Metadata = dict[str, JsonValue]


class InspectToolCall(Record):
    id: str
    function: str
    arguments: dict[str, JsonValue]


class InspectToolError(Record):
    type: Literal["unknown"] = "unknown"
    message: str


class InspectMessage(Record):
    id: str
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[InspectToolCall, ...] | None = None
    tool_call_id: str | None = None
    error: InspectToolError | None = None
    metadata: Metadata | None = None


class InspectScore(Record):
    value: float
    answer: str | None = None
    explanation: str | None = None
    metadata: Metadata | None = None


class InspectUsage(Record):
    input_tokens: int
    """Without those read from or written to a cache."""
    output_tokens: int
    total_tokens: int
    input_tokens_cache_write: int
    input_tokens_cache_read: int
    reasoning_tokens: int
    total_cost: float | None = None


class InspectSample(Record):
    id: str
    epoch: int = 1
    input: str
    target: str = ""
    messages: tuple[InspectMessage, ...]
    scores: dict[str, InspectScore] | None = None
    metadata: Metadata = Field(default_factory=dict)
    model_usage: dict[str, InspectUsage] = Field(default_factory=dict)
    total_time: float | None = None


class InspectMetric(Record):
    name: str
    value: float


class InspectScoreSummary(Record):
    name: str
    scorer: str = SCORER
    scored_samples: int
    unscored_samples: int
    metrics: dict[str, InspectMetric]


class InspectResults(Record):
    total_samples: int
    completed_samples: int
    scores: tuple[InspectScoreSummary, ...]


class InspectDataset(Record):
    name: str
    samples: int
    sample_ids: tuple[str, ...]
    shuffled: bool = False


class InspectSpec(Record):
    eval_id: str
    run_id: str
    created: str
    task: str
    task_id: str
    task_args: Metadata
    solver: str | None = None
    dataset: InspectDataset
    model: str
    config: Metadata = Field(default_factory=dict)
    packages: dict[str, str]
    tags: tuple[str, ...]
    metadata: Metadata


class InspectStats(Record):
    started_at: str
    completed_at: str = ""
    model_usage: dict[str, InspectUsage] = Field(default_factory=dict)


class InspectError(Record):
    message: str
    traceback: str = ""
    traceback_ansi: str = ""


class InspectLog(Record):
    version: int = 2
    status: Literal["started", "success", "cancelled", "error"]
    eval: InspectSpec
    results: InspectResults | None = None
    stats: InspectStats
    error: InspectError | None = None
    samples: tuple[InspectSample, ...]

    @property
    def file_name(self) -> str:
        """The name in Inspect's own form: its readers find JSON logs by the time at the beginning."""
        created = self.eval.created.replace(":", "-")
        return f"{created}_{_make_safe(self.eval.task)}_{_make_safe(self.eval.task_id)}.json"

    @property
    def json_text(self) -> str:
        """The JSON text, without unknown fields."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


@dataclass(frozen=True)
class _Grading:
    """A grading whose answers are in the record."""

    name: str
    split: Split
    where: SubmissionPaths
    score: EvalScore | None


def build_logs(view: RunView) -> Iterator[InspectLog]:
    """Yield the agent's log and one log for each grading with recorded answers."""
    yield _build_agent_log(view)
    for grading in _list_gradings(view):
        if grading.where.results_file(grading.split).is_file():
            yield _build_grading_log(view, grading)


# The agent's log


def _build_agent_log(view: RunView) -> InspectLog:
    result, transcript = view.result, read_transcript(view.paths)
    driver = view.spec.driver.partition("@")[0] if view.spec.driver else None
    usage = _convert_usage(result) if result and driver else None
    model_usage = {driver: usage} if driver and usage else {}
    scores = {name: InspectScore(value=value) for name, value in _list_run_scores(result).items()}
    sample = InspectSample(
        id=view.paths.run_id,
        input=view.spec.task,
        messages=_convert_transcript(transcript) if transcript else (),
        scores=scores or None,
        metadata=_describe_run(view),
        model_usage=model_usage,
        total_time=result.clock.agent if result and result.clock else None,
    )
    return InspectLog(
        status=_get_status(view),
        eval=_build_spec(view, "agent", (sample.id,), model=driver or "none"),
        results=InspectResults(
            total_samples=1,
            completed_samples=int(result is not None),
            scores=tuple(
                _summarize_score(name, {"value": score.value}, 1, 0) for name, score in scores.items()
            ),
        ),
        stats=_build_stats(view, model_usage),
        error=InspectError(message=result.reason or result.ending)
        if _ended_badly(result) and result
        else None,
        samples=(sample,),
    )


def _list_run_scores(result: RunResult | None) -> dict[str, float]:
    """Return the known scores of a run, in percent."""
    if result is None:
        return {}
    before = result.baseline_heldout if result.best_heldout else result.baseline
    known = {
        "score": result.score,
        "improvement": result.improvement,
        "baseline": before.value if before else None,
        "optimism_gap": result.optimism_gap,
    }
    return {name: value for name, value in known.items() if value is not None}


def _ended_badly(result: RunResult | None) -> bool:
    return result is not None and not result.ended_well and result.ending != "interrupted"


def _get_status(view: RunView) -> Literal["started", "success", "cancelled", "error"]:
    if view.result is None:
        return "started" if view.state == "running" else "error"
    if view.result.ending == "interrupted":
        return "cancelled"
    return "success" if view.result.ended_well else "error"


def _convert_usage(result: RunResult) -> InspectUsage | None:
    if result.usage is None:
        return None
    tokens: TokenCounts = result.usage.tokens
    return InspectUsage(
        # Inspect counts tokens from and to the cache apart from the input; our input has them.
        input_tokens=tokens.input - tokens.cached - tokens.written,
        output_tokens=tokens.output,
        total_tokens=tokens.total,
        input_tokens_cache_write=tokens.written,
        input_tokens_cache_read=tokens.cached,
        reasoning_tokens=tokens.reasoning,
        total_cost=result.usage.usd,
    )


def _convert_transcript(transcript: Transcript) -> tuple[InspectMessage, ...]:
    messages: list[InspectMessage] = []
    for number, step in enumerate(transcript.steps, start=1):
        messages += _convert_step(f"step-{number}", step)
    return tuple(messages)


def _convert_step(name: str, step: TranscriptStep) -> Iterator[InspectMessage]:
    """Yield the message of a step, and one message for each result of its tool calls."""
    calls = tuple(_convert_call(call) for call in step.calls)
    metadata: Metadata = {"reasoning": step.reasoning} if step.reasoning else {}
    if step.at is not None:
        metadata["at"] = _format_time(step.at)
    yield InspectMessage(
        id=name,
        role="assistant" if step.source == "agent" else step.source,
        content=step.text,
        tool_calls=calls or None if step.source == "agent" else None,
        metadata=metadata or None,
    )
    for number, seen in enumerate(step.observations, start=1):
        yield InspectMessage(
            id=f"{name}-result-{number}",
            role="tool",
            content=seen.text,
            tool_call_id=seen.call,
            error=InspectToolError(message=seen.text) if seen.failed else None,
        )


def _convert_call(call: AgentToolCall) -> InspectToolCall:
    """Convert a tool call. Inspect requires an object as arguments, whatever the agent wrote."""
    given = call.arguments
    arguments = given if isinstance(given, dict) else {} if given is None else {"value": given}
    return InspectToolCall(id=call.id, function=call.name, arguments=arguments)


# Logs of gradings


def _list_gradings(view: RunView) -> Iterator[_Grading]:
    result, paths = view.result, view.paths
    yield _Grading("baseline", "feedback", paths.baseline, view.baseline)
    yield _Grading("baseline", "heldout", paths.baseline, result.baseline_heldout if result else None)
    for submission in view.submissions:
        where = paths.submission_paths(submission.id)
        is_best = result is not None and result.best is not None and result.best.id == submission.id
        yield _Grading(f"submission-{submission.id}", "feedback", where, submission.score)
        best_score = result.best_heldout if result and is_best else None
        yield _Grading(f"submission-{submission.id}", "heldout", where, best_score)


def _build_grading_log(view: RunView, grading: _Grading) -> InspectLog:
    answers = read_results(grading.where.results_file(grading.split))
    samples = tuple(sample for answer in answers for sample in _convert_answers(answer))
    name = f"{grading.name}-{grading.split}"
    model = f"{strip_path(view.spec.model)}/{grading.name}"
    return InspectLog(
        status="success" if grading.score else "error",
        eval=_build_spec(view, name, tuple(answer.id for answer in answers), model),
        results=_summarize_grading(grading.score, len(samples)),
        stats=_build_stats(view, {}),
        error=None if grading.score else InspectError(message="The record has no score for this grading."),
        samples=samples,
    )


def _summarize_grading(score: EvalScore | None, samples: int) -> InspectResults:
    scores = []
    if score:
        values = {"mean": score.value, "ci_low": score.ci.low, "ci_high": score.ci.high, **score.metrics}
        shares = {name: value / 100 for name, value in values.items()}
        scores.append(_summarize_score(SCORER, shares, score.n, score.missing))
    return InspectResults(total_samples=samples, completed_samples=samples, scores=tuple(scores))


def _convert_answers(answer: ExampleResult) -> Iterator[InspectSample]:
    """Yield a sample for each answer of an example: several answers are epochs."""
    if not answer.attempts:
        yield _build_answer_sample(answer, 1, answer.output, answer.score, answer.note)
    for epoch, attempt in enumerate(answer.attempts, start=1):
        yield _build_answer_sample(answer, epoch, attempt.output, attempt.score, attempt.note)


def _build_answer_sample(
    answer: ExampleResult, epoch: int, output: str, score: float, note: str
) -> InspectSample:
    metadata: Metadata = {**answer.metrics, **({"kind": answer.group} if answer.group else {})}
    return InspectSample(
        id=answer.id,
        epoch=epoch,
        input=answer.id,  # the record has answers, and not what was asked
        messages=_convert_answer(answer, output, epoch),
        scores={SCORER: InspectScore(value=score, answer=output, explanation=note or None)},
        metadata=metadata,
    )


def _convert_answer(answer: ExampleResult, output: str, epoch: int) -> tuple[InspectMessage, ...]:
    """Return the answer, or the first episode turn by turn if the task is a world."""
    if not answer.trajectory or epoch > 1:
        return (InspectMessage(id=f"{answer.id}-{epoch}", role="assistant", content=output),)
    messages = []
    for number, turn in enumerate(answer.trajectory):
        if number:
            reply = turn.reply or turn.action
            messages.append(
                InspectMessage(id=f"{answer.id}-action-{number}", role="assistant", content=reply)
            )
        seen = turn.observation
        messages.append(InspectMessage(id=f"{answer.id}-seen-{number}", role="user", content=seen))
    return tuple(messages)


# What all logs of a run share


def _build_spec(view: RunView, name: str, ids: Sequence[str], model: str) -> InspectSpec:
    spec, run_id = view.spec, view.paths.run_id
    task_id = hashlib.sha256(f"{run_id} {name}".encode()).hexdigest()[:22]
    return InspectSpec(
        eval_id=task_id,
        run_id=run_id,
        created=_format_time(_find_start_time(view)),
        task=f"{strip_path(spec.task)}-{name}",
        task_id=task_id,
        task_args={
            "mode": spec.mode,
            "protocol": spec.protocol,
            "clock": spec.clock,
            "network": spec.network,
            "expert": spec.expert,
            "budget": spec.budget.model_dump(mode="json", exclude_none=True),
            "seed": spec.seed,
            "samples": spec.samples,
        },
        solver=strip_path(spec.agent),
        dataset=InspectDataset(name=strip_path(spec.task), samples=len(ids), sample_ids=tuple(ids)),
        model=model,
        packages={"agent2rl": __version__},
        tags=("agent2rl",),
        metadata={"run_id": run_id, "log": name, "base_model": strip_path(spec.model)},
    )


def _describe_run(view: RunView) -> Metadata:
    result = view.result
    return {
        "state": view.state,
        "ending": result.ending if result else None,
        "contaminated": view.contaminated,
        "sandbox": view.used_sandbox,
        "isolation": result.isolation.level if result and result.isolation else None,
        "submissions": [
            submission.model_dump(
                mode="json", include={"id", "verdict", "improvement", "lineage", "message"}, exclude_none=True
            )
            | ({"score": submission.score.value} if submission.score else {})
            for submission in view.submissions
        ],
    }


def _summarize_score(name: str, values: dict[str, float], scored: int, unscored: int) -> InspectScoreSummary:
    metrics = {key: InspectMetric(name=key, value=value) for key, value in values.items()}
    return InspectScoreSummary(name=name, scored_samples=scored, unscored_samples=unscored, metrics=metrics)


def _build_stats(view: RunView, usage: dict[str, InspectUsage]) -> InspectStats:
    completed = _format_time(view.result.ended_at) if view.result else ""
    return InspectStats(
        started_at=_format_time(_find_start_time(view)), completed_at=completed, model_usage=usage
    )


def _find_start_time(view: RunView) -> float:
    """Return when the run started: 1970 if its record is too damaged to say."""
    if view.result:
        return view.result.started_at
    return view.chain.entries[0].time if view.chain.entries else 0.0


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _make_safe(name: str) -> str:
    return UNSAFE.sub("-", name).strip("-") or "unnamed"
