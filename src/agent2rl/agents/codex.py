"""OpenAI's Codex CLI, headless."""

import json
from pathlib import Path

from agent2rl.core.agent import Brief, Driven, Llm, Package, Program
from agent2rl.core.llm import Tokens
from agent2rl.core.sandbox import Command
from agent2rl.core.transcript import Transcript
from agent2rl.store.foreign import Node
from agent2rl.store.transcripts import Notes, from_lines

FLAGS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
KEY = "CODEX_DRIVER_KEY"
PROFILE = 'if [ -n "$VIRTUAL_ENV" ]; then export PATH="$VIRTUAL_ENV/bin:$PATH"; fi\n'
"""It runs commands in login shells, in which the system forgets where Python is."""


def _start(brief: Brief) -> Command:
    start = ("exec", "resume", "--last") if brief.resumed else ("exec",)
    return Command(
        argv=(brief.program("codex"), *start, *FLAGS, "-"),
        environment={**brief.environment, KEY: brief.driver.key},
        files={".codex/config.toml": _config(brief.driver, brief.timeout_ms), ".bash_profile": PROFILE},
        input=brief.prompt,
        interrupt="leader",
    )


def _config(llm: Llm, timeout_ms: int) -> str:
    """It keeps variables that look like secrets from its commands, which need ROLLOUT_KEY: it must not."""
    return f"""\
model = {json.dumps(llm.model)}
model_provider = "agent2rl"
web_search = "disabled"
check_for_update_on_startup = false
background_terminal_max_timeout = {timeout_ms}

[model_providers.agent2rl]
name = "agent2rl"
base_url = "{llm.url}/v1"
env_key = "{KEY}"
wire_api = "responses"

[shell_environment_policy]
inherit = "all"
ignore_default_excludes = true

[analytics]
enabled = false

[feedback]
enabled = false
"""


def _read(log: Path, _: Path) -> Transcript:
    return from_lines("codex", log, _event).transcript()


def _event(event: Node, notes: Notes) -> None:
    match event["type"].text:
        case "thread.started":
            notes.begin()
            notes.session = event["thread_id"].text
        case "item.started" | "item.updated" | "item.completed":
            _item(event["item"], notes)
        case "turn.completed":
            notes.error = ""
            _used(event["usage"], notes)
        case "turn.failed":
            notes.error = event["error"]["message"].text
        case "turn.started" | "error":
            pass  # of an error `turn.failed` tells as well
        case _:
            notes.unread += 1


def _item(item: Node, notes: Notes) -> None:
    """Told when it begins, maybe, and when it ends. A warning is an item of the type `error`."""
    kind, name, done = item["type"].text, item["id"].text, item["status"].text != "in_progress"
    match kind:
        case "error":
            notes.say(notes.turn("system"), item["message"].text)
        case "agent_message":
            notes.say(notes.last("agent"), item["text"].text)
        case "reasoning":
            notes.think(notes.last("agent"), item["text"].text)
        case "command_execution":
            notes.call(notes.last("agent"), name, "shell", Node({"command": item["command"].text}))
            if done:
                notes.observe(name, item["aggregated_output"].text, item["exit_code"].value != 0)
        case _:  # changed files, lists of things to do, tools of servers: each has fields of its own
            notes.call(notes.last("agent"), name, kind, item)
            if done:
                notes.observe(name, item["result"].shown, item["status"].text == "failed")


def _used(usage: Node, notes: Notes) -> None:
    """A thread that is taken up again counts from its first beginning."""
    used = Tokens(
        input=usage["input_tokens"].count,
        cached=usage["cached_input_tokens"].count,
        written=usage["cache_write_input_tokens"].count,
        output=usage["output_tokens"].count,
        reasoning=usage["reasoning_output_tokens"].count,
    )
    notes.count(used, of=notes.session)


AGENT: Driven = Program(
    package=Package("npm", "@openai/codex", "0.166.0", program="codex"),
    wires=("openai-responses",),
    start=_start,
    read=_read,
)
