"""Recorded code that runs again without its agent: what it trains is compared with what was submitted."""

import json
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.core.records import Budget, RunResult, RunSpec
from agent2rl.core.reproduction import Reproduction
from agent2rl.grading.verify import verify_run
from agent2rl.record.files import extract_archive
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.run.reproduction_plan import ReproductionRequest, plan_reproduction
from agent2rl.run.settings import read_settings
from agent2rl.run.third_party_runs import NamedInputs, restrict_spec
from agent2rl.sandboxes import landlock
from tests.dashboard.conftest import serve_dashboard
from tests.helpers.run_launcher import RunLauncher

ROOT = Path(__file__).resolve().parents[2]
HONEST, SHOW, DELETED, TYPED, ENCODED = 1, 2, 3, 4, 5
"""Submissions of the session."""


@pytest.fixture(scope="module")
def session(shared_launcher: RunLauncher) -> RunPaths:
    """A run in which an agent submits five models."""
    return run_session(shared_launcher)


def run_session(launcher: RunLauncher, *options: str) -> RunPaths:
    agent = ("--agent", "tests.helpers.shell_session_agent:AGENT", "--json", "--no-report")
    done = launcher.cli("run", "--task", "gsm8k-mini", *agent, *options, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    result = RunResult.model_validate_json(done.stdout)
    assert result.scored == ENCODED
    return RunPaths(launcher.runs / result.run_id)


def reproduce(launcher: RunLauncher, run: RunPaths, number: int, *options: str) -> tuple[int, Reproduction]:
    arguments = ("reproduce", run.run_id, "--submission", str(number), "--json", *options)
    done = launcher.cli(*arguments, PYTHONPATH=str(ROOT))
    assert done.stdout, done.stderr
    return done.returncode, Reproduction.model_validate_json(done.stdout)


def test_an_honest_submission_is_reproduced_and_every_view_of_the_run_says_so(
    shared_launcher: RunLauncher, session: RunPaths, tmp_path: Path
) -> None:
    head = verify_run(session).head
    code, answer = reproduce(shared_launcher, session, HONEST)
    assert (code, answer.answer, answer.same_weights, answer.split) == (0, "reproduced", True, "heldout")
    assert answer.original == answer.retrained
    assert [step.argv for step in answer.steps] == [("python", "train.py", "honest")]
    assert (answer.steps[0].directory, answer.steps[0].environment) == ("code", {"PROBLEMS": "30"})

    verification = verify_run(session, head)
    assert verification.holds, verification.fault
    assert verification.additions_head
    report = shared_launcher.cli("report", session.run_id)
    assert report.returncode == 0, report.stderr
    for page in (session.report_page, session.report_text):
        assert "Submission 1, trained again" in page.read_text(encoding="utf-8")
    assert "reproduced: " in shared_launcher.cli("show", session.run_id).stdout
    board = json.loads(shared_launcher.cli("leaderboard", "--format", "json").stdout)
    assert [row["all"]["reproduced"] for row in board["rows"]] == [{"reproduced": 1}]
    assert "| 1 of 1 |" in shared_launcher.cli("leaderboard", "--format", "markdown").stdout
    with serve_dashboard(session.root.parent, tmp_path) as dashboard:
        assert '<span class="badge good">reproduced</span>' in httpx.get(f"{dashboard.url}/table").text


def test_recorded_code_cannot_see_the_models_of_the_original_run(
    shared_launcher: RunLauncher, session: RunPaths
) -> None:
    answer = find_answer(session, HONEST) or reproduce(shared_launcher, session, HONEST)[1]
    assert answer.run is not None
    log = session.reproduction_paths(answer.run).agent_log.read_text(encoding="utf-8")
    (line,) = [line for line in log.splitlines() if line.startswith("models beside the base model:")]
    seen = line.partition(": ")[2]
    assert str(session.root) not in seen
    assert "submissions" not in seen
    assert "workspace" not in seen


def test_weights_from_elsewhere_are_not_reproduced(shared_launcher: RunLauncher, session: RunPaths) -> None:
    code, answer = reproduce(shared_launcher, session, SHOW)
    assert (code, answer.answer, answer.same_weights) == (1, "not reproduced", False)
    assert answer.original is not None
    assert answer.retrained is not None
    assert answer.difference is not None
    assert answer.retrained.value < answer.original.value
    assert answer.difference.ci.high < 0


@pytest.mark.thorough
def test_code_that_knew_its_workspace_by_the_path_of_the_host_is_reproduced(launcher: RunLauncher) -> None:
    if not landlock.read_version() or registry.find_sandbox("confined").check().broken:
        pytest.skip("the confined sandbox cannot run here")
    run = run_session(launcher, "--sandbox", "confined")
    assert reproduce(launcher, run, HONEST)[1].answer == "reproduced"


@pytest.mark.thorough
def test_a_deleted_script_and_weights_hidden_beside_the_code_cannot_be_reproduced(
    shared_launcher: RunLauncher, session: RunPaths
) -> None:
    code, deleted = reproduce(shared_launcher, session, DELETED)
    assert (code, deleted.answer) == (1, "cannot")
    assert "gone.py" in " ".join((deleted.reason, *deleted.left_out))
    code, encoded = reproduce(shared_launcher, session, ENCODED)
    assert (code, encoded.answer) == (1, "cannot")
    assert "weights.txt" in encoded.reason
    assert "code/weights.txt: it holds data that could be weights" in encoded.withheld
    assert find_answer(session, ENCODED) == encoded


def test_code_that_was_typed_into_python_cannot_be_reproduced(
    shared_launcher: RunLauncher, session: RunPaths
) -> None:
    code, answer = reproduce(shared_launcher, session, TYPED)
    assert (code, answer.answer, answer.run) == (1, "cannot", None)
    assert "the code was typed or piped into Python and never saved: python - typed" in answer.reason


@pytest.mark.thorough
def test_steps_that_take_longer_than_the_budget_cannot_be_reproduced(
    shared_launcher: RunLauncher, session: RunPaths
) -> None:
    endless = ("--entry", "python -c 'import time; time.sleep(600)'", "--budget", "3s")
    code, answer = reproduce(shared_launcher, session, SHOW, *endless)
    assert (code, answer.answer) == (1, "cannot")
    assert answer.reason == "the steps did not finish within 3 s: give more time with --budget"
    assert answer.differences == ("3 s instead of 600 s",)


def find_answer(run: RunPaths, number: int) -> Reproduction | None:
    return read_run(run).latest_reproductions.get(number)


def test_a_changed_addition_shows(shared_launcher: RunLauncher, session: RunPaths, tmp_path: Path) -> None:
    if not read_run(session).reproductions:
        reproduce(shared_launcher, session, DELETED)
    for number, change in enumerate((change_answer, drop_head, change_result), start=1):
        copy = RunPaths(Path(shutil.copytree(session.root, tmp_path / str(number) / session.run_id)))
        assert verify_run(copy).holds
        if change(copy):
            verification = verify_run(copy)
            assert not verification.holds, change.__name__


def change_answer(run: RunPaths) -> bool:
    text = run.additions.read_text(encoding="utf-8")
    run.additions.write_text(text.replace('"answer":"cannot"', '"answer":"reproduced"'), encoding="utf-8")
    return '"answer":"cannot"' in text


def drop_head(run: RunPaths) -> bool:
    lines = run.additions.read_text(encoding="utf-8").splitlines(keepends=True)
    run.additions.write_text("".join(lines[:-1]), encoding="utf-8")
    return True


def change_result(run: RunPaths) -> bool:
    paths = list(run.root.glob("reproductions/*/submissions/1/feedback.jsonl"))
    for path in paths:
        path.write_bytes(path.read_bytes().replace(b'"score":0.0', b'"score":1.0'))
    return bool(paths)


def test_wrong_input_is_explained_and_leaves_nothing_behind(
    shared_launcher: RunLauncher, session: RunPaths, tmp_path: Path
) -> None:
    before = sorted(session.root.glob("*"))
    refused: list[tuple[ReproductionRequest, str]] = [
        (ReproductionRequest(submission=9), "has no submission 9. It has: 1, 2, 3, 4, 5."),
        (ReproductionRequest(submission=HONEST, wall_seconds=0.01), "is too short"),
        (ReproductionRequest(submission=HONEST, entry=("python 'x",)), "is not a command line"),
    ]
    for request, text in refused:
        with pytest.raises(UserError, match=text.replace(".", r"\.")):
            plan_reproduction(session, request, read_settings())
    arguments = ("reproduce", session.run_id, "--submission", str(HONEST), "--sandbox", "local")
    unsafe = shared_launcher.cli(*arguments, PYTHONPATH=str(ROOT))
    assert unsafe.returncode != 0
    assert "isolates nothing" in unsafe.stderr
    unfinished = RunPaths(Path(shutil.copytree(session.root, tmp_path / session.run_id)))
    unfinished.result.unlink()
    with pytest.raises(UserError, match="has no result"):
        plan_reproduction(unfinished, ReproductionRequest(), read_settings())
    assert sorted(session.root.glob("*")) == before
    assert verify_run(session).holds


@pytest.fixture(scope="module")
def bundle(shared_launcher: RunLauncher, session: RunPaths) -> Path:
    path = shared_launcher.home / "sent" / "run.tar.zst"
    path.parent.mkdir()
    done = shared_launcher.cli("bundle", session.run_id, "-o", str(path))
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.thorough
def test_a_bundles_submission_is_reproduced_and_verify_finds_the_answer_beside_it(
    shared_launcher: RunLauncher, bundle: Path, tmp_path: Path
) -> None:
    content = bundle.read_bytes()
    done = shared_launcher.cli("reproduce", str(bundle), "--submission", str(HONEST), "--json")
    assert done.returncode == 0, done.stderr
    answer = Reproduction.model_validate_json(done.stdout)
    assert (answer.answer, answer.same_weights, answer.split) == ("reproduced", True, "heldout")
    assert bundle.read_bytes() == content
    folder = bundle.with_name("run.reproductions")
    assert answer.run is not None
    assert (folder / "reproductions" / answer.run / "result.json").exists()
    verified = shared_launcher.cli("verify", str(bundle))
    assert verified.returncode == 0, verified.stderr
    assert "run.reproductions: submission 1: reproduced: " in verified.stdout
    published = json.loads(shared_launcher.cli("verify", str(bundle), "--json").stdout)
    assert [each["answer"] for each in published["beside"]["answers"]] == ["reproduced"]
    site = shared_launcher.cli("site", str(bundle), "-o", str(tmp_path / "site"))
    assert site.returncode == 0, site.stderr
    (run,) = json.loads((tmp_path / "site" / "data" / "runs.json").read_text())["runs"]
    assert run["checks"]["reproduced"] is True

    results = next(folder.glob("reproductions/*/submissions/1/feedback.jsonl"))
    results.write_bytes(results.read_bytes().replace(b'"score":0.0', b'"score":1.0'))
    changed = shared_launcher.cli("verify", str(bundle))
    assert changed.returncode == 1
    assert "run.reproductions: DOES NOT HOLD: reproductions/" in changed.stdout
    assert "the record holds" in changed.stdout
    again = shared_launcher.cli("reproduce", str(bundle), "--submission", str(HONEST))
    assert "Nothing can be added to" in again.stderr


def test_a_bundles_answer_goes_where_the_user_says_and_nothing_is_left_of_what_did_not_run(
    shared_launcher: RunLauncher, bundle: Path, tmp_path: Path
) -> None:
    target = tmp_path / "answers"
    arguments = ("reproduce", str(bundle), "--submission", str(DELETED), "-o", str(target))
    assert shared_launcher.cli(*arguments, "--dry-run").returncode == 0
    assert not target.exists()
    assert "isolates nothing" in shared_launcher.cli(
        "reproduce", str(bundle), "--submission", str(HONEST), "-o", str(target), "--sandbox", "local"
    ).stderr  # fmt: skip
    assert not target.exists()
    assert shared_launcher.cli(*arguments).returncode == 1  # cannot
    verified = shared_launcher.cli("verify", str(bundle), "--reproductions", str(target))
    assert "answers: submission 3: cannot: " in verified.stdout
    other = tmp_path / "other"
    other.mkdir()
    refused = shared_launcher.cli(*arguments[:-1], str(other))
    assert (refused.returncode, "is not a folder of reproductions" in refused.stderr) == (2, True)
    (tmp_path / "link").symlink_to(target)
    assert shared_launcher.cli(*arguments[:-1], str(tmp_path / "link")).returncode == 2


def test_nothing_that_a_bundle_names_is_imported_read_or_called() -> None:
    spec = RunSpec(
        task="gsm8k-mini",
        agent="x",
        model="abacus",
        engine="scripted",
        budget=Budget(wall_seconds=60),
        search=None,
    )
    named = {"task": "evil.module:TASK", "model": "/etc", "engine": "evil:ENGINE"}
    named |= {
        "judge": "gpt-4o@http://10.0.0.1/v1",
        "train_judge": "m@http://10.0.0.1",
        "search": "local:/etc",
    }
    for field, value in (*named.items(), ("task", "folder:/etc"), ("model", "org/name@" + "0" * 40)):
        with pytest.raises(UserError, match="run"):
            restrict_spec(spec.model_copy(update={field: value}), NamedInputs(), read_settings())
    paths = {
        "data_dir": "/etc",
        "record_searches": "/etc/passwd",
        "record_driver": "/x",
        "replay_driver": "/y",
    }
    paths |= {"agent_python": "/opt", "agent_python_lock": "0", "sandbox": "docker:evil/image"}
    hostile = spec.model_copy(update={**paths, "siblings": ("/etc/shadow",), "grading_gpus": "0"})
    assert restrict_spec(hostile, NamedInputs(), read_settings()) == spec.model_copy(
        update={"sandbox": "auto"}
    )
    for endless in ({"samples": 10**9}, {"budget": Budget(wall_seconds=1e300)}):
        with pytest.raises(UserError, match="are accepted"):
            restrict_spec(spec.model_copy(update=endless), NamedInputs(), read_settings())
    inputs = NamedInputs(judge="gpt-4o", model="seedling")
    chosen = restrict_spec(spec.model_copy(update={"judge": "evil@http://x"}), inputs, read_settings())
    assert (chosen.judge, chosen.model) == ("gpt-4o", "seedling")


def test_an_earlier_versions_run_needs_the_commands_to_be_named(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).with_name("earlier_version_run.tar.xz")) as archive:
        extract_archive(archive, tmp_path)
    run = RunPaths(next(path for path in tmp_path.iterdir() if path.is_dir()))
    before = sorted(run.root.rglob("*"))
    with pytest.raises(UserError, match="--entry"):
        plan_reproduction(run, ReproductionRequest(), read_settings())
    request = ReproductionRequest(entry=("python agent/train.py",))
    plan = plan_reproduction(run, request, read_settings())
    assert [step.argv for step in plan.found.steps] == [("python", "agent/train.py")]
    assert sorted(run.root.rglob("*")) == before


