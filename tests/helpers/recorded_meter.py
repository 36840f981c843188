"""Meters on a real record, for tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent2rl.core.records import Budget, RunSpec
from agent2rl.environments.adapters import EpisodeTrace
from agent2rl.environments.adapters.rollout_reports import sign_episodes, sign_report
from agent2rl.grading.rollout_meter import EpisodeReport, RolloutMeter, RolloutReport
from agent2rl.record.recorder import Recorder


@dataclass(frozen=True)
class RecordedMeter:
    meter: RolloutMeter
    recorder: Recorder

    def events(self) -> list[dict[str, Any]]:
        """What was played, as the record has it."""
        lines = self.recorder.paths.events.read_text(encoding="utf-8").splitlines()
        return [event["data"] for event in map(json.loads, lines) if event["kind"] == "rollouts"]

    def report(self, sequence: int = 1, reporter: str = "me", key: str = "", **counts: int) -> RolloutReport:
        whole = {"episodes": 0, "steps": 0, "successes": 0} | counts
        signed = sign_report(key or self.meter.key, reporter, sequence, whole)
        return RolloutReport.model_validate(
            {"reporter": reporter, "sequence": sequence, "signature": signed, **whole}
        )

    def report_traces(
        self, sequence: int, traces: list[EpisodeTrace], reporter: str = "me", key: str = ""
    ) -> EpisodeReport:
        episodes = [asdict(trace) for trace in traces]
        signed = sign_episodes(key or self.meter.key, reporter, sequence, traces)
        return EpisodeReport.model_validate(
            {"reporter": reporter, "sequence": sequence, "signature": signed, "episodes": episodes}
        )


@contextmanager
def open_recorded_meter(folder: Path, steps: int | None = None) -> Iterator[RecordedMeter]:
    budget = Budget(wall_seconds=60, environment_steps=steps)
    spec = RunSpec(task="stairs", agent="nop", model="abacus", engine="transformers", budget=budget)
    with Recorder.create(folder, spec, lambda _: None) as recorder:
        yield RecordedMeter(RolloutMeter(budget, recorder), recorder)
