"""The session files that agents keep in HOME: Codex's rollouts, Claude Code's sessions.

A program that is killed prints no usage, and Codex prints no model at all. Its session file has both. The
rows here have the form that the pinned programs write.
"""

import json
from pathlib import Path

from agent2rl.core.llm import TokenCounts
from agent2rl.core.self_reports import Transcript
from tests.agents.test_agent_transcripts import agent, of_agent, read

THREAD = "01a1dc97-baf0-7333-b136-217bebb78b0e"
ROLLOUT = Path(f".codex/sessions/2026/11/18/rollout-2026-11-18T10-57-26-{THREAD}.jsonl")
SESSION = Path(".claude/projects/-workspace/1cf17d49-d466-4d48-ae94-c3ae0590ccd5.jsonl")

Row = dict[str, object]


def lines(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def keep(rows: list[Row], place: Path, name: Path) -> None:
    """Write a session file below HOME."""
    file = place / "home" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lines(rows))


# Codex


def rollout_row(kind: str, **payload: object) -> Row:
    return {"timestamp": "2026-11-18T10:57:26.972Z", "type": kind, "payload": payload}


def codex_usage(input_tokens: int, cached: int, output: int) -> Row:
    return {
        "input_tokens": input_tokens,
        "cached_input_tokens": cached,
        "cache_write_input_tokens": 0,
        "output_tokens": output,
        "reasoning_output_tokens": 10,
    }


def rollout() -> list[Row]:
    """A thread with one command that succeeds, one that fails, and an end."""
    called = "Chunk ID: 7ee9b0\nWall time: 0.1 seconds\nProcess exited with code {}\nOutput:\n{}"
    return [
        rollout_row("session_meta", id=THREAD, cli_version="0.166.0", cwd="/workspace"),
        rollout_row("event_msg", type="task_started", turn_id="1"),
        rollout_row(
            "response_item",
            type="message",
            role="developer",
            content=[{"type": "input_text", "text": "Rules."}],
        ),
        rollout_row("turn_context", model="driver-model", cwd="/workspace"),
        rollout_row(
            "response_item", type="message", role="user", content=[{"type": "input_text", "text": "Write."}]
        ),
        rollout_row(
            "response_item", type="reasoning", summary=[{"type": "summary_text", "text": "Let me see."}]
        ),
        rollout_row(
            "response_item",
            type="message",
            role="assistant",
            content=[{"type": "output_text", "text": "Step 1."}],
        ),
        rollout_row(
            "response_item",
            type="function_call",
            name="exec_command",
            arguments='{"cmd": "echo hi", "login": false}',
            call_id="call_1",
        ),
        rollout_row("token_usage_record", thread_id=THREAD, thread_token_usage=codex_usage(1000, 200, 50)),
        rollout_row(
            "response_item",
            type="function_call_output",
            call_id="call_1",
            output=called.format(0, "hi\n"),
        ),
        rollout_row("event_msg", type="token_count", info={"total_token_usage": codex_usage(1000, 200, 50)}),
        rollout_row(
            "response_item",
            type="function_call",
            name="exec_command",
            arguments='{"cmd": "false"}',
            call_id="call_2",
        ),
        rollout_row(
            "response_item", type="function_call_output", call_id="call_2", output=called.format(1, "")
        ),
        rollout_row("event_msg", type="token_count", info={"total_token_usage": codex_usage(2100, 500, 110)}),
        rollout_row("event_msg", type="token_count", info=None, rate_limits={}),
        rollout_row(
            "response_item",
            type="message",
            role="assistant",
            content=[{"type": "output_text", "text": "All done."}],
        ),
        rollout_row("event_msg", type="task_complete", last_agent_message="All done."),
    ]


WHOLE_ROLLOUT = TokenCounts(input=2100, cached=500, output=110, reasoning=10)


def check_rollout(found: Transcript) -> None:
    assert [(step.source, step.text) for step in found.steps] == [
        ("system", "Rules."),
        ("user", "Write."),
        ("agent", "Step 1."),
        ("agent", ""),
        ("agent", "All done."),
    ]
    first, second, _ = of_agent(found)
    assert first.reasoning == "Let me see."
    assert first.at is not None
    assert [call.shown for step in (first, second) for call in step.calls] == ["echo hi", "false"]
    assert first.observations[0].text.endswith("hi\n")
    assert [step.observations[0].failed for step in (first, second)] == [False, True]
    assert (found.model, found.session, found.version) == ("driver-model", THREAD, "0.166.0")
    assert found.tokens == WHOLE_ROLLOUT
    assert (found.error, found.unread) == ("", 0)


def test_a_rollout_file_is_read_like_a_log(tmp_path: Path) -> None:
    check_rollout(read("codex", lines(rollout()), tmp_path))


def test_a_rollout_in_home_stands_in_for_a_log_that_says_nothing(tmp_path: Path) -> None:
    keep(rollout(), tmp_path, ROLLOUT)
    check_rollout(agent("codex").transcript(tmp_path / "none", tmp_path / "home"))