def test_the_specification_of_a_run_elsewhere_is_not_obeyed(launcher: RunLauncher, tmp_path: Path) -> None:
    """Its task and its sandbox are modules that would be imported."""
    with tarfile.open(Path(__file__).with_name("earlier_version_run.tar.xz")) as archive:
        extract_archive(archive, tmp_path / "received")
    run = RunPaths(next(path for path in (tmp_path / "received").iterdir() if path.is_dir()))
    marker = tmp_path / "imported"
    (launcher.home / "imported_when_named.py").write_text(f"open({str(marker)!r}, 'w')", encoding="utf-8")
    spec = json.loads(run.spec.read_text(encoding="utf-8"))
    named = {"task": "imported_when_named:TASK", "sandbox": "imported_when_named:SANDBOX"}
    run.spec.write_text(json.dumps({**spec, **named}), encoding="utf-8")
    for options in ((), ("--dry-run",)):
        refused = launcher.cli("reproduce", str(run.root), "--entry", "python x.py", *options)
        assert refused.returncode == 2, refused.stderr
        assert "not in your runs directory" in refused.stderr
        assert f"--runs-dir {run.root.parent}" in refused.stderr
    assert not marker.exists()


def test_ctrl_c_leaves_the_record_as_it_was(shared_launcher: RunLauncher, session: RunPaths) -> None:
    before = session.additions.read_bytes() if session.additions.exists() else None
    folders = list_reproductions(session)
    process = subprocess.Popen(
        shared_launcher.command("reproduce", session.run_id, "--submission", str(HONEST)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shared_launcher.environment(PYTHONPATH=str(ROOT)),
    )
    while process.poll() is None and not any(map(has_begun, list_reproductions(session) - folders)):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "nothing was added" in errors
    assert list_reproductions(session) == folders
    assert (session.additions.read_bytes() if session.additions.exists() else None) == before
    assert verify_run(session).holds


def list_reproductions(run: RunPaths) -> set[Path]:
    return set(run.reproductions.glob("*")) if run.reproductions.exists() else set()


def has_begun(folder: Path) -> bool:
    ledger = RunPaths(folder).ledger
    entries: list[dict[str, Any]] = []
    if ledger.exists():
        entries = [json.loads(line) for line in ledger.read_text().splitlines() if line.endswith("}")]
    return any(entry["kind"] == "started" for entry in entries)
