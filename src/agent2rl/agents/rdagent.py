"""Microsoft's RD-Agent: its own loop for RL post-training, which takes no prompt."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record import untrusted_files
from agent2rl.record.transcript_builder import TranscriptBuilder
from agent2rl.record.untrusted_files import JsonNode

LAUNCHER = ".config/agent2rl/launch.py"
START = f'cd && exec "$0" ~/{LAUNCHER} --base-model "$BASE_MODEL" --benchmark "$TASK"'
"""In HOME, because it writes logs, caches and workspaces to the current directory."""
LAUNCH = """\
# In the published version the scenario class of this loop lacks two methods and cannot be instantiated.
import typer
from rdagent.app.rl.loop import main
from rdagent.scenarios.rl.scen.scenario import RLPostTrainingScen as Scenario

Scenario.get_scenario_all_desc = lambda self, *_, **__: self.background
Scenario.rich_style_description = property(lambda self: self.background)
Scenario.__abstractmethods__ = frozenset()
typer.run(main)
"""
SETTINGS = {
    "CHAT_STREAM": "False",  # in a stream it does not request token counts
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
HEAD = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \| \w+ +\| \S+ - (?P<text>.*)")
STEERING = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
MESSAGE = re.compile(r"^Role:(?P<role>\w+)\nContent: ", re.M)


def _build_command(brief: Brief) -> Command:
    model, url = brief.driver.litellm
    return Command(
        argv=("sh", "-c", START, brief.program_path("agent")),
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


def _read_transcript(log: Path, _: Path) -> Transcript:
    """Read its output. Its own files are pickles, which could run any code."""
    notes = TranscriptBuilder("rdagent")
    for entry in _read_log_entries(log):
        text = "\n".join(entry.lines).strip()
        if text.startswith("assistant:"):
            notes.add_text(notes.open_step("agent", at=entry.at), text.partition("\n")[2])
        elif MESSAGE.match(text):
            parts = MESSAGE.split(text)[1:]
            for role, content in zip(parts[::2], parts[1::2], strict=True):
                notes.add_text(
                    notes.open_step("user" if role == "user" else "system", at=entry.at), content.strip()
                )
        else:
            notes.add_text(notes.open_step("system", at=entry.at), text)
    return notes.build_transcript()


@dataclass
class RdAgentLogEntry:
    at: float | None
    lines: list[str] = field(default_factory=list)


def _read_log_entries(log: Path) -> Iterator[RdAgentLogEntry]:
    """Yield log entries: a line with time and location, and the lines up to the next one."""
    entry = RdAgentLogEntry(None)
    for line in untrusted_files.read_lines(log):
        shown = line.decode(errors="replace").rpartition("\r")[2]  # the last state of a progress bar
        text = STEERING.sub("", shown)
        head = HEAD.search(text)
        if head:
            if entry.lines:
                yield entry
            entry = RdAgentLogEntry(JsonNode(head["time"]).when)
        entry.lines.append(head["text"] if head else text)
    if entry.lines:
        yield entry


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage(
        "pypi", "rdagent", "1.0.0", program="agent", probe=("-m", "rdagent.app.rl.loop", "--help")
    ),
    wires=("openai-chat",),
    start=_build_command,
    read=_read_transcript,
)
