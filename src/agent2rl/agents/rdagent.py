"""Microsoft's RD-Agent: its own loop for RL post-training, which takes no prompt."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.core.agent import Brief, Driven, Package, Program
from agent2rl.core.sandbox import Command
from agent2rl.core.transcript import Transcript
from agent2rl.store import foreign
from agent2rl.store.foreign import Node
from agent2rl.store.transcripts import Notes

LAUNCHER = ".config/agent2rl/launch.py"
START = f'cd && exec "$0" ~/{LAUNCHER} --base-model "$BASE_MODEL" --benchmark "$TASK"'
"""At HOME, because it litters: logs, caches and workspaces of its own."""
LAUNCH = """\
# As it was published, the scenario of this loop lacks two methods, and cannot be made.
import typer
from rdagent.app.rl.loop import main
from rdagent.scenarios.rl.scen.scenario import RLPostTrainingScen as Scenario

Scenario.get_scenario_all_desc = lambda self, *_, **__: self.background
Scenario.rich_style_description = property(lambda self: self.background)
Scenario.__abstractmethods__ = frozenset()
typer.run(main)
"""
SETTINGS = {
    "CHAT_STREAM": "False",  # in a stream it does not ask for the count of tokens
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
HEAD = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \| \w+ +\| \S+ - (?P<text>.*)")
STEERING = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
MESSAGE = re.compile(r"^Role:(?P<role>\w+)\nContent: ", re.M)


def _start(brief: Brief) -> Command:
    model, url = brief.driver.litellm
    return Command(
        argv=("sh", "-c", START, brief.program("agent")),
        environment={
            **brief.environment,
            **SETTINGS,
            "CHAT_MODEL": model,
            "OPENAI_API_BASE": url,
            "OPENAI_API_KEY": brief.driver.key,
        },
        files={LAUNCHER: LAUNCH},
        interrupt="leader",
    )


def _read(log: Path, _: Path) -> Transcript:
    """From what it prints. What it keeps are pickles, which run whatever their writer likes."""
    notes = Notes("rdagent")
    for entry in _entries(log):
        text = "\n".join(entry.lines).strip()
        if text.startswith("assistant:"):
            notes.say(notes.turn("agent", at=entry.at), text.partition("\n")[2])
        elif MESSAGE.match(text):
            told = MESSAGE.split(text)[1:]
            for role, content in zip(told[::2], told[1::2], strict=True):
                notes.say(notes.turn("user" if role == "user" else "system", at=entry.at), content.strip())
        else:
            notes.say(notes.turn("system", at=entry.at), text)
    return notes.transcript()


@dataclass
class Entry:
    at: float | None
    lines: list[str] = field(default_factory=list)


def _entries(log: Path) -> Iterator[Entry]:
    """Of its log: a line that says when and where, and the lines up to the next one."""
    entry = Entry(None)
    for line in foreign.lines(log):
        shown = line.decode(errors="replace").rpartition("\r")[2]  # of a progress bar, what was written last
        text = STEERING.sub("", shown)
        head = HEAD.search(text)
        if head:
            if entry.lines:
                yield entry
            entry = Entry(Node(head["time"]).when)
        entry.lines.append(head["text"] if head else text)
    if entry.lines:
        yield entry


AGENT: Driven = Program(
    package=Package(
        "pypi", "rdagent", "1.0.0", program="agent", probe=("-m", "rdagent.app.rl.loop", "--help")
    ),
    wires=("openai-chat",),
    start=_start,
    read=_read,
)
