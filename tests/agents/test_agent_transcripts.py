"""What agents leave is read into one form: from short logs of the real programs, and from anything at all.

The logs in agent_logs/ are of runs with a scripted driver: two commands, an end, and then, started again, one
more command. All were told the same, so the same must come out.
"""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from agent2rl import registry
from agent2rl.analysis.atif import build_trajectory
from agent2rl.core.agent import DrivenAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.self_reports import Transcript, TranscriptStep
from agent2rl.run.agent_install import list_driven_agents

LOGS = Path(__file__).parent / "agent_logs"
STREAMING = ("claude-code", "codex", "gemini-cli", "opencode")
FIRST, SECOND, THIRD = (
    "echo hi > out.txt; id -u; echo $ROLLOUT_KEY",
    "cat out.txt; pwd",
    "echo again >> out.txt; cat out.txt",
)
MINI = Path(".local/share/agent2rl/mini")


def agent(name: str) -> DrivenAgent:
    found = registry.find_agent(name)
    assert isinstance(found, DrivenAgent)
    return found


def read(name: str, log: bytes, place: Path) -> Transcript:
    (place / "log").write_bytes(log)
    return agent(name).transcript(place / "log", place / "home")


def recorded(name: str, place: Path) -> Transcript:
    return read(name, (LOGS / f"{name}.jsonl").read_bytes(), place)


def of_agent(transcript: Transcript) -> list[TranscriptStep]:
    return [step for step in transcript.steps if step.source == "agent"]


@pytest.mark.parametrize("name", STREAMING)
def test_what_was_said_and_done_is_the_same_whoever_did_it(name: str, tmp_path: Path) -> None:
    steps = of_agent(recorded(name, tmp_path))
    assert [step.text for step in steps] == ["Step 1.", "Step 2.", "All done.", "Once more.", "Really done."]
    assert steps[0].reasoning == ("" if name == "gemini-cli" else "Let me see.")  # which does not tell
    commands = [call.shown for step in steps for call in step.calls]
    assert len(commands) == 3
    assert all(asked in given for asked, given in zip((FIRST, SECOND, THIRD), commands, strict=True))
    seen = [observation.text.strip() for step in steps for observation in step.observations]
    assert [text.splitlines()[-1] for text in seen] == ["needed", "/workspace", "again"]
    assert not any(observation.failed for step in steps for observation in step.observations)


@pytest.mark.parametrize("name", STREAMING)
def test_tokens_are_counted_once_over_both_starts(name: str, tmp_path: Path) -> None:
    found = recorded(name, tmp_path).tokens
    assert found is not None
    assert (found.input, found.cached, found.output) == (6000, 2000, 350)
    assert found.reasoning == (0 if name == "claude-code" else 150)  # whose provider does not tell


@pytest.mark.parametrize("name", STREAMING)
def test_a_transcript_says_whose_it_is(name: str, tmp_path: Path) -> None:
    found = recorded(name, tmp_path)
    assert (found.agent, found.version) == (name, agent(name).package.version)
    assert found.session
    assert not found.error


def test_mini_is_read_from_a_trajectory_for_each_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / MINI).mkdir(parents=True)
    for number in range(2):
        sample = (LOGS / f"mini-swe-{number}.json").read_bytes()
        (home / MINI / f"{number}.json").write_bytes(sample)
    found = agent("mini-swe").transcript(tmp_path / "none", home)
    steps = of_agent(found)
    assert [step.text for step in steps] == ["Step 1.", "Step 2.", "All done."] * 2
    assert [call.shown for call in steps[0].calls] == [FIRST]
    assert "needed" in steps[0].observations[0].text
    assert steps[0].reasoning == "Let me see."
    assert steps[0].tokens == TokenCounts(input=1000, cached=200, output=50, reasoning=10)
    assert found.tokens == TokenCounts(input=6600, cached=1800, output=360, reasoning=120)
    assert (found.version, found.error) == ("2.4.6", "")


