"""The curves of trainings come from the logs that trainers write, whatever else is in these files."""

import json
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.analysis import training_logs
from agent2rl.analysis.findings import AttemptFindings, MetricName, PrintedCurve, TrainingCurves
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.analysis.training_logs import READERS, read_trainings
from agent2rl.analysis.training_logs.log_reading import find_metric
from agent2rl.analysis.training_logs.protobuf_logs import read_event_file, read_wandb_file
from agent2rl.core.events import FileSeen
from agent2rl.core.grading_records import Submission
from agent2rl.record.workspace_reader import WorkspaceWatcher
from agent2rl.training.progress import TrainingProgress

RECORDED = Path(__file__).with_name("recorded_logs")
"""Written by tensorboardX 2.6.5 and wandb 0.31.0."""


def read(
    workspace: Path, attempts: Iterable[AttemptFindings] = (), submissions: Iterable[Submission] = ()
) -> tuple[TrainingCurves, ...]:
    """Read the logs that the harness would find in a workspace."""
    seen = WorkspaceWatcher(workspace).find_changes(last=True)
    files = tuple((0.0, each) for each in sorted(seen, key=lambda one: one.path))
    return read_trainings(workspace, AgentTimeline(0.0, 1.0, files=files), [*attempts], [*submissions])


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def points(training: TrainingCurves, metric: MetricName) -> list[tuple[float, float | None]]:
    return next(list(series.points) for series in training.series if series.metric == metric)


def submission(number: int, at: float) -> Submission:
    return Submission(id=number, path=f"output/{number}", accepted_at=at)


# Our own progress, and other JSON lines


def test_the_progress_of_a_recipe_is_read_by_stage(tmp_path: Path) -> None:
    for stage, steps in (("sft", 3), ("grpo", 4), ("grpo", 2)):
        progress = TrainingProgress(stage, tmp_path / "progress.jsonl", every_seconds=0)
        for step in range(1, steps + 1):
            metrics = {"entropy": 1.0 / step, "gradient_norm": 2.0} if stage == "grpo" else {}
            progress.record_step(step, 100, 10.0, loss=0.5, reward=0.1 * step, metrics=metrics)
    sft, grpo, again = read(tmp_path)
    assert [each.name for each in (sft, grpo, again)] == ["sft", "grpo", "grpo 2"]
    assert points(grpo, "entropy") == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]
    assert points(grpo, "grad_norm")[-1] == (4, 2.0)
    assert {series.metric for series in sft.series} == {"loss", "reward", "tokens_per_second"}


def test_progress_entries_hold_means_since_the_last_one(tmp_path: Path) -> None:
    progress = TrainingProgress("grpo", tmp_path / "progress.jsonl", every_seconds=1000)
    progress.record_step(1, 10, 5.0, 0.1, 0.5, {"kl": 1.0, "response_length": 10})
    progress.record_step(2, 10, 0.0, 0.3, None, {"kl": 3.0})
    (entry,) = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert (entry["kl"], entry["response_length"], entry["entropy"]) == (2.0, 10.0, None)
    assert entry["time"] > 1e9
    with pytest.raises(KeyError):
        progress.record_step(3, 10, 5.0, 0.1, metrics={"unknown": 1.0})


def test_json_lines_of_any_trainer_need_a_step_and_a_known_metric(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"global_step": 5, "metrics": {"critic": {"rewards/mean": 0.25}}, "actor/entropy": 2},
        {"loss": 3.0},
        {"global_step": 6, "note": "no metric"},
        {"global_step": 10, "metrics": {"critic": {"rewards/mean": 0.5}}, "eval/reward": 0.9},
        {"global_step": "11", "reward": 0.5},
    ]
    write_lines(tmp_path / "code/metrics.jsonl", rows)
    with (tmp_path / "code/metrics.jsonl").open("a") as file:
        file.write('{"global_step": 15, "actor/entropy": NaN}\nnot json\n{"global_step": 20, "act')
    (found,) = read(tmp_path)
    assert (found.name, found.format) == ("metrics.jsonl", "json-lines")
    assert points(found, "entropy") == [(5, 2.0), (15, None)]
    assert points(found, "reward") == [(5, 0.25), (10, 0.5)]


# TRL and transformers


def trl_entry(step: int) -> dict[str, float]:
    """An entry as TRL 1.16 writes it."""
    return {
        "epoch": step / 100,
        "step": step,
        "loss": 0.01,
        "grad_norm": 0.5,
        "learning_rate": 1e-6,
        "num_tokens": 1000.0 * step,
        "step_time": 4.0,
        "reward": step / 100,
        "reward_std": 0.3,
        "rewards/accuracy/mean": 0.9,
        "rewards/accuracy/std": 0.1,
        "frac_reward_zero_std": 0.25,
        "completions/mean_length": 120.0,
        "completions/max_length": 256.0,
        "completions/clipped_ratio": 0.1,
        "clip_ratio/low_mean": 0.0,
        "clip_ratio/region_mean": 0.02,
        "kl": 0.001,
        "entropy": 1.1,
    }


