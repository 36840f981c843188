"""Export a transcript as ATIF 1.7, the trajectory format of Harbor and other tools."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import JsonValue

from agent2rl.core import self_reports
from agent2rl.core.llm import TokenCounts
from agent2rl.core.records import Record

ATIF_VERSION = "ATIF-v1.7"


class AtifAgent(Record):
    name: str
    version: str
    model_name: str | None = None


class AtifToolCall(Record):
    tool_call_id: str
    function_name: str
    arguments: dict[str, JsonValue]


class AtifToolResult(Record):
    source_call_id: str
    content: str
    extra: dict[str, JsonValue] | None = None


class AtifObservation(Record):
    results: tuple[AtifToolResult, ...]


class AtifStepMetrics(Record):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    extra: dict[str, JsonValue] | None = None


class AtifStep(Record):
    step_id: int
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    message: str
    reasoning_content: str | None = None
    tool_calls: tuple[AtifToolCall, ...] | None = None
    observation: AtifObservation | None = None
    metrics: AtifStepMetrics | None = None


class AtifFinalMetrics(Record):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_steps: int


class AtifTrajectory(Record):
    schema_version: str = ATIF_VERSION
    session_id: str
    agent: AtifAgent
    steps: tuple[AtifStep, ...]
    notes: str | None = None
    final_metrics: AtifFinalMetrics

    @property
    def json_text(self) -> str:
        """The JSON text, without unknown fields."""
        return self.model_dump_json(indent=2, exclude_none=True)


def build_trajectory(transcript: self_reports.Transcript, run_id: str) -> AtifTrajectory:
    steps = tuple(_convert_step(number, step) for number, step in enumerate(transcript.steps, start=1))
    tokens = transcript.tokens
    return AtifTrajectory(
        session_id=transcript.session or run_id,
        agent=AtifAgent(
            name=transcript.agent, version=transcript.version, model_name=transcript.model or None
        ),
        steps=steps,
        notes=transcript.error or None,
        final_metrics=AtifFinalMetrics(
            total_prompt_tokens=tokens.input if tokens else None,
            total_completion_tokens=tokens.output if tokens else None,
            total_cached_tokens=tokens.cached if tokens else None,
            total_steps=len(steps),
        ),
    )


def _convert_step(number: int, step: self_reports.TranscriptStep) -> AtifStep:
    agent = step.source == "agent"  # only steps of the agent may have the fields below
    return AtifStep(
        step_id=number,
        timestamp=datetime.fromtimestamp(step.at, UTC).isoformat() if step.at is not None else None,
        source=step.source,
        message=step.text,
        reasoning_content=step.reasoning or None if agent else None,
        tool_calls=tuple(_convert_call(call) for call in step.calls) or None if agent else None,
        observation=_convert_observation(step) if agent else None,
        metrics=_convert_metrics(step.tokens) if agent and step.tokens else None,
    )


def _convert_call(call: self_reports.AgentToolCall) -> AtifToolCall:
    """Convert a tool call. ATIF requires an object as arguments, whatever the agent wrote."""
    given = call.arguments
    arguments = given if isinstance(given, dict) else {} if given is None else {"value": given}
    return AtifToolCall(tool_call_id=call.id, function_name=call.name, arguments=arguments)


def _convert_observation(step: self_reports.TranscriptStep) -> AtifObservation | None:
    results = [
        AtifToolResult(
            source_call_id=seen.call, content=seen.text, extra={"failed": True} if seen.failed else None
        )
        for seen in step.observations
    ]
    return AtifObservation(results=tuple(results)) if results else None


def _convert_metrics(tokens: TokenCounts) -> AtifStepMetrics:
    return AtifStepMetrics(
        prompt_tokens=tokens.input,
        completion_tokens=tokens.output,
        cached_tokens=tokens.cached,
        extra={"reasoning_tokens": tokens.reasoning} if tokens.reasoning else None,
    )