def test_a_rollout_gives_the_model_and_the_tokens_of_a_codex_that_was_killed(tmp_path: Path) -> None:
    keep(rollout()[:-3], tmp_path, ROLLOUT)
    log: list[Row] = [
        {"type": "thread.started", "thread_id": THREAD},
        {"type": "turn.started"},
        {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "Step 1."}},
    ]
    found = read("codex", lines(log), tmp_path)
    assert [step.text for step in found.steps] == ["Step 1."]
    assert (found.model, found.tokens) == ("driver-model", WHOLE_ROLLOUT)


def test_a_thread_is_not_counted_in_its_log_and_in_its_rollout(tmp_path: Path) -> None:
    keep(rollout(), tmp_path, ROLLOUT)
    log: list[Row] = [
        {"type": "thread.started", "thread_id": THREAD},
        {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "Step 1."}},
        {"type": "turn.completed", "usage": codex_usage(2100, 500, 110)},
    ]
    assert read("codex", lines(log), tmp_path).tokens == WHOLE_ROLLOUT


def test_two_threads_are_added_up(tmp_path: Path) -> None:
    other = json.loads(json.dumps(rollout()).replace(THREAD, "another"))
    keep(rollout(), tmp_path, ROLLOUT)
    keep(other, tmp_path, ROLLOUT.with_name("rollout-another.jsonl"))
    found = agent("codex").transcript(tmp_path / "none", tmp_path / "home")
    assert found.tokens == WHOLE_ROLLOUT + WHOLE_ROLLOUT


def test_a_rollout_says_why_its_turn_failed(tmp_path: Path) -> None:
    failed = rollout_row("event_msg", type="task_complete", error={"message": "no such model"})
    assert read("codex", lines([*rollout()[:5], failed]), tmp_path).error == "no such model"


def test_other_calls_of_a_rollout_are_read_too(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** End Patch"
    rows = [
        rollout_row(
            "response_item",
            type="custom_tool_call",
            name="apply_patch",
            input=patch,
            call_id="call_1",
            status="completed",
        ),
        rollout_row(
            "response_item",
            type="custom_tool_call_output",
            call_id="call_1",
            output=json.dumps({"output": "Success.", "metadata": {"exit_code": 1}}),
        ),
        rollout_row(
            "response_item",
            type="function_call",
            name="shell",
            arguments=json.dumps({"command": ["bash", "-lc", "echo 'a b'"]}),
            call_id="call_2",
        ),
        rollout_row("response_item", type="ghost_snapshot"),
        rollout_row("compacted", message="Earlier work."),
        rollout_row("news"),
    ]
    found = read("codex", lines(rows), tmp_path)
    patched, shell = of_agent(found)
    assert patched.calls[0].arguments == patch
    assert patched.observations[0].failed
    assert shell.calls[0].shown == """bash -lc 'echo '"'"'a b'"'"''"""
    assert found.unread == 2


# Claude Code


def claude_usage(fresh: int, cached: int, output: int) -> Row:
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def session_row(kind: str, **fields: object) -> Row:
    return {
        "type": kind,
        "sessionId": SESSION.stem,
        "version": "2.1.197",
        "timestamp": "2026-11-18T10:57:23.969Z",
        "isSidechain": False,
        **fields,
    }


def answer(key: str, content: Row, usage: Row, model: str = "driver-model") -> Row:
    message = {"id": key, "role": "assistant", "model": model, "content": [content], "usage": usage}
    return session_row("assistant", message=message)


def session() -> list[Row]:
    """A session with one command and an end; each part of an answer repeats the answer's usage."""
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "hi", "is_error": False}
    call: Row = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "echo hi"}}
    return [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION.stem, "content": "Write."},
        session_row("user", message={"role": "user", "content": "Write."}),
        session_row("attachment", attachment={"type": "skill_listing"}),
        answer("msg_1", {"type": "text", "text": "Step 1."}, claude_usage(800, 200, 1)),
        answer("msg_1", call, claude_usage(800, 200, 50)),
        session_row("user", message={"role": "user", "content": [result]}),
        answer("msg_2", {"type": "text", "text": "All done."}, claude_usage(800, 300, 60)),
        {"type": "last-prompt", "lastPrompt": "Write.", "sessionId": SESSION.stem},
        {"type": "summary", "summary": "Writing", "leafUuid": "1"},
    ]


WHOLE_SESSION = TokenCounts(input=2100, cached=500, output=110)


def check_session(found: Transcript) -> None:
    assert [(step.source, step.text) for step in found.steps] == [
        ("user", "Write."),
        ("agent", "Step 1."),
        ("agent", "All done."),
    ]
    first, last = of_agent(found)
    assert first.observations[0].text == "hi"
    assert first.at is not None
    assert (first.tokens, last.tokens) == (
        TokenCounts(input=1000, cached=200, output=50),
        TokenCounts(input=1100, cached=300, output=60),
    )
    assert (found.model, found.version, found.session) == ("driver-model", "2.1.197", SESSION.stem)
    assert found.tokens == WHOLE_SESSION
    assert (found.error, found.unread) == ("", 0)


def test_a_session_file_gives_the_model_and_counts_each_answer_once(tmp_path: Path) -> None:
    check_session(read("claude-code", lines(session()), tmp_path))