def test_openhands_is_read_from_its_log_and_its_count_from_what_it_keeps(tmp_path: Path) -> None:
    kept = tmp_path / "home/.openhands/conversations/1234/base_state.json"
    kept.parent.mkdir(parents=True)
    kept.write_bytes((LOGS / "openhands-state.json").read_bytes())
    found = recorded("openhands", tmp_path)
    steps = of_agent(found)
    assert [step.text for step in steps] == ["Step 1.", "Step 2.", "All done.", "Once more.", "Really done."]
    assert [call.name for step in steps for call in step.calls].count("finish") == 2
    commands = [call.shown for step in steps for call in step.calls if call.name == "terminal"]
    assert commands == [FIRST, SECOND, THIRD]
    assert "needed" in steps[0].observations[0].text
    assert found.tokens == TokenCounts(input=6000, cached=2000, output=350, reasoning=150)
    assert (found.session, found.model) == ("1234", "openai/driver-model")


RDAGENT = """\
2026-11-16 10:00:00.000 | INFO     | rdagent.app.rl.loop:main:50 - Starting RL post-training
2026-11-16 10:00:01.000 | INFO     | rdagent.oai.backend.litellm:ask:150 -\x20
\x1b[35m\x1b[1mRole:\x1b[0m\x1b[36msystem\x1b[0m
\x1b[35m\x1b[1mContent:\x1b[0m \x1b[36mYou train models.\x1b[0m

\x1b[35m\x1b[1mRole:\x1b[0m\x1b[36muser\x1b[0m
\x1b[35m\x1b[1mContent:\x1b[0m \x1b[36mWrite main.py.\x1b[0m

\r20% done\r40% done\x1b[A2026-11-16 10:00:02.500 | INFO     | rdagent:ask:170 - \x1b[34massistant:\x1b[0m\x20
for each in range(3):
    print(each)
"""


def test_rd_agent_is_read_from_its_text(tmp_path: Path) -> None:
    found = read("rdagent", RDAGENT.encode(), tmp_path)
    assert [(step.source, step.text) for step in found.steps] == [
        ("system", "Starting RL post-training"),
        ("system", "You train models."),
        ("user", "Write main.py."),
        ("agent", "for each in range(3):\n    print(each)"),
    ]
    assert found.steps[3].at == found.steps[0].at + 2.5 if found.steps[0].at else False


def test_a_link_in_home_is_not_followed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / MINI.parent).mkdir(parents=True)
    (home / MINI).symlink_to(LOGS)
    assert agent("mini-swe").transcript(tmp_path / "none", home).steps == ()
    (home / MINI).unlink()
    (home / MINI).mkdir()
    (home / MINI / "0.json").symlink_to(LOGS / "mini-swe-0.json")
    os.mkfifo(home / MINI / "1.json")
    found = agent("mini-swe").transcript(tmp_path / "none", home)
    assert (found.steps, found.unread) == ((), 2)


def test_claudes_usage_is_the_result_s_and_never_the_placeholders(tmp_path: Path) -> None:
    whole = (LOGS / "claude-code.jsonl").read_bytes().splitlines()
    unfinished = [line for line in whole if b'"type": "result"' not in line]
    assert read("claude-code", b"\n".join(unfinished), tmp_path).tokens is None


def test_claudes_error_that_calls_itself_a_success_is_an_error(tmp_path: Path) -> None:
    line = {"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 400"}
    assert read("claude-code", json.dumps(line).encode(), tmp_path).error == "API Error: 400"


def test_codex_s_warning_is_not_why_it_ended(tmp_path: Path) -> None:
    warned = recorded("codex", tmp_path)
    assert warned.steps[0].source == "system"
    assert not warned.error
    failed = {"type": "turn.failed", "error": {"message": "no such model"}}
    assert read("codex", json.dumps(failed).encode(), tmp_path).error == "no such model"


WHOLE = TokenCounts(input=4500, cached=600, output=150, reasoning=30)
CLAUDE = TokenCounts(input=4500, cached=600, written=900, output=150)
REAL = {
    "claude.stream-json.jsonl": ("claude-code", CLAUDE, ""),
    "claude.partial-messages.jsonl": (
        "claude-code",
        TokenCounts(input=4500, cached=600, written=900, output=150),
        "",
    ),
    "claude.error400.jsonl": ("claude-code", None, "scripted 400"),
    "claude.max-turns.jsonl": (
        "claude-code",
        TokenCounts(input=1500, cached=200, written=300, output=50),
        "max_turns",
    ),
    "codex.exec-json.jsonl": ("codex", WHOLE, ""),
    "codex.error400.jsonl": ("codex", None, "scripted 400"),
    "gemini.stream-json.jsonl": (
        "gemini-cli",
        TokenCounts(input=4500, cached=600, output=180, reasoning=30),
        "",
    ),
    "gemini.error400.jsonl": ("gemini-cli", TokenCounts(), "scripted 400"),
    "opencode.json.jsonl": ("opencode", WHOLE, ""),
    "opencode.error400.jsonl": ("opencode", None, "scripted 400"),
}


