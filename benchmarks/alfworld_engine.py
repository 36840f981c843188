"""ALFWorld's games in this project's engine and in the official one: the same commands, in one run.

    python -m benchmarks.alfworld_engine DATA/json_2.1.1/valid_seen [--games 10] [--steps 30] [--seed 0]

In each game the official engine plays random ones of the commands that it lists, some nonsense and the
walkthrough; then this engine plays the same. Every text, every list of admissible commands and every victory
is compared, and the exit status tells whether all were equal. Seconds are CPU time of one process.

Needs textworld 1.7.0 and alfworld 0.4.2 (pip install textworld==1.7.0 alfworld==0.4.2), which the project
itself does not.
"""

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs import PddlEnv

from agent2rl.environments.alfworld import AlfworldEpisode, AlfworldGame

NONSENSE = [
    "",
    "think: where is it?",
    "LOOK",
    " look ",
    "go to moon 1",
    "examine",
    "take mug 1",
    "go to  shelf 1",
]

Seen = tuple[str, bool, list[str]]
"""A text, whether the game is won, and what can be done."""


@dataclass
class Clock:
    seconds: float = 0.0
    begun: float = field(default=0.0, repr=False)

    def __enter__(self) -> None:
        self.begun = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self.begun


@dataclass
class Clocks:
    official_reset: Clock = field(default_factory=Clock)
    official: Clock = field(default_factory=Clock)
    reset: Clock = field(default_factory=Clock)
    bare: Clock = field(default_factory=Clock)
    listing: Clock = field(default_factory=Clock)
    """Steps with the list of commands, which the official engine cannot leave out."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--games", type=int, default=10)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30, help="random commands in each game")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = sorted(options.folder.rglob("game.tw-pddl"))[options.skip :][: options.games]
    clocks, steps, mismatches, wins = Clocks(), 0, 0, 0
    for number, file in enumerate(files):
        chance = random.Random(f"{options.seed} {file.parent.name}")
        commands, theirs = official(file, chance, options.steps, number % 2 == 0, clocks)
        ours = this(file, commands, clocks)
        steps += len(commands)
        wins += any(won for _, won, _ in theirs)
        for command, expected, found in zip([None, *commands], theirs, ours, strict=True):
            if expected != found:
                mismatches += 1
                print(f"{file.parent}\n  {command!r}\n  official: {expected}\n  this:     {found}")
    print(f"{len(files)} games, {wins} won at some time, {steps} steps")
    report(clocks, len(files), steps)
    print(f"mismatches: {mismatches}")
    return min(mismatches, 1)


def report(clocks: Clocks, games: int, steps: int) -> None:
    official, listing = steps / clocks.official.seconds, steps / clocks.listing.seconds
    print(f"official engine: {1000 * clocks.official_reset.seconds / games:8.1f} ms to begin a game")
    print(f"this engine:     {1000 * clocks.reset.seconds / games:8.1f} ms")
    print(f"official engine: {official:10,.1f} steps/s, commands listed")
    print(f"this engine:     {listing:10,.1f} steps/s, commands listed: {listing / official:,.0f} times")
    print(f"this engine:     {steps / clocks.bare.seconds:10,.1f} steps/s, commands not asked for")


def official(
    file: Path, chance: random.Random, count: int, walk_first: bool, clocks: Clocks
) -> tuple[list[str], list[Seen]]:
    """Commands, and what the official engine shows before and after each."""
    with clocks.official_reset:
        world = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        world.load(str(file))
        state = world.reset()
    commands: list[str] = []
    seen: list[Seen] = [(state.feedback, state["won"], state["admissible_commands"])]

    def play(command: str) -> None:
        with clocks.official:
            state, _, _ = world.step(command)
        commands.append(command)
        seen.append((state.feedback, state["won"], state["admissible_commands"]))

    def wander() -> None:
        for _ in range(count):
            play(draw(chance, seen[-1][2]))

    def walk() -> None:
        for command in AlfworldGame.load(file).walkthrough:
            play(command)

    for part in (walk, wander) if walk_first else (wander, walk):
        part()
    return commands, seen


def draw(chance: random.Random, admissible: list[str]) -> str:
    """Something to do: now and then nonsense, and more often than not something other than walking."""
    if chance.random() < 0.05:
        return chance.choice(NONSENSE)
    here = [command for command in admissible if not command.startswith("go to ")]
    return chance.choice(here if chance.random() < 0.6 else admissible)


def this(file: Path, commands: list[str], clocks: Clocks) -> list[Seen]:
    """What this engine shows for the same commands."""
    with clocks.reset:
        play = AlfworldEpisode(AlfworldGame.load(file))
    seen: list[Seen] = [(play.observation, play.won, play.commands)]
    with clocks.listing:
        seen += [(play.step(command), play.won, play.commands) for command in commands]
    play = AlfworldEpisode(play.game)
    with clocks.bare:
        for command in commands:
            play.step(command)
    return seen


if __name__ == "__main__":
    sys.exit(main())
