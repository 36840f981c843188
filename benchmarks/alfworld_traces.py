"""What the official engine shows in generated homes, written down for tests/tasks/test_alfworld_mini.py.

    python -m benchmarks.alfworld_traces tests/tasks/alfworld_mini_traces.jsonl.xz

A line is a home, by level, split and number, with a hash of its file, so that a changed generator is told
from a broken engine; for each step it has the command, the text, all admissible commands and whether the game
is won. Commands are random ones of those listed, some nonsense, and the walkthrough before or after these. To
be run again whenever the homes or their words change.

Needs textworld 1.7.0 and alfworld 0.4.2, as benchmarks/alfworld_engine.py does.
"""

import argparse
import hashlib
import json
import lzma
import random
import tempfile
from pathlib import Path
from typing import get_args

from agent2rl.tasks.alfworld.homes import generate_homes
from agent2rl.tasks.alfworld.layout import LEVELS, Part
from benchmarks.alfworld_engine import Clocks, official

LEVELS_PLAYED = ("easy", "hard")
STEPS = 24
"""Random commands in each home."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with lzma.open(out, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as lines:
        for level in LEVELS_PLAYED:
            for split in get_args(Part):
                for number in range(len(LEVELS[level].list_task_types(split))):
                    lines.write(json.dumps(trace(level, split, number)) + "\n")
                    print(level, split, number, flush=True)


def trace(level: str, split: Part, number: int) -> dict[str, object]:
    home = generate_homes(split, number + 1, LEVELS[level])[number]
    written = json.dumps(home.data).encode()
    chance = random.Random(f"{level} {split} {number}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "game.tw-pddl"
        file.write_bytes(written)
        commands, seen = official(file, chance, STEPS, number % 2 == 0, Clocks())
    steps = [
        {"command": command, "text": text, "admissible": admissible, "won": won}
        for command, (text, won, admissible) in zip([None, *commands], seen, strict=True)
    ]
    return {
        "level": level,
        "split": split,
        "number": number,
        "id": home.id,
        "sha256": hashlib.sha256(written).hexdigest(),
        "steps": steps,
    }


if __name__ == "__main__":
    main()