def write_state(path: Path, steps: Iterable[int]) -> None:
    entries: list[dict[str, float]] = [trl_entry(step) for step in steps]
    entries.append({"step": 99, "train_runtime": 10.0, "train_loss": 5.0})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"global_step": 30, "log_history": entries}))


def test_the_state_of_a_trainer_has_every_metric(tmp_path: Path) -> None:
    write_state(tmp_path / "output/grpo/checkpoint-20/trainer_state.json", (10, 20))
    write_state(tmp_path / "output/grpo/checkpoint-30/trainer_state.json", (10, 20, 30))
    (found,) = read(tmp_path)
    assert (found.name, found.format) == ("output/grpo", "trainer-state")
    assert found.path.endswith("checkpoint-30/trainer_state.json")
    last = {series.metric: series.points[-1] for series in found.series}
    assert last == {
        "reward": (30, 0.3),
        "loss": (30, 0.01),
        "entropy": (30, 1.1),
        "kl": (30, 0.001),
        "response_length": (30, 120.0),
        "groups_without_signal": (30, 0.25),
        "tokens_per_second": (30, 250.0),  # 10,000 tokens in ten steps of 4 seconds
        "learning_rate": (30, 1e-6),
        "grad_norm": (30, 0.5),
        "clip_fraction": (30, 0.02),
    }


def test_the_reward_of_a_single_function_counts_where_there_is_no_other() -> None:
    assert find_metric("rewards/accuracy/mean") > find_metric("train/reward")  # type: ignore[operator]
    assert find_metric("eval_reward") is find_metric("val/reward") is find_metric("rewards/x/std") is None


# TensorBoard and W&B


def test_a_real_event_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "output/runs"
    folder.mkdir(parents=True)
    shutil.copy(RECORDED / "events.out.tfevents.1790000000.host", folder)
    (found,) = read(tmp_path, submissions=[submission(1, 1790000075.0), submission(2, 1790000500.0)])
    assert (found.name, found.format, found.problem) == ("output/runs", "tensorboard", "")
    assert [series.metric for series in found.series] == [
        "reward",
        "loss",
        "response_length",
        "clip_fraction",
    ]
    assert points(found, "reward")[5] == (6, 0.5)
    assert points(found, "loss")[-1] == (12, None)
    assert [(mark.submission, mark.step) for mark in found.submissions] == [(1, 7), (2, 12)]


def test_a_real_wandb_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    shutil.copy(RECORDED / "run-grpo.wandb", tmp_path / "wandb")
    (found,) = read(tmp_path)
    assert (found.format, found.problem) == ("wandb", "")
    last = {series.metric: series.points[-1] for series in found.series}
    expected: dict[MetricName, object] = {
        "reward": (120, 1.0),
        "grad_norm": (120, None),
        "tokens_per_second": (120, 50.0),
        "learning_rate": (120, pytest.approx(1e-4 / 12)),
    }
    assert {name: last[name] for name in expected} == expected
    assert len(last) == 9


def encode_varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def encode_bytes(number: int, data: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(data)) + data


def encode_event(step: int, tag: str, value: float) -> bytes:
    scalar = encode_bytes(1, tag.encode()) + encode_varint(2 << 3 | 5) + struct.pack("<f", value)
    event = encode_varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + encode_varint(2 << 3) + encode_varint(step)
    event += encode_bytes(5, encode_bytes(1, scalar))
    return struct.pack("<QI", len(event), 0) + event + bytes(4)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(-1e6, 1e6, width=32)), max_size=30))
def test_every_scalar_of_an_event_file_is_read(logged: list[tuple[int, float]]) -> None:
    content = b"".join(encode_event(step, "train/reward", value) for step, value in logged)
    rows = read_event_file(content).rows
    assert [(row.step, row.values["train/reward"]) for row in rows] == [(s, v) for s, v in logged]


def encode_wandb(records: Iterable[bytes]) -> bytes:
    """Write a LevelDB log, in chunks that fill blocks of 32 KiB."""
    content = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        begun, left = False, record
        while True:
            room = (32 << 10) - len(content) % (32 << 10)
            if room < 7:
                content += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = (3 if left else 4) if begun else (2 if left else 1)
            content += struct.pack("<IHB", 0, len(part), kind) + part
            begun = True
            if not left:
                break
    return bytes(content)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(-1e6, 1e6), st.integers(0, 40_000)), max_size=8))
def test_every_row_of_a_wandb_file_is_read(logged: list[tuple[int, float, int]]) -> None:
    records = []
    for step, value, padding in logged:
        items = encode_bytes(2, b"reward") + encode_bytes(16, json.dumps(value).encode())
        note = encode_bytes(2, b"note") + encode_bytes(16, b'"' + b"x" * padding + b'"')
        history = (
            encode_bytes(1, note) + encode_bytes(1, items) + encode_bytes(2, b"\x08" + encode_varint(step))
        )
        records.append(encode_bytes(2, history))
    rows = read_wandb_file(encode_wandb(records)).rows
    assert [(row.step, row.values["reward"]) for row in rows] == [(step, value) for step, value, _ in logged]


