"""A runs directory that somebody hostile wrote: every page answers soon, and shows nothing from outside."""

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from agent2rl.dashboard.rendering import render_time
from agent2rl.dashboard.run_index import RunIndex
from agent2rl.record.paths import RunPaths
from agent2rl.record.untrusted_files import MOST_BYTES
from agent2rl.report.digests import VERSION, CachedDigest
from tests.dashboard import example_runs
from tests.dashboard.conftest import DashboardServer, serve_dashboard
from tests.dashboard.example_runs import FINISHED
from tests.helpers.run_digests import make_digest

TABS = ("", "/now", "/code", "/examples", "/examples/x", "/transcript", "/log", "/timeline")
SOON_SECONDS = 120.0
SECRET = "nobody is to read this"
FOREVER = 1e300


def fifo(name: str) -> Callable[[RunPaths], None]:
    def harm(paths: RunPaths) -> None:
        path = paths.root / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)

    return harm


def huge(name: str) -> Callable[[RunPaths], None]:
    """A file with a hole: it takes no room, and all memory to read."""

    def harm(paths: RunPaths) -> None:
        with (paths.root / name).open("ab") as file:
            file.truncate(1 << 40)

    return harm


def linked(name: str) -> Callable[[RunPaths], None]:
    def harm(paths: RunPaths) -> None:
        outside = paths.root.parent.parent / "outside"
        outside.mkdir(exist_ok=True)
        (outside / "secret").write_text(SECRET)
        path = paths.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(outside / "secret")

    return harm


def without_end(paths: RunPaths) -> None:
    """A budget that no number is."""
    spec = json.loads(paths.spec.read_text())
    spec["budget"]["wall_seconds"] = float("inf")
    paths.spec.write_text(json.dumps(spec))
    paths.result.unlink()


def never(paths: RunPaths) -> None:
    """A digest in which nothing is a number, of a time that no calendar has."""
    os.utime(paths.spec, (1e11, 1e11))
    digest = json.loads(make_digest(1.0, paths.run_id).model_dump_json())
    text = CachedDigest.model_validate(
        {"version": VERSION, "ledger_head": paths.ledger_head.read_text().strip(), "digest": digest}
    ).model_dump_json()
    paths.report.mkdir(exist_ok=True)
    paths.digest.write_text(
        text.replace('"improvement":1.0', '"improvement":NaN').replace("3600.0", "Infinity")
    )


def endless_names(paths: RunPaths) -> None:
    spec = json.loads(paths.spec.read_text())
    paths.spec.write_text(json.dumps({**spec, "agent": "a" * 3_000_000, "model": "m" * 3_000_000}))


def odd_submissions(paths: RunPaths) -> None:
    for name in ("²", "٣", "9" * 200, "007"):
        (paths.submissions / name).mkdir()


def odd_times(paths: RunPaths) -> None:
    step = {"source": "agent", "text": "x", "at": FOREVER}
    paths.transcript.write_text(json.dumps({"agent": "x", "version": "1", "steps": [step]}))


