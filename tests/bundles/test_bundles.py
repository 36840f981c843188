"""A run in one file: written, verified, shown, reported and viewed through the real commands."""

import json
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from agent2rl.bundles.secret_scan import SecretScanner, scan_code
from agent2rl.bundles.unpacking import open_bundle
from agent2rl.core.audit_records import Audit
from agent2rl.core.reproduction import Reproduction
from agent2rl.record.files import sha256_file
from agent2rl.record.ledger import append_addition, read_additions, read_ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.report import run_report
from tests.helpers.bundle_files import BundleParts, unpack_earlier_run
from tests.helpers.run_launcher import FinishedRun, RunLauncher

KEY = "sk-proj-" + "abcDEF123" * 4
PASSWORD = "correct-horse-battery"
AGENT = f"""
(WORKSPACE / "code" / "train.py").write_text("step = 1\\n")
for name in ("Logs/a.log", "logs/b.log", "odd name.log", "x.log/y.log"):
    (OUTPUT / name).parent.mkdir(exist_ok=True)
    (OUTPUT / name).write_text("a name that cannot prevent a bundle\\n")
rows = [{{"step": step, "loss": 2 / (step + 1), "reward": step / 100}} for step in range(50)]
(OUTPUT / "log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
submit(trained("v1", problems=5))
deadline = time.monotonic() + 120
while "log.jsonl" not in (WORKSPACE.parent / "events.jsonl").read_text():
    assert time.monotonic() < deadline, "the log was not seen"
    time.sleep(0.05)
submit(trained("v2", problems=60))
print("the key is " + "{KEY[::-1]}"[::-1], flush=True)
print("and $TOKEN is " + "{PASSWORD[::-1]}"[::-1], flush=True)
"""


@pytest.fixture(scope="module")
def run(shared_launcher: RunLauncher) -> FinishedRun:
    """A run whose agent printed secrets."""
    finished = shared_launcher.run(AGENT, "--sandbox", "local")
    assert finished.result.ended_well, finished.errors
    shared_launcher.report(finished)
    return finished


@pytest.fixture(scope="module")
def bundle(shared_launcher: RunLauncher, run: FinishedRun) -> Path:
    done = shared_launcher.cli("bundle", run.result.run_id, MY_TOKEN=PASSWORD)
    assert done.returncode == 0, done.stderr
    path = shared_launcher.home / f"{run.result.run_id}.tar.zst"
    assert f"{path.name}: " in done.stdout
    return path


def test_a_bundle_is_verified_and_shown_as_the_run_is(
    shared_launcher: RunLauncher, run: FinishedRun, bundle: Path
) -> None:
    verified = shared_launcher.cli("verify", str(bundle))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "the record holds\nsignature: unsigned\n" in verified.stdout
    assert "not covered: submissions/2/model/: the weights are not in the bundle" in verified.stdout
    assert "not covered: agent.log: 2 secrets were replaced with stars" in verified.stdout
    head = shared_launcher.cli("verify", run.result.run_id, "--json").stdout
    with_head = shared_launcher.cli("verify", str(bundle), "--head", json.loads(head)["head"])
    assert with_head.returncode == 0
    assert shared_launcher.cli("verify", str(bundle), "--head", "0" * 64).returncode == 1
    shown = shared_launcher.cli("show", str(bundle), "--submission", "2", "--split", "heldout")
    assert shown.stdout == shared_launcher.cli(
        "show", run.result.run_id, "--submission", "2", "--split", "heldout"
    ).stdout  # fmt: skip
    assert "step = 1" in shared_launcher.cli("revisions", str(bundle), "--diff", "0", "1").stdout


