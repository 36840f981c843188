"""What took long to make is kept, up to a size, and its making says how far it is."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent2rl.dashboard import workers
from agent2rl.dashboard.workers import AnalysisWorker, PageCache

SECONDS = 120


def test_what_was_not_looked_at_for_longest_is_cleared_first(tmp_path: Path) -> None:
    kept = PageCache(tmp_path, most_bytes=250)
    for age, name in enumerate("cba"):
        kept.put(name, name * 80)
        for path in tmp_path.glob("*.html"):
            os.utime(path, (time.time() - 100 * (3 - age),) * 2) if path.read_text()[0] == name else None
    assert kept.get("c") == "c" * 80, "looked at now, so that another is the oldest"
    kept.put("d", "d" * 80)
    assert [bool(kept.get(name)) for name in "abcd"] == [True, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 250


def test_what_cannot_be_kept_is_not_a_fault(tmp_path: Path) -> None:
    kept = PageCache(tmp_path / "folder", most_bytes=10)
    kept.put("long", "x" * 100)
    assert kept.get("long") is None
    (tmp_path / "folder").rmdir()
    kept.put("gone", "x")
    assert kept.get("gone") is None


@pytest.fixture
def analysis_worker(tmp_path: Path) -> Iterator[AnalysisWorker]:
    with closing(AnalysisWorker(tmp_path / "made")) as found:
        yield found


def slow(go_on: str) -> str:
    """Until it may go on."""
    workers.report_step(2, 5, "waiting")
    ends = time.monotonic() + SECONDS
    while not Path(go_on).exists() and time.monotonic() < ends:
        time.sleep(0.02)
    return "done"


def fills_the_memory(_: str) -> str:
    return str(len(b"x" * (1 << 45)))


def test_what_takes_for_ever_or_all_memory_fails_and_the_next_is_made(tmp_path: Path) -> None:
    with closing(AnalysisWorker(tmp_path / "made", most_seconds=1)) as analysis_worker:
        never, ready = str(tmp_path / "never"), tmp_path / "ready"
        ready.touch()
        ends = time.monotonic() + SECONDS
        while not (late := analysis_worker.get_or_start("a", "1", False, slow, never)).fault:
            full = analysis_worker.get_or_start("b", "1", False, fills_the_memory, "")
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert "takes too long" in late.fault
        while analysis_worker.get_or_start("c", "1", False, slow, str(ready)).text is None:
            assert time.monotonic() < ends
            time.sleep(0.05)
        full = analysis_worker.get_or_start("b", "1", False, fills_the_memory, "")
        assert "MemoryError" in full.fault


def test_what_is_being_made_says_its_step_and_what_waits_says_for_how_many(
    analysis_worker: AnalysisWorker, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    ends = time.monotonic() + SECONDS
    while True:
        first = analysis_worker.get_or_start("first", "1", False, slow, str(go_on)).progress
        assert first, "it is not done before it may"
        if first.step:
            break
        assert time.monotonic() < ends
        time.sleep(0.05)
    assert (first.number, first.of, first.step, first.ahead) == (2, 5, "waiting", 0)
    second = analysis_worker.get_or_start("second", "1", False, slow, str(go_on)).progress
    assert second
    assert second.ahead == 1
    go_on.touch()
    while analysis_worker.get_or_start("second", "1", False, slow, str(go_on)).text is None:
        assert time.monotonic() < ends
        time.sleep(0.05)
    assert analysis_worker.get_or_start("second", "1", False, slow, str(go_on)).progress is None