def another_repository(paths: RunPaths) -> None:
    (paths.revisions / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (paths.revisions / "objects" / "info" / "alternates").write_text("/etc\n")


def files_for_folders(paths: RunPaths) -> None:
    for folder in (paths.revisions, paths.baseline.root, paths.submissions):
        folder.rename(paths.root / f"{folder.name}.old")
        folder.write_text("not a folder")


def going_by_a_fifo(paths: RunPaths) -> None:
    paths.result.unlink()
    fifo("lock")(paths)


def deep(paths: RunPaths) -> None:
    paths.result.write_text("[" * 200_000)
    paths.claims.write_text('{"a":' * 100_000)


HARMS: dict[str, Callable[[RunPaths], None]] = {
    "fifo-lock": going_by_a_fifo,
    "fifo-head": fifo("ledger.head"),
    "fifo-log": fifo("agent.log"),
    "fifo-events": fifo("events.jsonl"),
    "fifo-digest": fifo("report/digest.json"),
    "fifo-answers": fifo("submissions/2/heldout.jsonl"),
    "fifo-record": fifo("submissions/1/submission.json"),
    "huge-result": huge("result.json"),
    "huge-answers": huge("submissions/2/heldout.jsonl"),
    "huge-events": huge("events.jsonl"),
    "huge-log": huge("agent.log"),
    "link-record": linked("submissions/1/submission.json"),
    "link-answers": linked("submissions/2/feedback.jsonl"),
    "link-digest": linked("report/digest.json"),
    "link-code": linked("revisions/HEAD"),
    "deep": deep,
    "no-number": without_end,
    "never": never,
    "endless-names": endless_names,
    "odd-submissions": odd_submissions,
    "odd-times": odd_times,
    "another-repository": another_repository,
    "files-for-folders": files_for_folders,
}
SHOWN = ("deep", "endless-names", "odd-submissions", "odd-times")
"""What is wrong with them is no reason to show nothing."""
ODD_NAMES = (b"not utf-8 \xff\xfe", "\u202eturned".encode(), b"a\nb", b"x" * 255, b"<script>hit()<")


@pytest.fixture(scope="module")
def bad(finished: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    place = tmp_path_factory.mktemp("bad")
    runs = place / "runs"
    example_runs.copy_run_as(finished, runs, FINISHED)
    for name, harm in HARMS.items():
        harm(example_runs.copy_run_as(finished, runs, name))
    for odd in ODD_NAMES:
        folder = runs / os.fsdecode(odd)
        folder.mkdir()
        RunPaths(folder).spec.write_text("{}")
    with serve_dashboard(runs, place / "cache") as found:
        yield found


def test_the_table_names_what_it_cannot_show_and_shows_the_rest(bad: DashboardServer) -> None:
    page = httpx.get(bad.url, timeout=SOON_SECONDS)
    assert page.status_code == 200
    assert len(page.text) < 200_000
    assert f'value="{FINISHED}"' in page.text
    for name in SHOWN:
        assert f'value="{name}"' in page.text, name
    for name in HARMS.keys() - set(SHOWN):
        assert f">{name}<" in page.text or f'value="{name}"' in page.text, name
    assert "\u202e" not in page.text
    assert "<script>hit" not in page.text
    assert SECRET not in page.text


@pytest.mark.parametrize("name", HARMS)
def test_every_page_of_a_hostile_run_answers_soon(name: str, bad: DashboardServer) -> None:
    with httpx.Client(base_url=bad.url, timeout=SOON_SECONDS) as client:
        for tab in TABS:
            answer = client.get(f"/runs/{name}{tab}")
            assert answer.status_code in (200, 404), f"{tab}: {answer.status_code}"
            assert "<h1" in answer.text or tab in ("/now", "/timeline", ""), tab
            assert SECRET not in answer.text
            assert len(answer.text) < 4_000_000
        assert client.get(f"/compare?run={FINISHED}&run={name}").status_code in (200, 404)
        assert (client.get(f"/runs/{name}").status_code == 200) >= (name in SHOWN)
        assert client.get("/table").status_code == 200


def test_a_run_that_vanishes_between_two_looks_is_not_found(finished: RunPaths, tmp_path: Path) -> None:
    paths = example_runs.copy_run_as(finished, tmp_path / "runs", FINISHED)
    with serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board:
        paths.root.rename(tmp_path / "away")
        for tab in TABS:
            assert httpx.get(f"{board.url}/runs/{FINISHED}{tab}", timeout=120).status_code == 404


def test_files_that_change_while_they_are_read_cost_no_page(finished: RunPaths, tmp_path: Path) -> None:
    paths = example_runs.copy_run_as(finished, tmp_path / "runs", FINISHED)
    files = (
        paths.result,
        paths.ledger,
        paths.submission_paths(2).record,
        paths.submission_paths(2).results_file("heldout"),
    )
    whole = {path: path.read_bytes() for path in files}
    over = threading.Event()

    def change() -> None:
        for number in itertools.count():
            for path, content in whole.items():
                path.write_bytes(content[: len(content) * (number % 5) // 4])
                path.unlink()
            if over.is_set():
                return

    with (
        serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board,
        httpx.Client(base_url=board.url, timeout=120) as client,
    ):
        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(4):
                for path in (*(f"/runs/{FINISHED}{tab}" for tab in TABS), "/"):
                    assert client.get(path).status_code in (200, 404), path
        finally:
            over.set()
            thread.join()


def test_an_index_outlives_what_it_cannot_name(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / os.fsdecode(b"\xff")
    folder.mkdir(parents=True)
    RunPaths(folder).spec.write_text("{}")
    index = RunIndex(tmp_path / "runs", tmp_path / "cache", lambda _: None)
    for _ in range(2):
        index.refresh()
    assert len(index.unreadable) == 1


def test_a_time_that_no_calendar_has_is_told_as_none() -> None:
    assert [render_time(at) for at in (FOREVER, -FOREVER, float("nan"))] == ["–"] * 3
    assert MOST_BYTES < 1 << 40
