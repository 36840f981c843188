"""The soak (`benchmarks/soak.py`): what it calls broken, and a short one for real."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.soak import HarnessSample, find_broken_promises

FLAT = [
    HarnessSample(
        seconds=10.0 * number,
        submissions=number,
        resident_bytes=100_000_000,
        anonymous_bytes=70_000_000,
        descriptors=40,
        threads=10,
        children=2,
        kept_copies=2,
        weights_bytes=2000,
        record_bytes=1000 * number,
    )
    for number in range(1, 101)
]


def change_samples(change: Callable[[HarnessSample], HarnessSample]) -> list[HarnessSample]:
    return [change(sample) for sample in FLAT]


def test_a_harness_that_stays_as_it_is_keeps_all_promises() -> None:
    assert list(find_broken_promises(FLAT, "best")) == []


def test_growth_within_the_tolerance_is_allowed_and_beyond_it_is_not() -> None:
    def grow(share: float) -> list[HarnessSample]:
        return change_samples(
            lambda each: replace(
                each, resident_bytes=int(each.resident_bytes * (1 + share * each.submissions / 100))
            )
        )

    assert list(find_broken_promises(grow(0.08), "best")) == []
    assert list(find_broken_promises(grow(0.2), "best")) == ["the memory is not flat"]


def test_a_descriptor_that_each_submission_leaves_open_is_found() -> None:
    leaking = change_samples(lambda each: replace(each, descriptors=40 + each.submissions))
    assert list(find_broken_promises(leaking, "best")) == ["the number of descriptors grows"]


def test_weights_that_nobody_deletes_are_found_unless_all_are_kept() -> None:
    piling = change_samples(lambda each: replace(each, kept_copies=each.submissions))
    assert list(find_broken_promises(piling, "best")) == ["more weights are kept than promised"]
    assert list(find_broken_promises(piling, "none")) == ["more weights are kept than promised"]
    assert list(find_broken_promises(piling, "all")) == []


def test_a_run_that_was_hardly_seen_shows_nothing() -> None:
    assert list(find_broken_promises(FLAT[:1], "best")) == ["there are too few samples to compare"]
    assert list(find_broken_promises([], "best")) == ["there are too few samples to compare"]


@pytest.mark.thorough
def test_a_short_soak_goes_through_all_kinds_of_submissions(tmp_path: Path) -> None:
    options = ("--hours", "0.5", "--speed", "60", "--submissions", "30", "--sandbox", "local")
    command = (sys.executable, "-m", "benchmarks.soak", *options, "--patience", "20")
    done = subprocess.run(
        (*command, "--directory", str(tmp_path)), capture_output=True, text=True, check=False, timeout=600
    )
    assert "ending: completed" in done.stdout, done.stderr
    assert "'scored': 27, 'rejected': 3" in done.stdout, done.stdout
    assert "BROKEN: the number of descriptors grows" not in done.stdout, done.stdout
    assert "BROKEN: more weights are kept than promised" not in done.stdout
    assert done.stdout.count("exit status 0") == 2
    assert "weights left: 1 copies" in done.stdout
