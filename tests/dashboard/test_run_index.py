"""The table of runs: what it finds, and that it follows the directories, which are the truth."""

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from agent2rl.dashboard.run_filter import PAGE
from agent2rl.dashboard.run_index import RunIndex, RunQuery, read_digests, read_stamps
from agent2rl.dashboard.server import create_app
from agent2rl.dashboard.state import Dashboard
from agent2rl.record.paths import RunPaths
from agent2rl.report.digests import VERSION, CachedDigest
from tests.dashboard.conftest import serve_dashboard
from tests.helpers.http_server import serve_app
from tests.helpers.run_digests import make_digest, make_score_course

COUNT = 2000
DAYS, TASKS, AGENTS = 20, 4, 5


def name(number: int) -> str:
    minute, second = divmod(number // DAYS, 60)
    return f"202603{1 + number % DAYS:02d}-00{minute:02d}{second:02d}-run-{number}"


def lay(runs: Path, number: int, gain: float | None = None, **known: object) -> RunPaths:
    """As far as the table looks into a run that has a digest."""
    paths = RunPaths(runs / name(number))
    paths.report.mkdir(parents=True, exist_ok=True)
    paths.spec.write_text("{}")
    paths.ledger_head.write_text("1 head")
    known = {
        "task": f"task-{number % TASKS}",
        "agent": f"agent_{number % AGENTS}",
        "curve": make_score_course((9, 2)),
        **known,
    }
    new = make_digest(float(number) if gain is None else gain, paths.run_id, **known)
    paths.digest.write_text(CachedDigest(version=VERSION, ledger_head="1 head", digest=new).model_dump_json())
    return paths


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("many") / "runs"
    for number in range(COUNT):
        lay(runs, number)
    return runs


@pytest.fixture
def few(tmp_path: Path) -> RunIndex:
    """A table of a few runs that a test may change."""
    for number in range(8):
        lay(tmp_path / "runs", number)
    return index(tmp_path / "runs", tmp_path / "cache")


def index(runs: Path, cache: Path) -> RunIndex:
    found = RunIndex(runs, cache, lambda task: int(task[-1]))
    found.refresh()
    return found


def names(found: RunIndex) -> set[str]:
    return {row.run_id.rpartition("-")[2] for row in found.select_rows(RunQuery())[0]}


def test_two_thousand_runs_are_filtered_sorted_searched_and_paged(many: Path, tmp_path: Path) -> None:
    found = index(many, tmp_path / "cache")
    rows, total = found.select_rows(RunQuery(sort="gain", limit=3, offset=1))
    assert [row.gain for row in rows] == [COUNT - 2, COUNT - 3, COUNT - 4]
    assert total == COUNT
    wanted = (("task", "task-1"), ("agent", "agent_0"), ("agent", "agent_1"))
    rows, total = found.select_rows(RunQuery(filters=wanted, limit=None))
    assert {(row.task, row.agent) for row in rows} == {("task-1", "agent_0"), ("task-1", "agent_1")}
    assert total == COUNT // TASKS * 2 // AGENTS
    assert found.select_rows(RunQuery(filters=(("level", "3"),)))[1] == COUNT // TASKS
    assert found.select_rows(RunQuery(words="TASK-2 agent_3"))[1] == COUNT // TASKS // AGENTS
    assert found.select_rows(RunQuery(words="agent%3"))[1] == 0
    rows, _ = found.select_rows(RunQuery(sort="started", descending=False, limit=None))
    assert len(rows) == COUNT
    assert [row.started for row in rows] == sorted(row.started for row in rows)
    assert dict(found.list_filter_values()["agent"]) == {
        f"agent_{number}": COUNT // AGENTS for number in range(AGENTS)
    }
    assert len(read_digests(found.path, RunQuery(words="run-19", limit=None))) == 111


def test_all_of_a_choice_is_in_the_address(many: Path, tmp_path: Path) -> None:
    with (
        serve_dashboard(many, tmp_path / "cache") as board,
        httpx.Client(base_url=board.url, timeout=120) as client,
    ):
        day = client.get("/table?since=2026-03-05&until=2026-03-05").text
        assert f"{COUNT // DAYS} runs match" in day
        pages = [client.get(f"/table?task=task-0&sort=gain&order=up&page={number}").text for number in (1, 5)]
        assert "page 1 of 5" in pages[0]
        assert 'href="/?task=task-0&amp;sort=gain&amp;order=up&amp;page=2"' in pages[0]
        assert [page.count('type="checkbox"') for page in pages] == [PAGE, PAGE]
        assert pages[0].index(f'value="{name(0)}"') < pages[0].index(f'value="{name(4)}"')
        assert f'value="{name(1996)}"' in pages[1]
        assert "No runs match" in client.get("/table?q=nothing-like-it").text


def test_the_table_says_whether_a_run_kept_its_mode(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number, verdict in enumerate(("kept", "broken", "unknown", "free", None)):
        lay(runs, number, mode="rl-oriented" if verdict != "free" else "free", compliance=verdict)
    with (
        serve_dashboard(runs, tmp_path / "cache") as board,
        httpx.Client(base_url=board.url, timeout=120) as client,
    ):
        table = client.get("/table?sort=gain&order=up").text
    cells = re.findall(r"<td>(rl-oriented|free)(.*?)</td>", table)
    assert [(mode, re.findall(r'badge (\w+)">([^<]+)<', rest)) for mode, rest in cells] == [
        ("rl-oriented", [("good", "kept")]),
        ("rl-oriented", [("bad", "broken")]),
        ("rl-oriented", [("warn", "unknown")]),
        ("free", []),
        ("rl-oriented", []),
    ]


def test_a_digest_that_is_made_later_brings_the_verdict_on_the_mode(few: RunIndex) -> None:
    paths = lay(few.runs, 3, mode="rl-only")
    few.refresh()
    new = make_digest(1.0, paths.run_id, mode="rl-only", compliance="broken")
    stamp = dict(read_stamps(few.runs))[paths.run_id].text
    few.store_digest(paths.run_id, stamp, new.model_dump_json())
    (row,) = few.select_rows(RunQuery(words="run-3"))[0]
    assert row.compliance == "broken"


def test_runs_that_change_appear_or_disappear_are_followed(few: RunIndex) -> None:
    lay(few.runs, 3, gain=77.0)
    gone = lay(few.runs, 5)
    shutil.rmtree(gone.root)
    lay(few.runs, 9)
    few.refresh()
    assert names(few) == {"0", "1", "2", "3", "4", "6", "7", "9"}
    assert max(row.gain or 0 for row in few.select_rows(RunQuery())[0]) == 77.0
    version = few.version
    few.refresh()
    assert few.version == version, "nothing has changed"


def test_a_run_that_cannot_be_read_is_named_and_tried_again_once_it_has_changed(few: RunIndex) -> None:
    paths = lay(few.runs, 2)
    whole = paths.digest.read_text()
    paths.digest.write_text(whole[:40])
    few.refresh()
    assert names(few) == {"0", "1", "3", "4", "5", "6", "7"}
    assert list(few.unreadable) == [paths.run_id]
    version = few.version
    few.refresh()
    assert few.version == version, "readers are not told again of what they know"
    paths.digest.write_text(whole)
    few.refresh()
    assert few.unreadable == {}
    assert "2" in names(few)


def test_a_directory_that_was_renamed_is_the_run_that_its_name_says(few: RunIndex) -> None:
    paths = lay(few.runs, 1)
    paths.root.rename(few.runs / "mine-1st")
    few.refresh()
    assert "1st" in names(few)
    assert "1" not in names(few)
    assert "mine-1st" in {digest.run_id for digest in read_digests(few.path, RunQuery())}


def _other_layout(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE runs (run_id TEXT, other TEXT)")
    base.close()


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(b"not a table" * 1000),
        lambda path: path.write_bytes(path.read_bytes()[:100] + b"\x07" * 9000),
        lambda path: path.write_bytes(b""),
        _other_layout,
    ],
    ids=["noise", "torn", "empty", "another layout"],
)
def test_an_index_that_is_damaged_is_made_anew(harm: Callable[[Path], object], few: RunIndex) -> None:
    harm(few.path)
    again = index(few.runs, few.path.parent.parent)
    assert names(again) == {str(number) for number in range(8)}


def test_an_index_that_is_damaged_while_it_is_used_is_made_anew(few: RunIndex) -> None:
    few.path.write_bytes(b"not a table" * 1000)
    few.start()
    try:
        for _ in range(2400):
            time.sleep(0.05)
            try:
                if len(names(few)) == 8:
                    break
            except sqlite3.DatabaseError:
                continue
        assert len(names(few)) == 8
    finally:
        few.close()


def test_a_cache_that_is_deleted_while_it_is_used_is_made_again(few: RunIndex) -> None:
    with (
        serve_dashboard(few.runs, few.path.parent.parent) as board,
        httpx.Client(base_url=board.url, timeout=120) as client,
    ):
        # Moved first: the server would write into it while its files are deleted one by one.
        shutil.rmtree(few.path.parent.rename(few.path.parent.with_name("deleted")))
        assert client.get("/table").status_code in (200, 503)
        ends = time.monotonic() + 120
        while "8 runs</p>" not in client.get("/table").text:
            assert time.monotonic() < ends
            time.sleep(0.1)


def test_a_directory_that_vanishes_is_said_to_be_gone_and_what_was_there_stays_known(few: RunIndex) -> None:
    with (
        serve_dashboard(few.runs, few.path.parent.parent) as board,
        httpx.Client(base_url=board.url, timeout=120) as client,
    ):
        away = few.runs.with_name("away")
        few.runs.rename(away)
        ends = time.monotonic() + 120
        while "runs directory cannot be read" not in (page := client.get("/table").text):
            assert time.monotonic() < ends
            time.sleep(0.1)
        assert page.count('type="checkbox"') == 8
        away.rename(few.runs)
        while "runs directory cannot be read" in client.get("/table").text:
            assert time.monotonic() < ends
            time.sleep(0.1)


def test_what_another_server_wrote_to_the_same_table_is_noticed(few: RunIndex) -> None:
    another = index(few.runs, few.path.parent.parent)
    lay(few.runs, 11)
    another.refresh()
    version = few.version
    few.refresh()
    assert few.version > version
    assert dict(few.list_filter_values()["agent"])["agent_1"] == 3


def test_a_page_before_the_first_look_says_that_it_is_reading(few: RunIndex, tmp_path: Path) -> None:
    fresh = Dashboard(few.runs, tmp_path / "other", lambda _: 1, list)
    with closing(fresh), serve_app(create_app(fresh)) as url:
        assert "Reading the runs directory" in httpx.get(url, timeout=120).text
        fresh.index.refresh()
        assert "Reading" not in httpx.get(url, timeout=120).text


def test_what_is_asked_survives_being_written_down() -> None:
    asked = RunQuery(filters=(("task", "a"), ("task", "b")), words="x", since=1.0, limit=None)
    assert RunQuery.from_json(asked.text) == asked
    assert json.loads(asked.text)["words"] == "x"
