"""Each agent trains, submits, reads the score, improves and ends; and what its driver does to it is told.

Two programs run here always; `make test-agents` runs all of them.
"""

from pathlib import Path

import pytest

from agent2rl.core.llm import TokenCounts
from agent2rl.record.reader import read_run
from agent2rl.record.revisions import read_revision_files
from tests.agents.agent_runs import DRIVER_KEY, find_files_containing, run_agent

AGENTS = ("claude-code", "codex", "gemini-cli", "opencode", "mini-swe")


def programs(*always: str) -> pytest.MarkDecorator:
    marks = [pytest.param(name, marks=() if name in always else pytest.mark.agents) for name in AGENTS]
    return pytest.mark.parametrize("agent", marks)


TRAIN = r"""
[[step]]
say = "I write a training script."
usage = {input = 1200, cached = 200, output = 90}
[step.write_file]
path = "code/train.py"
text = '''
import json, os, sys
from pathlib import Path
from agent2rl.models.abacus import Abacus

name, problems = sys.argv[1], int(sys.argv[2])
lines = (Path(os.environ["DATA_PATH"]) / "train.jsonl").read_text().splitlines()
rows = [json.loads(line) for line in lines][:problems]
model = Abacus.load(Path(os.environ["MODEL_PATH"]))
model.fit([row["question"] for row in rows], [row["answer"] for row in rows], seed=0)
out = Path(os.environ["OUTPUT_DIR"]) / name
out.mkdir(parents=True, exist_ok=True)
model.save(out)
print("trained", name)
'''

[[step]]
fail = {status = 429, times = 1, retry_after = 0}
shell = '''python code/train.py v1 30 && curl -s -X POST "$GRADING_SERVER_URL/submit" \
  -H "Content-Type: application/json" -d '{"model_path": "output/v1"}' '''

[[step]]
when = 'trained v1[\s\S]*"score": ?(?P<first>[0-9.]+)'
shell = '''sed -i s/seed=0/seed=1/ code/train.py && python code/train.py v2 90 &&
  curl -s -X POST "$GRADING_SERVER_URL/submit" \
  -H "Content-Type: application/json" -d '{"model_path": "output/v2"}' '''

[[step]]
when = '"score": ?(?P<second>[0-9.]+)'
shell = '''
  (cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline;
  find $HOME /tmp /workspace -type f -size -4M -exec cat {} +) \
  > /workspace/everything 2> /dev/null; wc -c < /workspace/everything'''

[[step]]
end = "First {{first}}, then {{second}}."
"""


@programs("claude-code")
def test_an_agent_trains_submits_reads_the_score_improves_submits_again_and_ends(
    agent: str, tmp_path: Path
) -> None:
    done = run_agent(agent, TRAIN, tmp_path, "--budget", "20m", "--continues", "0")
    result, paths = done.run.result, done.run.paths
    assert result.ending == "completed", (result.reason, done.run.log[-2000:])
    first, second = (one.score.value for one in read_run(paths).submissions if one.score)
    assert result.best
    assert result.best.id == 2
    assert second > first
    assert result.improvement is not None
    assert result.improvement > 20

    assert result.usage
    assert result.usage.tokens == done.driver.said
    assert result.usage.failed >= 1
    assert 429 in {exchange.status for exchange in done.exchanges}
    counted = [exchange.tokens.total for exchange in done.exchanges if exchange.tokens]
    assert sum(counted) == result.usage.tokens.total

    transcript = done.transcript
    assert transcript.steps[-1].text.startswith("First ") or transcript.steps[-2].text.startswith("First ")
    calls = [call for step in transcript.steps for call in step.calls]
    seen = [found.text for step in transcript.steps for found in step.observations]
    assert any("train.py" in str(call.arguments) for call in calls)
    assert any("trained v1" in text for text in seen)
    assert transcript.tokens
    assert transcript.tokens.output <= result.usage.tokens.output

    for number in (1, 2):
        entries = [one.data for one in read_run(paths).chain.entries if one.kind == "revision_of"]
        revision = next(int(str(data["number"])) for data in entries if data["submission"] == number)
        code = {
            b"/".join(found.path): found.content for found in read_revision_files(paths.revisions, revision)
        }
        assert f"seed={number - 1}".encode() in code[b"code/train.py"]

    assert (paths.workspace / "everything").stat().st_size > 1000
    assert find_files_containing(paths.root, DRIVER_KEY.encode()) == []
    assert done.launcher.cli("verify", result.run_id).returncode == 0


BUSY = """
[[step]]
shell = "echo begun > code/begun; sleep 100; echo over > code/over"
[[step]]
end = "Done."
"""


