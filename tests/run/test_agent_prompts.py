"""What agents are told: its examples work as they stand, and what they note is read as their word."""

import json
import os
from pathlib import Path

import pytest

from agent2rl.core.grading_records import EvalScore, Interval, Submission
from agent2rl.core.self_reports import AttemptClaims
from agent2rl.run.agent_session import read_claims
from agent2rl.run.workspace import make_continue_prompt
from tests.helpers.run_launcher import RunLauncher

FOLLOW = """
import re

def blocks(name, language):
    return re.findall(rf"```{language}\\n(.*?)```", (WORKSPACE / name).read_text(), re.S)

def shell(code):
    return subprocess.run(["bash", "-c", code], cwd=WORKSPACE, capture_output=True, text=True).stdout

trained("v1")
clock, submitting = blocks("instructions.md", "bash")
(python,) = blocks("instructions.md", "python")
(note,) = blocks("SKILL.md", "bash")
exec(python)
found = {"time": json.loads(shell(clock)), "curl": json.loads(shell(submitting))}
found["python"] = submit("output/v1")
shell(note)
(WORKSPACE / "reports" / "summary.jsonl").open("a").write("no claim\\n")
paths = re.findall(r"^\\| `([^`]+)`", (WORKSPACE / "instructions.md").read_text(), re.M)
pointers = [(WORKSPACE / name).read_text() for name in ("AGENTS.md", "CLAUDE.md", "GEMINI.md")]
say(**found, missing=[path for path in paths if not pathlib.Path(path).exists()], pointers=pointers)
"""


def test_the_examples_of_the_brief_work_as_they_stand_and_claims_are_kept_beside_the_record(
    launcher: RunLauncher,
) -> None:
    run = launcher.run(FOLLOW)
    assert run.said["curl"]["verdict"] == run.said["python"]["verdict"] == "scored"
    assert run.said["time"]["remaining"] > 0
    assert not run.said["missing"]
    assert all("SKILL.md" in text for text in run.said["pointers"])
    claims = AttemptClaims.model_validate_json(run.paths.claims.read_bytes())
    assert [claim.route for claim in claims.claims] == ["sft"]
    assert claims.unread == 1
    assert launcher.cli("verify", run.result.run_id).returncode == 0
    run.paths.claims.write_text('{"claims": []}')
    assert "claims.json was changed" in launcher.cli("verify", run.result.run_id).stdout


def test_the_rules_say_what_happens_in_each_case_and_the_ledger_says_which_version_they_are(
    launcher: RunLauncher,
) -> None:
    run = launcher.run("say(text=(WORKSPACE / 'instructions.md').read_text())", "--mode", "rl-oriented")
    rules = " ".join(run.said["text"].partition("## The rules")[2].split())
    for rule in (
        "Mode `rl-oriented`: Improve the model by reinforcement learning.",
        "Supervised training on answers may come first, as a warm-up.",
        "The last training stage of your best submission must be reinforcement learning",
        "If several have the same improvement, the earliest of them counts.",
        "A score of `null` means that there is no score: the submission was rejected, failed or expired",
        "is scored, but it cannot be your best submission",
        "the run is marked `contaminated`",
        "leaderboards and campaign statistics leave it out unless their reader asks",
        "You may read all files that you can see, including the installed `agent2rl` package",
        "They have no effect on the score.",
    ):
        assert rule in rules
    started = [json.loads(line) for line in run.paths.ledger.read_text().splitlines()]
    assert [entry["data"]["instructions_version"] for entry in started if entry["kind"] == "started"] == [10]
    assert json.loads(run.paths.spec.read_text())["instructions_version"] == 10


@pytest.mark.parametrize("kind", ["link", "linked folder", "pipe", "folder", "absent", "bytes", "long"])
def test_whatever_lies_in_place_of_the_claims_is_no_claim_and_no_harm(tmp_path: Path, kind: str) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    elsewhere.mkdir()
    line = json.dumps({"attempt": 1, "route": "sft", "what": "a secret"})
    (elsewhere / "summary.jsonl").write_text(line)
    place = workspace / "reports" / "summary.jsonl"
    workspace.mkdir()
    if kind == "linked folder":
        place.parent.symlink_to(elsewhere)
    else:
        place.parent.mkdir()
    if kind == "link":
        place.symlink_to(elsewhere / "summary.jsonl")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "bytes":
        place.write_bytes(b"\xff\x00\n[1]\n{}\n")
    elif kind == "long":
        place.write_text((line + "\n") * 5000)
    found = read_claims(workspace)
    assert len(found.claims) == (1000 if kind == "long" else 0)
    assert found.unread == {"bytes": 3, "long": 4000}.get(kind, 0)


def test_an_agent_that_ended_early_hears_how_it_stands() -> None:
    def score(value: float) -> EvalScore:
        return EvalScore(value=value, ci=Interval(low=0, high=100, method="wilson"), n=10, split="feedback")

    best = Submission(id=2, path="output/v2", accepted_at=0, verdict="scored", score=score(41.5))
    assert "scores 41.50. The base model scores 12.00." in make_continue_prompt(8000, score(12), best)
    assert "2.2 hours" in make_continue_prompt(8000, score(12), best)
    assert "You have no best submission yet" in make_continue_prompt(600, score(12), None)
    assert "10 minutes" in make_continue_prompt(600, score(12), None)
