"""The real programs in the real sandbox: each is told by a script what to do, and does it.

`make test-agents` installs them and runs these; one that cannot be had here is skipped, with the reason.
"""

from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.llm import TokenCounts, Wire
from tests.agents.sandboxed_agent import SandboxedAgent, serve_socket_driver
from tests.helpers.sandbox_runner import SandboxRunner

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]
FIRST: list[tuple[str, Wire]] = [
    ("claude-code", "anthropic"),
    ("codex", "openai-responses"),
    ("gemini-cli", "gemini"),
    ("mini-swe", "openai-chat"),
    ("opencode", "openai-chat"),
    ("openhands", "openai-chat"),
]
FURTHER: list[tuple[str, Wire]] = [
    ("mini-swe", "anthropic"),
    ("mini-swe", "gemini"),
    ("opencode", "anthropic"),
    ("opencode", "gemini"),
    ("opencode", "openai-responses"),
    ("openhands", "anthropic"),
    ("openhands", "gemini"),
]
GOING_ON = [each for each in FIRST if each[0] != "mini-swe"]
WORK = """
[[step]]
say = "Step 1."
shell = "echo hi > out.txt; id -u; echo $ROLLOUT_KEY"
usage = {input = 1000, cached = 200, output = 50}
[[step]]
when = "needed"
say = "Step 2."
shell = "cat out.txt; pwd"
usage = {input = 1100, cached = 300, output = 60}
[[step]]
when = "workspace"
end = "All done."
usage = {input = 1200, cached = 400, output = 70}
"""
MORE = """
[[step]]
say = "Once more."
shell = "echo again >> out.txt; cat out.txt"
usage = {input = 1300, cached = 500, output = 80}
[[step]]
when = "again"
end = "Really done."
usage = {input = 1400, cached = 600, output = 90}
"""

SLEEP = """
[[step]]
say = "Step 1."
shell = "echo started > started.txt; sleep 600"
timeout = 600
"""


@pytest.fixture
def ride(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxedAgent:
    name, wire = request.param
    return SandboxedAgent(name, wire, SandboxRunner(registry.find_sandbox("bubblewrap"), tmp_path))


def told(ride: SandboxedAgent) -> str:
    """All that came back to its calls."""
    return "\n".join(seen.text for step in ride.transcript.steps for seen in step.observations)


@pytest.mark.parametrize("ride", FIRST + FURTHER, indirect=True, ids="-".join)
def test_a_program_runs_commands_sees_what_they_say_and_ends(ride: SandboxedAgent, tmp_path: Path) -> None:
    with serve_socket_driver(WORK, tmp_path) as script:
        ended = ride.run(script, "Write hi to out.txt.")
        assert (ended.reason, ended.code) == ("exited", 0), ride.cell.log
        assert (ride.cell.workspace / "out.txt").read_text() == "hi\n"
        said = [step.text for step in ride.transcript.steps if step.source == "agent" and step.text]
        assert said[:2] == ["Step 1.", "Step 2."]
        assert "needed" in told(ride)
        assert "/workspace" in told(ride)
        assert not ride.transcript.error
        assert ride.transcript.tokens == script.counted == TokenCounts(input=3300, cached=900, output=180)
        assert script.models == {"driver-model"}
        assert not [tool for tool in script.tools if "web" in tool.lower() or "fetch" in tool.lower()]


@pytest.mark.parametrize("ride", GOING_ON, indirect=True, ids="-".join)
def test_a_program_that_ended_goes_on_where_it_was(ride: SandboxedAgent, tmp_path: Path) -> None:
    with serve_socket_driver(WORK + MORE, tmp_path) as script:
        for prompt in ("Write hi to out.txt.", "Go on."):
            ended = ride.run(script, prompt, resumed=prompt == "Go on.")
            assert (ended.reason, ended.code) == ("exited", 0), ride.cell.log
        assert (ride.cell.workspace / "out.txt").read_text() == "hi\nagain\n"
        assert ride.transcript.tokens == script.counted == TokenCounts(input=6000, cached=2000, output=350)


@pytest.mark.parametrize("ride", [("mini-swe", "openai-chat")], indirect=True, ids="-".join)
def test_a_program_that_cannot_go_on_begins_again(ride: SandboxedAgent, tmp_path: Path) -> None:
    with serve_socket_driver(WORK, tmp_path) as script:
        for prompt in ("Write hi to out.txt.", "Go on."):
            ended = ride.run(script, prompt, resumed=prompt == "Go on.")
            assert (ended.reason, ended.code) == ("exited", 0), ride.cell.log
        assert ride.transcript.tokens == script.counted == TokenCounts(input=6600, cached=1800, output=360)


@pytest.mark.parametrize("ride", FIRST, indirect=True, ids="-".join)
def test_the_deadline_ends_a_program_in_the_middle_of_a_call(ride: SandboxedAgent, tmp_path: Path) -> None:
    with serve_socket_driver(SLEEP, tmp_path) as at:
        seconds = 90 if ride.name == "openhands" else 40  # which takes its time to begin
        ended = ride.run(at, "Sleep.", seconds=seconds, grace=5)
    assert ended.reason == "deadline"
    assert ended.wall_seconds < seconds + 10
    assert (ride.cell.workspace / "started.txt").exists(), ride.cell.log
    assert "Step 1." in [step.text for step in ride.transcript.steps]
    if ride.name in ("claude-code", "codex"):  # whose session files count to the end
        assert ride.transcript.model == "driver-model"
        assert ride.transcript.tokens


@pytest.mark.parametrize("ride", FIRST, indirect=True, ids="-".join)
def test_a_driver_that_is_busy_for_a_while_is_asked_again(ride: SandboxedAgent, tmp_path: Path) -> None:
    busy = WORK.replace("[[step]]", "[[step]]\nfail = {status = 429, times = 2, retry_after = 1}", 1)
    with serve_socket_driver(busy, tmp_path) as script:
        ended = ride.run(script, "Write hi to out.txt.", seconds=240)
        assert (ended.reason, ended.code) == ("exited", 0), ride.cell.log
        assert (ride.cell.workspace / "out.txt").exists()
        assert script.counted == TokenCounts(input=3300, cached=900, output=180)


@pytest.mark.parametrize("ride", GOING_ON, indirect=True, ids="-".join)
def test_a_driver_that_refuses_for_good_is_why_the_program_ended(
    ride: SandboxedAgent, tmp_path: Path
) -> None:
    """mini-swe-agent, which tries for minutes, apart."""
    script = '[[step]]\nfail = {status = 400, times = "always", message = "no such thing"}\nend = "Never."\n'
    with serve_socket_driver(script, tmp_path) as at:
        ended = ride.run(at, "Write hi to out.txt.")
    assert ended.reason == "exited"
    assert ended.code != 0
    assert "no such thing" in ride.transcript.error
