"""Claims, by real processes that race for them."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from agent2rl.campaign import claims_and_sessions
from agent2rl.campaign.claims_and_sessions import ExperimentClaim, ExperimentClaims
from agent2rl.core.errors import UserError
from tests.helpers.waiting import wait_until

PROCESSES, EXPERIMENTS = 8, 100


def start(count: int, function: Callable[..., None], *arguments: object) -> list[BaseProcess]:
    context = multiprocessing.get_context("fork")
    processes: list[BaseProcess] = [
        context.Process(target=function, args=(number, *arguments)) for number in range(count)
    ]
    for process in processes:
        process.start()
    return processes


def grab(number: int, folder: Path, notes: Path) -> None:
    """Takes all it can get, in an order of its own, and stays until it is ended."""
    claims, order = ExperimentClaims(folder), [f"e{index}" for index in range(EXPERIMENTS)]
    random.Random(number).shuffle(order)
    (notes / f"{number}.ready").touch()
    while len(list(notes.glob("*.ready"))) < PROCESSES:
        time.sleep(0.01)
    held = [(name, claims.claim_experiment(name)) for name in order]
    (notes / f"{number}.new").write_text("\n".join(name for name, mine in held if mine))
    (notes / f"{number}.new").rename(notes / f"{number}.taken")
    time.sleep(60)


def test_eight_processes_that_race_for_a_hundred_experiments_take_each_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    processes = start(PROCESSES, grab, tmp_path / "claims", notes)
    wait_until(lambda: len(list(notes.glob("*.taken"))) == PROCESSES)
    for process in processes:
        process.kill()
        process.join()
    taken = [path.read_text().split() for path in notes.glob("*.taken")]
    everything = [name for names in taken for name in names]
    assert sorted(everything) == sorted(f"e{index}" for index in range(EXPERIMENTS))
    assert sum(bool(names) for names in taken) > 1, "one took all: that was no race"


def labour(number: int, folder: Path, done: Path) -> None:
    """Does what is not done, as a campaign does: claim, look whether it is done, do it, give it back."""
    claims, dice, claimed = ExperimentClaims(folder), random.Random(number), 0
    while left := [name for name in (f"e{i}" for i in range(EXPERIMENTS)) if not (done / name).exists()]:
        name = dice.choice(left)
        held = claims.claim_experiment(name)
        if held is None:
            continue
        if not (done / name).exists():
            claimed += 1
            if number < PROCESSES // 2 and claimed == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            with (done / f".{name}").open("a") as file:
                file.write("x")
            (done / name).touch()
        held.release()


def test_what_killed_processes_had_claimed_is_done_by_others_exactly_once(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    processes = start(PROCESSES, labour, tmp_path / "claims", done)
    for process in processes:
        process.join(300)
    codes = {process.exitcode for process in processes}
    assert codes == {0, -signal.SIGKILL}, "some were killed, the others ended by themselves"
    times = {path.name: path.read_text() for path in done.glob(".e*")}
    assert times == {f".e{index}": "x" for index in range(EXPERIMENTS)}


def take_once(number: int, folder: Path, notes: Path, lease: float) -> None:
    """Notes whether it got the claim, and stays until it is ended if it did."""
    taken = ExperimentClaims(folder, lease).claim_experiment("one") is not None
    (notes / f"{number}.{'taken' if taken else 'refused'}").touch()
    if taken:
        time.sleep(600)


def take_at_once(folder: Path, notes: Path, lease: float) -> list[str]:
    """Return what became of the claim in each of several processes that try it at the same time."""
    notes.mkdir()
    processes = start(PROCESSES, take_once, folder, notes, lease)
    wait_until(lambda: len(list(notes.iterdir())) == PROCESSES)
    for process in processes:
        process.kill()
        process.join()
    return sorted(path.suffix for path in notes.iterdir())


def make_older(folder: Path, experiment: str, seconds: float) -> None:
    """Let the latest claim be as old as if so much time had passed."""
    path = max((folder / experiment).iterdir(), key=lambda path: int(path.name))
    touched = path.stat().st_mtime - seconds
    os.utime(path, (touched, touched))


def elsewhere(folder: Path, experiment: str) -> None:
    """The claim as a process of another machine would leave it: whether that lives cannot be seen here."""
    place = folder / experiment
    path = max(place.iterdir(), key=lambda path: int(path.name))
    before = path.stat().st_mtime
    claim = ExperimentClaim.model_validate_json(path.read_text())
    path.write_text(claim.model_copy(update={"machine": "another"}).model_dump_json())
    os.utime(path, (before, before))


def test_a_claim_of_another_machine_is_taken_over_after_the_lease_and_by_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_and_sessions, "BEAT_SECONDS", 0.0)
    folder, hour = tmp_path / "claims", 3600.0
    claims = ExperimentClaims(folder, lease=hour)
    first = claims.claim_experiment("one")
    assert first is not None
    elsewhere(folder, "one")
    assert claims.claim_experiment("one") is None
    assert claims.find_holder("one") is not None
    make_older(folder, "one", hour)
    assert claims.find_holder("one") is None
    longer = take_at_once(folder, tmp_path / "longer", 3 * hour)
    assert longer == [".refused"] * PROCESSES, "a longer lease has not run out"
    assert take_at_once(folder, tmp_path / "notes", hour) == [".refused"] * (PROCESSES - 1) + [".taken"]
    assert first.renew_claim() is False, "whoever was taken over from is told"


def test_a_holder_that_gives_signs_of_life_keeps_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_and_sessions, "BEAT_SECONDS", 0.0)
    hour = 3600.0
    claims = ExperimentClaims(tmp_path, lease=hour)
    held = claims.claim_experiment("one", session="s")
    assert held is not None
    elsewhere(tmp_path, "one")
    for _ in range(3):
        make_older(tmp_path, "one", 0.6 * hour)
        assert claims.claim_experiment("one") is None
        assert held.renew_claim()
    holder = claims.find_holder("one")
    assert holder is not None
    assert holder.session == "s"


def test_a_holder_that_slept_through_its_lease_gives_up_though_nobody_came(tmp_path: Path) -> None:
    held = ExperimentClaims(tmp_path, lease=0.01).claim_experiment("one")
    assert held is not None
    time.sleep(0.02)
    assert held.renew_claim() is False


def test_what_is_given_back_can_be_taken_at_once(tmp_path: Path) -> None:
    claims = ExperimentClaims(tmp_path)
    for _ in range(3):
        held = claims.claim_experiment("one")
        assert held is not None
        assert claims.claim_experiment("one") is None
        held.release()
        assert held.renew_claim() is False, "at once, so that nothing is begun under it"
        assert claims.find_holder("one") is None
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["1", "2", "3"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_whoever_cannot_claim_is_told_before_anything_is_begun(tmp_path: Path) -> None:
    ExperimentClaims(tmp_path / "none").require_writable()
    tmp_path.chmod(0o555)
    with pytest.raises(UserError, match="belongs to another user"):
        ExperimentClaims(tmp_path).require_writable()


def test_a_claim_that_cannot_be_read_is_somebodys_until_its_time_is_over(tmp_path: Path) -> None:
    claims = ExperimentClaims(tmp_path, lease=3600.0)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "1").write_bytes(b"\xff\x00")
    assert claims.claim_experiment("one") is None
    make_older(tmp_path, "one", 3600.0)
    assert claims.claim_experiment("one") is not None


def test_the_claim_of_a_process_that_is_gone_is_nobodys_at_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (process,) = start(1, take_once, tmp_path / "claims", notes, 600.0)
    wait_until(lambda: list(notes.iterdir()))
    claims = ExperimentClaims(tmp_path / "claims")
    assert claims.claim_experiment("one") is None
    process.kill()
    process.join()
    assert claims.claim_experiment("one") is not None