# Hostile and damaged files


@given(st.binary(max_size=400))
def test_no_content_raises(content: bytes) -> None:
    for reader in READERS:
        reader.read(content)
    read_wandb_file(b":W&B\xe1\xbe\x00" + content)
    read_event_file(struct.pack("<QI", len(content), 0) + content + bytes(4))


@pytest.mark.parametrize("name", ["events.out.tfevents.1790000000.host", "run-grpo.wandb"])
def test_a_file_that_is_cut_anywhere_is_read_up_to_there(name: str) -> None:
    content = (RECORDED / name).read_bytes()
    reader = next(each for each in READERS if each.matches(name))
    whole = reader.read(content).rows
    for end in range(0, len(content), 97):
        rows = reader.read(content[:end]).rows
        assert rows == whole[: len(rows)]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("trainer_state.json", b"{", "it is not valid JSON"),
        ("trainer_state.json", b"[" * 100_000, "it is not valid JSON"),
        ("trainer_state.json", b'{"log_history": 5}', "it has no log_history"),
        ("run-1.wandb", b"something else", "it is not a W&B file"),
        ("events.out.tfevents.1.host", b"x" * 100, "it is not an event file"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem_in_its_record(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (found,) = read(tmp_path)
    assert (found.series, found.problem) == ((), problem)


def test_of_large_files_only_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_logs, "FILE_BYTES", 1000)
    write_lines(tmp_path / "metrics.jsonl", ({"step": step, "reward": 0.5} for step in range(1, 1000)))
    (found,) = read(tmp_path)
    assert found.problem == "it is too large to be read in full"
    assert 20 < len(points(found, "reward")) < 100


def test_links_are_not_followed(tmp_path: Path) -> None:
    write_lines(tmp_path / "outside.jsonl", [{"step": 1, "reward": 1.0}])
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/metrics.jsonl").symlink_to(tmp_path / "outside.jsonl")
    seen = FileSeen(path="metrics.jsonl", what="log", bytes=10, changed=0.0)
    timeline = AgentTimeline(0.0, 1.0, files=((0.0, seen),))
    assert read_trainings(tmp_path / "workspace", timeline, [], []) == ()


# What was printed, and submissions


def attempt(curves: Iterable[PrintedCurve]) -> AttemptFindings:
    return AttemptFindings(
        number=1, began=0.0, ended=1.0, submission=3, outcome="improved", curves=tuple(curves)
    )


def test_what_was_only_printed_is_a_training_too(tmp_path: Path) -> None:
    reward = PrintedCurve(name="reward", where="agent.log:4", points=((1.0, 0.1), (2.0, 0.2)))
    length = PrintedCurve(name="length", where="agent.log:4", points=((1.0, 40.0), (2.0, 50.0)))
    (found,) = read(tmp_path, [attempt([reward, length])])
    assert (found.name, found.format) == ("attempt 1", "printed")
    assert points(found, "response_length") == [(1, 40.0), (2, 50.0)]
    assert [(mark.submission, mark.step) for mark in found.submissions] == [(3, 2.0)]


def test_what_was_printed_and_logged_is_one_training(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": 0.123456 * step, "kl": 0.01} for step in range(1, 8)]
    write_lines(tmp_path / "progress.jsonl", rows)
    shown = tuple((float(step), round(0.123456 * step, 3)) for step in range(1, 8))
    (found,) = read(tmp_path, [attempt([PrintedCurve(name="reward", where="agent.log:1", points=shown)])])
    assert found.format == "json-lines"


def test_trainings_that_differ_stay_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [{"step": step, "reward": 0.1 * step + (name == "b") * 0.05} for step in range(1, 8)]
        write_lines(tmp_path / name / "metrics.jsonl", rows)
    assert [each.path for each in read(tmp_path)] == ["a/metrics.jsonl", "b/metrics.jsonl"]


def test_a_submission_is_marked_where_the_training_was(tmp_path: Path) -> None:
    rows = [
        {"stage": stage, "step": step, "time": start + step, "loss": float(step)}
        for stage, start in (("sft", 1.8e9), ("grpo", 1.9e9))
        for step in range(1, 6)
    ]
    write_lines(tmp_path / "progress.jsonl", rows)
    times = {1: 1.7e9, 2: 1.8e9 + 3.5, 3: 1.85e9, 4: 2.0e9}
    sft, grpo = read(tmp_path, submissions=[submission(number, at) for number, at in times.items()])
    assert [(mark.submission, mark.step) for mark in sft.submissions] == [(2, 3), (3, 5)]
    assert [(mark.submission, mark.step) for mark in grpo.submissions] == [(4, 5)]