@programs()
def test_at_the_deadline_an_agent_in_the_middle_of_a_command_is_ended(agent: str, tmp_path: Path) -> None:
    done = run_agent(agent, BUSY, tmp_path, "--budget", "60s")
    assert done.run.result.ending == "deadline"
    assert (done.run.paths.workspace / "code" / "begun").exists()
    assert not (done.run.paths.workspace / "code" / "over").exists()
    calls = [str(call.arguments) for step in done.transcript.steps for call in step.calls]
    assert agent == "opencode" or "echo begun" in str(calls)  # which tells of a call when it is over


@programs("codex")
@pytest.mark.thorough
def test_a_key_that_the_provider_refuses_is_a_login_that_failed(agent: str, tmp_path: Path) -> None:
    done = run_agent(agent, BUSY, tmp_path, "--budget", "20m", key="sk-another-key-that-is-wrong")
    assert done.run.result.ending == "login-failed"
    assert "rejects the key" in done.run.result.reason
    assert find_files_containing(done.run.paths.root, b"sk-another-key-that-is-wrong") == []


ALWAYS_FAILING = """
[[step]]
fail = {{status = {status}, times = "always"}}
end = "Never."
"""


@programs()
def test_a_driver_that_fails_for_good_is_to_blame_for_the_end(agent: str, tmp_path: Path) -> None:
    done = run_agent(agent, ALWAYS_FAILING.format(status=400), tmp_path, "--budget", "20m")
    assert done.run.result.ending == "driver-failed"
    assert done.run.result.usage
    assert done.run.result.usage.failed >= 1
    assert done.run.code == 1


@programs()
def test_a_provider_that_lets_nothing_through_is_a_rate_limit_whether_or_not_the_agent_gives_up(
    agent: str, tmp_path: Path
) -> None:
    done = run_agent(agent, ALWAYS_FAILING.format(status=429), tmp_path, "--budget", "60s")
    answered = (
        agent == "opencode"
    )  # in another conversation, for a title: then the deadline is only a deadline
    assert done.run.result.ending in ("rate-limited", "deadline" if answered else "rate-limited")
    assert done.run.result.usage
    assert done.run.result.usage.failed >= 1
    assert done.run.result.usage.stalled_seconds > 0


SPENDING = """
[[step]]
label = "again"
shell = "date >> code/times; sleep 1"
usage = {input = 4000, output = 1000}
goto = "again"
"""


@programs()
def test_the_answer_that_crosses_the_cap_is_given_and_the_agent_is_ended_at_the_next(
    agent: str, tmp_path: Path
) -> None:
    done = run_agent(agent, SPENDING, tmp_path, "--budget", "20m", "--max-tokens", "12k")
    result = done.run.result
    assert result.ending == "budget-exhausted"
    assert "12,000 tokens" in result.reason
    assert result.usage
    assert 12_000 <= result.usage.tokens.total <= 15_100
    assert result.usage.tokens == done.driver.said
    assert [exchange.status for exchange in done.exchanges if exchange.outcome == "refused"][-1] == 403


AGAIN = """
[[step]]
shell = "echo one > code/one.txt"
[[step]]
end = "I stop here."
[[step]]
shell = "cat code/one.txt; echo two > code/two.txt"
[[step]]
when = "one"
end = "Now I am done."
"""


@programs()
def test_an_agent_that_ends_with_time_left_is_told_to_go_on_and_remembers(agent: str, tmp_path: Path) -> None:
    done = run_agent(agent, AGAIN, tmp_path, "--budget", "20m", "--continues", "1")
    assert done.run.result.rounds == 2
    assert done.run.result.ending == "completed"
    remembers = agent != "mini-swe"  # which has no way to go on, and begins anew
    assert (done.run.paths.workspace / "code" / "two.txt").exists() == remembers


NOBODY = """
[[step]]
end = "Nobody asks me."
"""


@programs()
def test_a_recorded_run_is_played_again_without_a_key_and_nobody_is_asked(agent: str, tmp_path: Path) -> None:
    tape, places = tmp_path / "tape.jsonl", [tmp_path / "first", tmp_path / "again"]
    for place in places:
        place.mkdir()
    options = ("--budget", "20m", "--continues", "0")
    first = run_agent(agent, TRAIN, places[0], *options, "--record-driver", str(tape))
    again = run_agent(agent, NOBODY, places[1], *options, "--replay-driver", str(tape), key="")
    assert first.run.result.ending == again.run.result.ending == "completed"
    assert again.run.result.score == first.run.result.score
    assert again.driver.said == TokenCounts()
    paid, free = first.run.result.usage, again.run.result.usage
    assert paid
    assert free
    assert (free.tokens, free.answered, free.failed) == (paid.tokens, paid.answered, paid.failed)
    assert (paid.replayed, free.replayed) == (0, free.answered + free.failed)
    assert DRIVER_KEY.encode() not in tape.read_bytes()
