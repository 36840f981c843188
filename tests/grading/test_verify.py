"""`verify` covers every file of a run directory, or names those that it does not cover, and why."""

import json
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path

import pytest
from dulwich.objects import Blob, Commit, ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo
from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.reproduction import Reproduction
from agent2rl.grading.verify import verify_run
from agent2rl.record import ledger
from agent2rl.record.files import canonical_json, sha256_text
from agent2rl.record.ledger import START, LedgerHead, append_addition
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_claims, read_events, read_run
from agent2rl.record.revisions import list_revisions
from tests.helpers.crashing_runs import CrashingRun, CrashPoint
from tests.helpers.run_launcher import RunLauncher

MAIN = Ref(b"refs/heads/main")
KILLED = -9
NOT_COVERED = ("workspace/", "report/", "lock")
WORKING = """
code = WORKSPACE / "code"
(code / "train.py").write_text("step = 1\\n")
submit(trained("v1", problems=20))
(code / "train.py").write_text("step = 2\\n")
submit(trained("v2", problems=60))
submit(trained("v3", problems=5))
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def finished(shared_launcher: RunLauncher) -> RunPaths:
    """A finished run with a report, which tests copy before they change it."""
    run = shared_launcher.run(WORKING, "--sandbox", "local")
    assert run.result.ended_well, run.errors
    shared_launcher.report(run)
    return run.paths


@pytest.fixture
def run(finished: RunPaths, tmp_path: Path) -> RunPaths:
    shutil.copytree(finished.root, tmp_path / finished.run_id, symlinks=True)
    return RunPaths(tmp_path / finished.run_id)


@pytest.fixture
def old_run(run: RunPaths) -> RunPaths:
    """A run as versions closed it that pinned only what the ledger names file by file."""
    rewrite_ledger(run, without="files")
    (run.root / "files.json").unlink(missing_ok=True)
    lines = run.events.read_text().splitlines(keepends=True)
    run.events.write_text("".join(line for line in lines if json.loads(line)["kind"] != "files"))
    return run


def rewrite_ledger(run: RunPaths, without: str) -> None:
    lines: list[str] = []
    previous = START
    for entry in ledger.read_ledger(run.ledger, run.ledger_head).entries:
        if entry.kind != without:
            body = {**entry.model_dump(exclude={"hash"}), "index": len(lines), "previous": previous}
            previous = sha256_text(canonical_json(body))
            lines.append(canonical_json({**body, "hash": previous}) + "\n")
    run.ledger.write_text("".join(lines))
    run.ledger_head.write_text(LedgerHead(index=len(lines) - 1, hash=previous).model_dump_json())


def files_of(run: RunPaths) -> list[str]:
    return sorted(run.relative_name(path) for path in run.root.rglob("*") if path.is_file())


# Every file


def test_a_finished_run_holds_and_names_what_is_not_covered(
    finished: RunPaths, shared_launcher: RunLauncher
) -> None:
    found = verify_run(finished)
    assert (found.holds, found.fault) == (True, None)
    assert [one.path for one in found.not_covered] == sorted(NOT_COVERED)
    said = shared_launcher.cli("verify", str(finished.root)).stdout
    assert "not covered: workspace/: it belongs to the agent" in said
    assert "not covered: report/: it is made from the record" in said


def test_a_change_to_any_covered_file_shows(run: RunPaths) -> None:
    names = [name for name in files_of(run) if not name.startswith(NOT_COVERED)]
    assert {"events.jsonl", "agent.log", "submissions/1/grading.log", "contamination.log"} <= {*names}
    for name in names:
        path = run.root / name
        whole = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(whole + b"\n")
        more = verify_run(run)
        assert not more.holds or name == "ledger.head", f"{name} has a line more"  # where it says the same
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if whole else b"x")
        assert not verify_run(run).holds, f"{name} has another last byte"
        path.unlink()
        assert not verify_run(run).holds, f"{name} is missing"
        path.write_bytes(whole)
    assert verify_run(run).holds


@pytest.mark.parametrize(
    "name", ["notes.txt", "result.pending.json", "baseline/x.jsonl", "submissions/1/x", "revisions/hooks/x"]
)
def test_a_file_that_was_added_shows(run: RunPaths, name: str) -> None:
    (run.root / name).parent.mkdir(parents=True, exist_ok=True)
    (run.root / name).write_text("x")
    assert verify_run(run).fault == f"{name} was added"


def test_a_link_or_a_pipe_in_place_of_a_file_shows(run: RunPaths, tmp_path: Path) -> None:
    log = run.submission_paths(1).log
    log.rename(tmp_path / "elsewhere")
    log.symlink_to(tmp_path / "elsewhere")
    assert verify_run(run).fault == "submissions/1/grading.log is not a plain file"
    log.unlink()
    os.mkfifo(log)
    assert verify_run(run).fault == "submissions/1/grading.log is not a plain file"


def test_a_copy_of_a_model_that_was_not_kept_shows(run: RunPaths) -> None:
    """A manifest covers each kept copy; nothing would cover one that the ledger says is gone."""
    assert not run.submission_paths(3).model.exists()
    run.submission_paths(3).model.mkdir()
    (run.submission_paths(3).model / "config.json").write_text("{}")
    assert str(verify_run(run).fault).startswith("submissions/3/model was added")


def test_a_report_can_be_made_anew_and_the_record_still_holds(run: RunPaths, launcher: RunLauncher) -> None:
    assert launcher.cli("report", str(run.root)).returncode == 0
    assert launcher.cli("revisions", str(run.root)).returncode == 0
    assert launcher.cli("resume", str(run.root)).returncode == 0
    assert verify_run(run).holds


# Code revisions


def test_code_revisions_that_were_emptied_or_removed_do_not_hold(run: RunPaths) -> None:
    shutil.rmtree(run.revisions)
    run.revisions.mkdir()
    assert "revisions/" in str(verify_run(run).fault)
    run.revisions.rmdir()
    assert "revisions/" in str(verify_run(run).fault)


def test_code_revisions_of_an_old_run_are_checked_too(old_run: RunPaths) -> None:
    assert verify_run(old_run).holds
    kept = old_run.root / "kept"
    shutil.copytree(old_run.revisions, kept)
    for pack in (old_run.revisions / "objects" / "pack").iterdir():
        pack.unlink()
    assert str(verify_run(old_run).fault).startswith("revisions: the object ")
    shutil.rmtree(old_run.revisions)
    old_run.revisions.mkdir()
    assert "revisions cannot be read" in str(verify_run(old_run).fault)
    old_run.revisions.rmdir()
    assert str(verify_run(old_run).fault).startswith("revisions is missing")
    kept.rename(old_run.revisions)
    assert verify_run(old_run).holds


def test_an_object_whose_content_does_not_hash_to_its_name_shows(old_run: RunPaths) -> None:
    """A loose object comes before a packed one, and its name is only the name of its file."""
    with Repo(str(old_run.revisions)) as repo:
        tree = repo[repo.refs[MAIN]].tree  # type: ignore[attr-defined]
        (entry, *_) = [
            one for one in repo.object_store.iter_tree_contents(tree) if one.path == b"code/train.py"
        ]
        forged = Blob.from_string(b"step = 99\n")
        unpack_all(repo)
        (old_run.revisions / "objects" / entry.sha[:2].decode()).mkdir(exist_ok=True)
        place = old_run.revisions / "objects" / entry.sha[:2].decode() / entry.sha[2:].decode()
        place.unlink(missing_ok=True)
        place.write_bytes(forged.as_legacy_object())
    assert verify_run(old_run).fault == f"revisions: the object {entry.sha.decode()} was changed"


def unpack_all(repo: Repo) -> None:
    """As they lie while a run goes: one file an object."""
    packs = Path(repo.object_store.path) / "pack"
    objects = [repo[name] for name in repo.object_store]
    repo.object_store.close()
    for pack in packs.iterdir():
        pack.unlink()
    with Repo(repo.path) as again:
        for one in objects:
            again.object_store.add_object(one)


def test_a_rewritten_history_shows_although_every_object_fits_its_name(old_run: RunPaths) -> None:
    first, *_, last = list_revisions(old_run.revisions)
    with Repo(str(old_run.revisions)) as repo:
        before = repo[ObjectID(last.commit.encode())]
        assert isinstance(before, Commit)
        forged = Commit()
        forged.tree, forged.parents = before.tree, [ObjectID(first.commit.encode())]
        forged.author = forged.committer = before.author
        forged.author_time = forged.commit_time = before.commit_time
        forged.author_timezone = forged.commit_timezone = 0
        forged.message = b"as if it had been at once\n"
        repo.object_store.add_object(forged)
        repo.refs[MAIN] = forged.id
    assert str(verify_run(old_run).fault).startswith("revisions/refs/heads/main was changed")


def test_a_revision_that_the_ledger_names_must_be_in_the_history(old_run: RunPaths) -> None:
    rewrite_ledger(old_run, without="revisions")
    first = list_revisions(old_run.revisions)[0]
    with Repo(str(old_run.revisions)) as repo:
        repo.refs[MAIN] = ObjectID(first.commit.encode())
    fault = str(verify_run(old_run).fault)
    assert fault.startswith("revisions: revision ")
    assert "which ledger record" in fault


# Runs that are not closed, or were closed by an older version


def test_an_old_run_holds_as_before_and_names_the_files_that_nothing_pins(old_run: RunPaths) -> None:
    found = verify_run(old_run)
    assert found.holds
    named = {one.path: one.reason for one in found.not_covered}
    assert {"events.jsonl", "submissions/*/grading.log", "contamination.log", "revisions/", *NOT_COVERED} <= {
        *named
    }
    assert not {"agent.log", "spec.json", "submissions/*/feedback.jsonl"} & {*named}
    assert "closed by a version that did not pin it" in named["events.jsonl"]
    old_run.events.write_text("")
    assert verify_run(old_run).holds


@pytest.mark.thorough
def test_a_crashed_run_says_what_is_covered_so_far_and_a_resumed_one_is_covered_at_its_end(
    launcher: RunLauncher,
) -> None:
    dying = CrashingRun(launcher)
    assert dying.live(CrashPoint("graded")) == KILLED, dying.errors
    crashed = verify_run(dying.paths)
    assert crashed.holds
    named = {one.path: one.reason for one in crashed.not_covered}
    assert {"events.jsonl", "agent.log", "revisions/", "scratch/", "workspace/"} <= {*named}
    assert "pinned when the run is closed" in named["agent.log"]
    for death in (
        CrashPoint("files", "before"),
        CrashPoint("files", "torn"),
        CrashPoint("files"),
        CrashPoint("files", "told"),
    ):
        assert dying.live(death) == KILLED, (death, dying.errors)
        assert verify_run(dying.paths).holds, (death, verify_run(dying.paths).fault)
    for moment in ("before", "no-head"):
        assert dying.live(CrashPoint("closed", moment)) == KILLED, dying.errors
        assert verify_run(dying.paths).holds, (moment, verify_run(dying.paths).fault)
    assert dying.live() == 0, dying.errors
    found = verify_run(dying.paths)
    assert (found.holds, found.fault) == (True, None)
    assert [one.path for one in found.not_covered] == ["lock", "workspace/"]
    assert sum(entry.kind == "files" for entry in dying.entries) >= 2
    with dying.paths.events.open("a") as file:
        file.write(canonical_json({"time": 1.0, "kind": "warning", "data": {"text": "forged"}}) + "\n")
    assert verify_run(dying.paths).fault == "events.jsonl was changed: it goes on after the run was closed"


# Records that somebody else made: the chain fits, and what it says does not


def write_forged_run(root: Path, *records: tuple[str, dict[str, JsonValue]]) -> RunPaths:
    run = RunPaths(root)
    root.mkdir()
    run.spec.write_text("{}")
    with closing(ledger.Ledger(run.ledger, run.ledger_head)) as forged:
        forged.append("opened", {"spec_sha256": sha256_text("{}")})
        for kind, data in records:
            forged.append(kind, data)
    return run


@pytest.mark.parametrize("name", [["x"], {"a": 1}, None, 7, "a\0b", "\ud800", "../../etc/passwd", "x" * 5000])
def test_a_record_that_pins_no_file_is_a_fault_and_not_a_crash(tmp_path: Path, name: JsonValue) -> None:
    run = write_forged_run(tmp_path / "run", ("results", {"file": name, "sha256": "0" * 64}))
    found = verify_run(run)
    assert not found.holds
    assert found.fault
    assert len(found.fault) < 1000


@pytest.mark.parametrize("at", [1e300, -1e300, 10**30])
def test_a_baseline_of_a_time_that_no_calendar_has_is_noted(tmp_path: Path, at: float) -> None:
    data: dict[str, JsonValue] = {"cached": True, "measured_by": "x", "measured_at": at, "split": "feedback"}
    run = write_forged_run(tmp_path / "run", ("baseline", data))
    assert "the ledger does not say of which run" in " ".join(verify_run(run).notes)


def test_a_head_before_the_first_record_is_a_fault(tmp_path: Path) -> None:
    run = write_forged_run(tmp_path / "run")
    run.ledger_head.write_text('{"index": -1, "hash": "' + "0" * 64 + '"}')
    assert not verify_run(run).holds
    run.ledger.write_text("")
    assert not verify_run(run).holds


def test_no_file_name_writes_a_verdict_to_the_terminal(tmp_path: Path) -> None:
    run = write_forged_run(tmp_path / "run")
    (run.submissions / "9\x1b[2K\rthe record holds\n").mkdir(parents=True)
    fault = verify_run(run).fault
    assert fault is not None
    assert fault.isprintable()
    assert "was added" in fault


@pytest.mark.parametrize(
    "name",
    [
        *("ledger.jsonl", "ledger.head", "additions.jsonl", "additions.head", "result.json"),
        *("events.jsonl", "claims.json", "submissions/1/submission.json", "revisions/HEAD"),
    ],
)
def test_a_pipe_among_the_files_holds_nobody_up(tmp_path: Path, name: str) -> None:
    run = write_forged_run(tmp_path / "run", ("started", {}))
    (run.root / name).unlink(missing_ok=True)
    (run.root / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(run.root / name)
    assert verify_run(run).holds is (name in ("events.jsonl", "claims.json"))
    with suppress(UserError):
        read_run(run)
    assert (read_events(run, []), read_claims(run, [])) == ([], None)


@pytest.mark.parametrize("place", ["/etc", "..", ".", "../..", "a/../..", "x\0y"])
def test_a_reproduction_that_lies_elsewhere_is_missing(tmp_path: Path, place: str) -> None:
    run = write_forged_run(tmp_path / "run")
    answer = Reproduction(at=1.0, submission=1, revision=1, answer="cannot", run=place)
    append_addition(run, "reproduction", answer.model_dump(mode="json"))
    fault = verify_run(run).fault
    assert fault is not None
    assert fault.endswith("is missing")


def test_a_link_in_place_of_the_reproductions_shows(tmp_path: Path) -> None:
    """A reproduction deletes what is left over from others, which must not happen through a link."""
    run = write_forged_run(tmp_path / "run")
    run.reproductions.symlink_to(tmp_path)
    assert verify_run(run).fault == "reproductions is not a folder"