def test_the_same_run_gives_the_same_bytes_wherever_it_is(
    shared_launcher: RunLauncher, run: FinishedRun, bundle: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / run.result.run_id
    shutil.copytree(run.paths.root, moved, symlinks=True)
    shutil.rmtree(moved / "report")  # it is made again
    for path in moved.rglob("*"):
        path.touch()
    done = shared_launcher.cli("bundle", str(moved), "-o", str(tmp_path / "again"), MY_TOKEN=PASSWORD)
    assert done.returncode == 0, done.stderr
    again = BundleParts.read((tmp_path / "again").read_bytes())
    first = BundleParts.read(bundle.read_bytes())
    assert [name for name in first.files if again.files.get(name) != first.files[name]] == []
    assert sha256_file(tmp_path / "again") == sha256_file(bundle)


def test_secrets_are_replaced_and_the_file_is_named(bundle: Path, run: FinishedRun) -> None:
    parts = BundleParts.read(bundle.read_bytes())
    original = run.paths.agent_log.read_bytes()
    assert KEY.encode() in original
    assert PASSWORD.encode() in original
    for content in parts.files.values():
        assert KEY.encode() not in content
        assert PASSWORD.encode() not in content
    assert len(parts.files["agent.log"]) == len(original)
    assert [each["path"] for each in parts.record["scrubbed"]] == ["agent.log"]


def test_the_report_of_a_bundle_has_the_curves_of_the_run(
    shared_launcher: RunLauncher, run: FinishedRun, bundle: Path, tmp_path: Path
) -> None:
    done = shared_launcher.cli("report", str(bundle), "-o", str(tmp_path / "report"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    curves = {curve["name"]: curve for curve in report["findings"]["trainings"]}
    assert {series["metric"] for series in curves["log.jsonl"]["series"]} == {"loss", "reward"}
    own = run_report.gather_report_data(run.paths).findings
    assert report["findings"]["trainings"] == json.loads(own.model_dump_json())["trainings"]


def test_a_report_inside_a_bundle_is_never_shown(
    shared_launcher: RunLauncher, bundle: Path, tmp_path: Path
) -> None:
    """Its maker may have written anything into it."""
    parts = BundleParts.read(bundle.read_bytes())
    forged = parts.files["report/digest.json"].replace(b'"improvement":', b'"improvement":9')
    changed = parts.with_file("report/report.html", b"<script>").with_file("report/digest.json", forged)
    (tmp_path / "forged.tar.zst").write_bytes(changed.build())
    honest = shared_launcher.cli("export", "jsonl", str(bundle)).stdout
    assert shared_launcher.cli("export", "jsonl", str(tmp_path / "forged.tar.zst")).stdout == honest


@pytest.mark.thorough
def test_a_browser_shows_a_bundle(shared_launcher: RunLauncher, run: FinishedRun, bundle: Path) -> None:
    process = subprocess.Popen(
        shared_launcher.command("view", str(bundle), "--no-browser"),
        stdout=subprocess.PIPE,
        text=True,
        env=shared_launcher.environment(TMPDIR=str(shared_launcher.home)),
    )
    assert process.stdout
    try:
        address = process.stdout.readline().strip()
        page = httpx.get(f"{address}runs/{run.result.run_id}", timeout=60).raise_for_status().text
        assert "gsm8k-mini" in page
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
    assert list(shared_launcher.home.glob("agent2rl-bundle-*")) == []


# What is refused


def test_nothing_is_left_where_a_run_cannot_be_bundled(
    shared_launcher: RunLauncher, run: FinishedRun, bundle: Path, tmp_path: Path
) -> None:
    def refuse(root: Path, *options: str) -> str:
        done = shared_launcher.cli("bundle", str(root), "-o", str(tmp_path / "out" / "x"), *options)
        assert done.returncode == 2, done.stdout
        assert list((tmp_path / "out").iterdir()) == []
        return done.stderr

    (tmp_path / "out").mkdir()
    changed = RunPaths(tmp_path / "changed")
    shutil.copytree(run.paths.root, changed.root, symlinks=True)
    results = changed.submission_paths(2).results_file("heldout")
    results.write_bytes(results.read_bytes().replace(b'"score":0.0', b'"score":1.0'))
    assert "does not hold: submissions/2/heldout.jsonl was changed" in refuse(changed.root)
    changed.result.unlink()
    assert "agent2rl resume" in refuse(changed.root)
    (tmp_path / "empty").mkdir()
    assert "There is no run" in refuse(tmp_path / "empty")
    nothing_trained = unpack_earlier_run(tmp_path / "earlier")
    shutil.rmtree(nothing_trained.submission_paths(3).model)
    assert "does not hold" in refuse(nothing_trained.root, "--with-model")
    assert "There is no key" in refuse(run.paths.root, "--sign", str(tmp_path / "none"))
    again = shared_launcher.cli("bundle", run.result.run_id)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    resumed = shared_launcher.cli("resume", str(bundle))
    assert resumed.returncode == 2
    assert "is a bundle, and this command needs a run directory" in resumed.stderr


def test_a_secret_in_scores_or_code_is_refused_unless_it_is_declared_none(
    shared_launcher: RunLauncher, earlier_run: RunPaths, tmp_path: Path
) -> None:
    command = ("bundle", str(earlier_run.root), "-o", str(tmp_path / "out"))
    refused = shared_launcher.cli(*command, AGENT_SECRET="gsm8k-mini")
    assert refused.returncode == 2
    assert "There are secrets in files that must not be changed" in refused.stderr
    assert "spec.json: the value of AGENT_SECRET (" in refused.stderr
    assert "is gsm8k-mini" not in refused.stderr
    assert not (tmp_path / "out").exists()
    name = refused.stderr.split("the value of AGENT_SECRET (")[1].split(")")[0]
    accepted = shared_launcher.cli(*command, "--not-secret", name, AGENT_SECRET="gsm8k-mini")
    assert accepted.returncode == 0, accepted.stderr
    found = scan_code(earlier_run.revisions, SecretScanner({"AGENT_SECRET": "agent2rl"}))
    assert found[0].where.startswith("revisions/ (commit ")
    refused = shared_launcher.cli(*command[:2], "-o", str(tmp_path / "no"), AGENT_SECRET="agent2rl")
    assert "--without-code" in refused.stderr
    assert SecretScanner({}, frozenset({"all"})).find_secrets(KEY.encode(), "file") == []
    assert SecretScanner({"MY_KEY": KEY}, frozenset({"all"})).find_secrets(KEY.encode(), "file") != []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"export OPENAI_API_KEY=" + KEY.encode(), True),
        (b"AIza" + b"x" * 35, True),
        (b"hf_" + b"aB3" * 12, True),
        (b"ghp_" + b"a1B2" * 9, True),
        (b"AKIA" + b"A1B2" * 4, True),
        (b"https://me:hunter22@host/x", True),
        (b"https://me:password@host/x", False),
        (b"https://me:${TOKEN}@host/x", False),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\ndef\n-----END OPENSSH PRIVATE KEY-----", True),
        (b"task-sk-learn-and-some-other-words", False),
        (b"sk-1234", False),
        (b"the mask-based-sk-approach", False),
        (b"https://host:8000/user@example", False),
        (b'{"key": "my\\u002fsecret\\"value"}', True),
    ],
)
def test_what_looks_like_a_secret_is_replaced_by_as_many_stars(text: bytes, found: bool) -> None:
    scrubbed, secrets = SecretScanner({"MY_KEY": 'my/secret"value'}).replace_secrets(
        text.replace(b"\\u002f", b"/"), "file"
    )
    assert bool(secrets) is found
    assert (b"***" in scrubbed) is found
    assert len(scrubbed) == len(text.replace(b"\\u002f", b"/"))
    assert scrubbed.count(b"\n") == text.count(b"\n")


