"""Read everything recorded about a run, once. Files that cannot be read are noted and skipped."""

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from pydantic import ValidationError

from agent2rl.analysis import timeline as timelines
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.events import TimelineEvent
from agent2rl.core.grading_records import ExampleResult, Split, Submission, find_best_submission
from agent2rl.core.llm import LlmExchange
from agent2rl.core.self_reports import AttemptClaims
from agent2rl.record.paths import RunPaths, SubmissionPaths
from agent2rl.record.reader import RunView, read_claims, read_events, read_results, read_run, read_usage

PLAIN_NAME = re.compile(r"\w[\w.-]*")
"""Matches names of a folder inside of the run directory, which may be somebody else's."""
Results = dict[Split, dict[int, list[ExampleResult]]]
"""By split and submission; 0 is the untouched model."""


@dataclass(frozen=True)
class RecordedRun:
    view: RunView
    events: tuple[TimelineEvent, ...]
    timeline: AgentTimeline
    usage: tuple[LlmExchange, ...]
    claims: AttemptClaims | None
    results: Results
    notes: tuple[str, ...]
    """What could not be read, in addition to the notes of the view."""

    @cached_property
    def exchanges(self) -> tuple[tuple[float, LlmExchange], ...]:
        """Exchanges with the driver LLM, each with its time since the agent's start."""
        return tuple((self.timeline.seconds_at(each.at), each) for each in self.usage)

    @property
    def best(self) -> Submission | None:
        """The submission that counts, or would count if the run ended now."""
        if self.view.result:
            return self.view.result.best
        return find_best_submission(self.view.submissions)

    def read_reference_results(self, split: Split) -> list[ExampleResult]:
        """Return the results that the best submission is compared with.

        These are the untouched model's, or those of its weights with the submission's other files if they
        score higher.
        """
        untouched = self.results.get(split, {}).get(0, [])
        if self.best is None or self.best.ablation is None or not PLAIN_NAME.fullmatch(self.best.ablation):
            return untouched
        with suppress(OSError, ValidationError):
            ablated = read_results(self.view.paths.ablation_paths(self.best.ablation).results_file(split))
            if math.fsum(one.score for one in ablated) > math.fsum(one.score for one in untouched):
                return ablated
        return untouched


def read_recorded_run(paths: RunPaths) -> RecordedRun:
    view = read_run(paths)
    notes: list[str] = []
    events = _add_ledger_events(read_events(paths, notes), view)
    return RecordedRun(
        view=view,
        events=tuple(events),
        timeline=timelines.read_timeline(events),
        usage=tuple(read_usage(paths, notes)),
        claims=read_claims(paths, notes),
        results=_read_results(view, notes),
        notes=tuple(notes),
    )


def _add_ledger_events(events: list[TimelineEvent], view: RunView) -> list[TimelineEvent]:
    """Add the events of the ledger if the timeline lacks the agent's start."""
    ledger = [TimelineEvent(time=each.time, kind=each.kind, data=each.data) for each in view.chain.entries]
    if any(event.kind == "started" for event in events) or not ledger:
        return events
    kinds = {event.kind for event in ledger}
    others = [event for event in events if event.kind not in kinds]
    return sorted([*others, *ledger], key=lambda event: event.time)


def _read_results(view: RunView, notes: list[str]) -> Results:
    results: Results = {}
    for split in get_args(Split):
        for number, where in _list_result_paths(view):
            path = where.results_file(split)
            try:
                results.setdefault(split, {})[number] = read_results(path)
            except FileNotFoundError:
                continue
            except (OSError, ValidationError) as error:
                notes.append(f"{view.paths.relative_name(path)} cannot be read ({type(error).__name__})")
    return results


def _list_result_paths(view: RunView) -> Iterable[tuple[int, SubmissionPaths]]:
    yield 0, view.paths.baseline
    for each in view.submissions:
        yield each.id, view.paths.submission_paths(each.id)