def test_a_session_in_home_stands_in_for_a_log_that_says_nothing(tmp_path: Path) -> None:
    keep(session(), tmp_path, SESSION)
    check_session(agent("claude-code").transcript(tmp_path / "none", tmp_path / "home"))


def test_a_session_gives_the_tokens_of_a_claude_that_was_killed(tmp_path: Path) -> None:
    keep(session(), tmp_path, SESSION)
    assert read("claude-code", lines(printed(2)[:-1]), tmp_path).tokens == WHOLE_SESSION


def test_the_subagents_of_a_session_are_counted(tmp_path: Path) -> None:
    keep(session(), tmp_path, SESSION)
    helper = answer("msg_3", {"type": "text", "text": "Seen."}, claude_usage(10, 0, 5))
    keep([helper], tmp_path, SESSION.with_suffix("") / "subagents" / "agent-1.jsonl")
    found = agent("claude-code").transcript(tmp_path / "none", tmp_path / "home")
    assert found.tokens == WHOLE_SESSION + TokenCounts(input=10, output=5)


def test_a_provider_s_error_in_a_session_is_why_it_ended(tmp_path: Path) -> None:
    error = answer(
        "msg_4", {"type": "text", "text": "API Error: 400"}, claude_usage(0, 0, 0), model="<synthetic>"
    )
    found = read("claude-code", lines([*session()[:2], {**error, "isApiErrorMessage": True}]), tmp_path)
    assert (found.error, found.model, found.tokens) == ("API Error: 400", "", None)


# What Claude Code prints: `modelUsage` is the running total of a process, `usage` is that of a turn.


def printed(number: int, *results: Row) -> list[Row]:
    """The start of a turn, and its result."""
    said = {"id": f"msg_p{number}", "content": [{"type": "text", "text": f"Turn {number}."}]}
    return [
        {"type": "system", "subtype": "init", "session_id": SESSION.stem, "model": "driver-model"},
        {"type": "assistant", "message": said},
        *(results or ({"type": "result", "subtype": "success"},)),
    ]


def result(turn: tuple[int, int, int], process: tuple[int, int, int]) -> Row:
    fresh, cached, output = process
    used = {
        "inputTokens": fresh,
        "cacheReadInputTokens": cached,
        "cacheCreationInputTokens": 0,
        "outputTokens": output,
    }
    return {
        "type": "result",
        "subtype": "success",
        "usage": claude_usage(*turn),
        "modelUsage": {"driver-model": used},
    }


def test_several_results_of_one_process_are_a_running_total(tmp_path: Path) -> None:
    """Each turn of a process begins with `init`, as a new process does."""
    log = [
        *printed(1, result((1600, 600, 120), (1600, 600, 120))),
        *printed(2, result((1600, 1100, 170), (3200, 1700, 290))),
    ]
    assert read("claude-code", lines(log), tmp_path).tokens == TokenCounts(
        input=4900, cached=1700, output=290
    )


def test_a_process_that_used_more_than_the_one_before_is_added_to_it(tmp_path: Path) -> None:
    log = [
        *printed(1, result((800, 200, 50), (800, 200, 50))),
        *printed(2, result((1600, 1100, 170), (1600, 1100, 170))),
        *printed(3, result((800, 100, 10), (2400, 1200, 180))),
    ]
    assert read("claude-code", lines(log), tmp_path).tokens == TokenCounts(
        input=4600, cached=1400, output=230
    )


def test_a_process_that_used_less_than_the_one_before_is_added_to_it(tmp_path: Path) -> None:
    log = [
        *printed(1, result((1600, 1100, 170), (1600, 1100, 170))),
        *printed(2, result((800, 200, 50), (800, 200, 50))),
    ]
    assert read("claude-code", lines(log), tmp_path).tokens == TokenCounts(
        input=3700, cached=1300, output=220
    )


def test_subagents_are_in_the_running_total_and_not_in_the_turn(tmp_path: Path) -> None:
    log = [
        *printed(1, result((800, 200, 50), (1800, 200, 90))),
        *printed(2, result((800, 300, 60), (3600, 500, 200))),
    ]
    assert read("claude-code", lines(log), tmp_path).tokens == TokenCounts(input=4100, cached=500, output=200)


# What an agent leaves in HOME is not trusted.


def test_links_to_session_files_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    keep(rollout(), outside, ROLLOUT)
    keep(session(), outside, SESSION)
    home = tmp_path / "home"
    for folder in (".codex", ".claude"):
        home.mkdir(exist_ok=True)
        (home / folder).symlink_to(outside / "home" / folder)
    for name in ("codex", "claude-code"):
        assert agent(name).transcript(tmp_path / "none", home).steps == ()


def test_endless_folders_of_session_files_are_cut_off(tmp_path: Path) -> None:
    for number in range(600):
        keep(
            [rollout_row("session_meta", id=str(number))],
            tmp_path,
            ROLLOUT.with_name(f"rollout-{number}.jsonl"),
        )
    assert agent("codex").transcript(tmp_path / "none", tmp_path / "home").unread
