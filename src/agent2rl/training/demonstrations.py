"""Read and write demonstrations: training games that an expert won, as JSON lines.

    for demonstration in read_demonstrations(Path("data/demonstrations.jsonl")):
        print(demonstration.game, demonstration.kind, len(demonstration.turns))

`conversations.encode_demonstrations` turns them into training sequences. A line of the file:

    {"game": "…", "kind": "…", "won": true, "turns": [{"observation": "…", "action": "…"}, …]}

Each turn has an observation and the expert's action after it. The last action wins the game.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError

DEMONSTRATIONS_FILE = "demonstrations.jsonl"
"""The file in a run's data directory; missing in a run without demonstrations."""


class DemonstrationTurn(Record):
    observation: str
    action: str


class Demonstration(Record):
    """One game of an expert."""

    game: str
    kind: str = ""
    """The kind of task, if the task has kinds."""
    won: bool = True
    turns: tuple[DemonstrationTurn, ...]

    @property
    def exchanges(self) -> list[tuple[str, str]]:
        """Pairs of an observation and the action that answered it, as those of a played episode."""
        return [(turn.observation, turn.action) for turn in self.turns]


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Read the demonstrations of a file, or of a data directory; an empty list if it has no such file."""
    file = path / DEMONSTRATIONS_FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        return []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
        return [Demonstration.model_validate_json(line) for line in lines if line]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise UserError(f"Cannot read the demonstrations in {file}: {error}.") from error


def format_demonstrations(demonstrations: Iterable[Demonstration]) -> str:
    return "".join(f"{each.model_dump_json()}\n" for each in demonstrations)