@pytest.mark.parametrize("file", REAL)
def test_logs_of_runs_elsewhere_are_read_too(file: str, shared_data: Path, tmp_path: Path) -> None:
    log = shared_data.parent / "fixtures" / "cli-logs" / file
    if not log.is_file():
        pytest.skip("no sample logs beside the task data")
    name, tokens, error = REAL[file]
    found = read(name, log.read_bytes(), tmp_path)
    assert found.tokens == tokens
    assert error in found.error
    assert bool(error) == bool(found.error)


@pytest.mark.parametrize("name", STREAMING)
def test_lines_that_are_not_understood_are_counted_and_hide_nothing(name: str, tmp_path: Path) -> None:
    clean = recorded(name, tmp_path)
    noise = b'\xff\xfe\n{"type": "news"}\n{"half": \n[1, 2]\n\n'
    lines = (LOGS / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    mixed = read(name, noise + b"".join(line + noise for line in lines), tmp_path)
    assert mixed.unread == clean.unread + 4 * (len(lines) + 1)
    assert mixed.model_copy(update={"unread": clean.unread}) == clean


def test_a_call_whose_answer_never_came_is_still_told(tmp_path: Path) -> None:
    lines = (LOGS / "gemini-cli.jsonl").read_bytes().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if b"tool_result" in line)
    step = of_agent(read("gemini-cli", b"".join(lines[:cut]), tmp_path))[-1]
    assert step.calls
    assert not step.observations


def test_a_long_text_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    said = {"type": "message", "role": "assistant", "content": "a" + 10**6 * "b" + "c"}
    [step] = read("gemini-cli", json.dumps(said).encode(), tmp_path).steps
    assert step.text.startswith("a")
    assert step.text.endswith("c")
    assert "left out" in step.text
    assert len(step.text) < 10**5


def test_no_log_at_all_is_an_empty_transcript(tmp_path: Path) -> None:
    for name, each in list_driven_agents().items():
        found = each.transcript(tmp_path / "none", tmp_path / "nowhere")
        assert (found.agent, found.steps, found.tokens) == (name, (), None)


def recorded_events() -> list[JsonValue]:
    streams = [line for name in STREAMING for line in (LOGS / f"{name}.jsonl").read_text().splitlines()]
    return [json.loads(line) for line in streams if line.startswith("{")]


def nodes(value: JsonValue) -> list[JsonValue]:
    """A value and all that is in it."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(each for inner in below for each in nodes(inner))]


EVENTS = recorded_events()
PARTS = [part for event in EVENTS for part in nodes(event)]
KEYS = st.sampled_from(sorted({key for part in PARTS if isinstance(part, dict) for key in part}))
WORDS = st.sampled_from(sorted({part for part in PARTS if isinstance(part, str)}))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A recorded event with something else in some place of it."""
    event = json.loads(json.dumps(draw(st.sampled_from(EVENTS))))
    places = [part for part in nodes(event) if isinstance(part, dict) and part]
    place = draw(st.sampled_from(places))
    place[draw(st.sampled_from(sorted(place)))] = draw(VALUES)
    return json.dumps(event).encode()


@settings(max_examples=40)
@given(log=st.lists(bent() | st.binary(max_size=40), max_size=8).map(b"\n".join))
def test_any_bytes_give_a_transcript(log: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in list_driven_agents():
        found = read(name, log, tmp_path_factory.getbasetemp())
        assert Transcript.model_validate_json(found.model_dump_json()) == found
        assert build_trajectory(found, "run").json_text.encode()


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 10**6,
        b'{"type":' * 10**5,
        b'{"type": "message", "content": %s}' % (b"9" * 5000),
        b'{"type": "message", "content": "\\ud800"}',
        b'{"type": "message", "timestamp": 1e400, "content": NaN}',
        b'{"type": "message", "role": "assistant", "content": "%s"}' % (b"x" * (9 << 20)),
    ],
    ids=["deep", "deep and named", "a huge number", "half a character", "no number", "a huge line"],
)
def test_a_line_that_no_honest_program_writes_does_no_harm(line: bytes, tmp_path: Path) -> None:
    for name in list_driven_agents():
        assert read(name, line, tmp_path).model_dump_json()
