"""A baseline is graded once and kept; a kept one counts only as this user's runs measured it."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent2rl.core.grading_records import EvalResult, ExampleResult
from agent2rl.grading.baseline import BaselineCache, Measurement
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_events
from tests.helpers.run_launcher import FinishedRun, RunLauncher

RESULTS = EvalResult(results=(ExampleResult(id="1", output="4", score=1.0),))
MEASURED = Measurement(run_id="run-1", at=1000.0)


def start_nop(launcher: RunLauncher, cache: Path) -> FinishedRun:
    done = launcher.cli(
        *("run", "--task", "gsm8k-mini", "--agent", "nop", "--sandbox", "local", "--json", "--no-report"),
        AGENT2RL_CACHE=str(cache),
    )
    return launcher.ended(done.returncode, done.stdout, done.stderr)


def baseline_entry(paths: RunPaths) -> Mapping[str, object]:
    return next(event.data for event in read_events(paths, []) if event.kind == "baseline")


def warnings(paths: RunPaths) -> list[object]:
    return [event.data["text"] for event in read_events(paths, []) if event.kind == "warning"]


def test_an_edited_cache_entry_is_graded_anew_and_the_record_says_so(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = start_nop(launcher, cache)
    for entry in (cache / "baselines").glob("*.json"):
        edited = re.sub(r'"score": ?1(\.0)?', '"score": 0.0', entry.read_text())
        assert edited != entry.read_text()
        entry.write_text(edited)
    second = start_nop(launcher, cache)
    assert first.result.baseline
    assert second.result.baseline
    assert second.result.baseline.value == first.result.baseline.value > 0
    assert baseline_entry(second.paths)["cached"] is False
    assert "cached baseline was not used" in str(warnings(second.paths))
    third = start_nop(launcher, cache)
    assert baseline_entry(third.paths)["cached"] is True
    assert warnings(third.paths) == []


@pytest.mark.thorough
def test_a_baseline_from_the_cache_names_the_run_that_measured_it(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first, second = start_nop(launcher, cache), start_nop(launcher, cache)
    measured = baseline_entry(first.paths)
    assert (measured["cached"], measured["measured_by"]) == (False, first.result.run_id)
    taken = baseline_entry(second.paths)
    assert (taken["cached"], taken["measured_by"]) == (True, first.result.run_id)
    assert taken["measured_at"] == measured["measured_at"]
    told = launcher.cli("verify", second.result.run_id).stdout
    assert f"not measured in this run but taken from the cache: run {first.result.run_id} measured it" in told
    assert "taken from the cache" not in launcher.cli("verify", first.result.run_id).stdout


@pytest.mark.thorough
def test_an_entry_of_an_older_version_has_no_digest_and_is_graded_anew(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    start_nop(launcher, cache)
    for entry in (cache / "baselines").glob("*.json"):
        results = json.loads(entry.read_text())["results"]
        entry.write_text(EvalResult.model_validate(results).model_dump_json())
    again = start_nop(launcher, cache)
    assert baseline_entry(again.paths)["cached"] is False
    assert "cached baseline was not used" in str(warnings(again.paths))


def test_an_entry_counts_under_its_own_key_alone(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    cache.store("easy", RESULTS, MEASURED)
    kept = cache.load("easy")
    assert kept is not None
    assert (kept.results, kept.measured) == (RESULTS, MEASURED)
    assert cache.load("hard") is None
    (tmp_path / "hard.json").write_bytes((tmp_path / "easy.json").read_bytes())
    assert cache.load("hard") is None
    assert cache.has_entry("hard")


@pytest.mark.parametrize("damage", ["short", "open to others", "link", "missing", "foreign"])
def test_a_key_that_others_may_know_is_replaced_and_signs_nothing(tmp_path: Path, damage: str) -> None:
    cache, key = BaselineCache(tmp_path), tmp_path / "key"
    cache.store("easy", RESULTS, MEASURED)
    assert (key.stat().st_size, key.stat().st_mode & 0o777) == (32, 0o600)
    old = key.read_bytes()
    match damage:
        case "short":
            key.write_bytes(old[:-1])
        case "open to others":
            key.chmod(0o644)
        case "link":
            key.rename(tmp_path / "elsewhere")
            key.symlink_to(tmp_path / "elsewhere")
        case "missing":
            key.unlink()
        case "foreign" if os.geteuid() == 0:
            os.chown(key, 65534, -1)
        case _:
            pytest.skip("only root can give a file to somebody else")
    assert cache.load("easy") is None
    cache.store("easy", RESULTS, MEASURED)
    assert cache.load("easy") is not None
    assert not key.is_symlink()
    assert (key.stat().st_uid, key.stat().st_mode & 0o777) == (os.geteuid(), 0o600)
    assert key.read_bytes() != old