# Weights


def test_the_best_weights_come_along_when_asked_for(
    shared_launcher: RunLauncher, run: FinishedRun, tmp_path: Path
) -> None:
    target = tmp_path / "with.tar.zst"
    done = shared_launcher.cli(
        "bundle", run.result.run_id, "-o", str(target), "--with-model", "--without-code"
    )
    assert done.returncode == 0, done.stderr
    parts = BundleParts.read(target.read_bytes())
    best = read_run(run.paths).result
    assert best is not None
    assert best.best is not None
    weights = f"submissions/{best.best.id}/model/model.safetensors"
    assert parts.files[weights] == (run.paths.root / weights).read_bytes()
    assert not any(path.startswith("revisions/") for path in parts.files)
    verified = shared_launcher.cli("verify", str(target))
    assert verified.returncode == 0, verified.stdout
    assert "not covered: revisions/: the agent's code was left out" in verified.stdout
    changed = bytearray(parts.files[weights])
    changed[-1] ^= 1
    target.write_bytes(parts.with_file(weights, bytes(changed)).build())
    assert f"{weights} was changed" in shared_launcher.cli("verify", str(target)).stdout


def test_a_bundle_has_the_results_of_reproductions_without_their_runs(
    shared_launcher: RunLauncher, earlier_run: RunPaths, tmp_path: Path
) -> None:
    run_id = f"{earlier_run.run_id}-again"
    shutil.copytree(earlier_run.root, tmp_path / run_id)
    shutil.move(tmp_path / run_id, earlier_run.reproduction_paths(run_id).root)
    head = read_ledger(earlier_run.ledger, earlier_run.ledger_head).entries[-1].hash
    answer = Reproduction(at=1.0, submission=1, revision=1, answer="reproduced", run=run_id, run_head=head)
    append_addition(earlier_run, "reproduction", answer.model_dump(mode="json"))
    path = tmp_path / "with-reproduction.tar.zst"
    written = shared_launcher.cli("bundle", str(earlier_run.root), "-o", str(path))
    assert written.returncode == 0, written.stderr
    verified = shared_launcher.cli("verify", str(path))
    assert verified.returncode == 0, verified.stdout
    assert "not covered: reproductions/: the record has the results" in verified.stdout
    with open_bundle(path) as bundle:
        assert not bundle.paths.reproductions.exists()
        (reproduction,) = read_additions(bundle.paths, head).list_reproductions()
    assert reproduction == answer


@pytest.mark.thorough
def test_a_site_takes_bundles_and_names_those_that_it_refuses(
    shared_launcher: RunLauncher, earlier_run: RunPaths, tmp_path: Path
) -> None:
    head = read_ledger(earlier_run.ledger, earlier_run.ledger_head).entries[-1].hash
    audit = Audit(done=True, judge="panel", at=1.0, ledger_head=head, votes=3, valid_votes=3)
    append_addition(earlier_run, "audit", audit.model_dump(mode="json"))
    sent = tmp_path / "sent"
    sent.mkdir()
    path = sent / "good.tar.zst"
    assert shared_launcher.cli("bundle", str(earlier_run.root), "-o", str(path)).returncode == 0
    (sent / "cut.tar.zst").write_bytes(path.read_bytes()[:-100])
    done = shared_launcher.cli("site", str(sent), "-o", str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    assert "cut.tar.zst is not shown: cut.tar.zst is refused" in done.stderr
    (row,) = json.loads((tmp_path / "site" / "data" / "runs.json").read_text(encoding="utf-8"))["runs"]
    assert row["run_id"] == earlier_run.run_id
    checks = row["checks"]
    assert (checks["verified"], checks["audited"], checks["reproduced"]) == (True, True, None)
    strict = shared_launcher.cli("site", str(sent), "-o", str(tmp_path / "site"), "--require-verified")
    assert strict.returncode == 1
