"""Playing a task in the terminal: what is typed, what is told, what it is worth."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent2rl.cli.play import play_command
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.search import LocalCorpus, SearchDocument, SearchEnvironment
from agent2rl.play.game import HumanGame, find_game_number, list_actions
from agent2rl.play.terminal import complete_line, play_in_terminal
from agent2rl.run.task_data import open_training_world
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_worlds import STAIRS_WORLD
from tests.helpers.waiting import wait_until
from tests.play.alfworld_few_games import GAME_COUNT

ROOT = Path(__file__).resolve().parents[2]
FEW = "tests.play.alfworld_few_games:TASK"
QUESTION = Example("one", "Who founded Orin Foods?", "Ada Lorn", {"answer_type": "Single Answer", "steps": 4})
LIBRARY = LocalCorpus([SearchDocument("orin", "Orin Foods", "Orin Foods was founded by Ada Lorn.")])
RESEARCH = World((QUESTION,), lambda: SearchEnvironment(lambda _: LIBRARY))


@pytest.fixture(scope="module")
def homes() -> Iterator[World]:
    with open_training_world(FEW, None) as (_, world):
        yield world


def told(world: World, *lines: str, about: str = "") -> str:
    """All that somebody reads who types these lines."""
    texts: list[str] = []
    play_in_terminal(HumanGame(world), about, lines, lambda text, _: texts.append(text))
    return "\n".join(texts)


def test_a_game_of_the_shop_is_played_through_a_pipe(launcher: RunLauncher) -> None:
    with open_training_world("webshop-mini", None) as (_, world):
        example, games = world.games[6], len(world.games)
    typed = f"\n{example.target}\nagain\nsearch[\udcff]\ncommands\n"
    done = subprocess.run(
        launcher.command("play", "webshop-mini", "--terminal", "--episode", "7"),
        input=typed.encode(errors="surrogateescape"),
        capture_output=True,
        check=False,
        cwd=launcher.home,
        env=launcher.environment(),
        timeout=600,
    )
    said = done.stdout.decode()
    assert (done.returncode, done.stderr.decode()) == (0, "loading webshop-mini\n")
    assert said.count(f"Training game 7 of {games}: {example.id}, {example.meta['steps']} steps\n") == 2
    assert said.count(example.prompt) == 2
    assert f"Won. Reward 1 after {len(example.target.splitlines())} steps. Type again, next or quit." in said
    assert said.endswith("> commands\nclick[back to search]\nclick[next >]\n\n")
    assert "\x1b" not in said


def test_whoever_does_what_the_expert_says_wins(homes: World) -> None:
    for number in range(1, GAME_COUNT + 1):
        game = HumanGame(homes, number)
        game.take_action("go to narnia 1")
        game.take_action(next(one for one in game.list_commands() if one.startswith("go to")))
        while not game.over:
            game.take_action(game.ask_expert())
        assert (game.now.won, game.reward) == (True, 1)
        assert game.outcome() == f"Won. Reward 1 after {game.steps} steps."


def test_what_is_told_is_what_a_model_reads(homes: World) -> None:
    said = told(homes, "commands", "> help", "look", "nonsense", "expert", "answer")
    game = homes.games[0]
    assert said.startswith(f"Training game 1 of {GAME_COUNT}: {game.id}, 20 steps\n\n{game.prompt}\n")
    assert "\n> help\ninventory\nlook\n" in said  # a command that is one of the words needs the mark
    assert "You can go to, open, close" in said
    assert "You are in a room. You see nothing.\n\nNothing happens.\n" in said
    assert "The expert would say: go to" in said
    assert said.endswith(f"{game.target}\n")


def test_help_lists_the_actions_as_they_are_written(homes: World) -> None:
    said = told(homes, "help")
    assert "take <thing> from <place>   Take a thing. You can hold one only.\n" in said
    assert "commands  list the actions that are possible now" in said
    assert told(replace(STAIRS_WORLD, tools=()), "help", about="Climb.\n").count("Climb.\n") == 1


def test_actions_that_take_more_than_texts_are_shown_as_calls() -> None:
    def jump(far: int) -> str:
        """Jump."""
        return f"jump {far}"

    assert list_actions(replace(STAIRS_WORLD, tools=(jump,))) == [("jump(far)", "Jump.")]


def test_after_the_end_there_are_other_games(homes: World) -> None:
    said = told(STAIRS_WORLD, "up", "up", "again", "jump", "next", *["wait"] * 6, "quit", "up")
    assert "Won. Reward 1 after 1 step. Type again, next or quit." in said
    assert "The game is over. Play it again, or the next one." in said
    assert "Over, not won. Reward 0 after 1 step." in said
    assert "Training game 2 of 8: stairs-2\n" in said
    assert said.endswith("Out of steps, not won. Reward 0 after 6 steps. Type again, next or quit.\n")
    last = HumanGame(homes, GAME_COUNT)
    last.begin_game(last.number + 1)
    assert last.number == 1


def test_any_world_can_be_played_to_the_end() -> None:
    asked = ("commands", "expert", "search[Orin Foods]", "commands", "open[1]", "answer[Ada Lorn]")
    said = told(RESEARCH, *asked)
    assert "No actions to list now. Type help for the kinds of actions." in said
    assert "This world has no expert." in said
    assert "\nopen[1]\n" in said
    assert "Orin Foods was founded by Ada Lorn." in said
    assert "Won. Reward 1 after 3 steps." in said


def test_an_expert_that_cannot_follow_says_so() -> None:
    game = HumanGame(STAIRS_WORLD, 5)
    game.take_action(game.ask_expert())
    assert game.ask_expert() == "up"
    game.take_action("wait")
    with pytest.raises(UserError, match=r"cannot continue .* You said 'wait', it would have said 'up'"):
        game.ask_expert()


def test_a_line_that_is_begun_can_be_completed(homes: World) -> None:
    game = HumanGame(homes)
    assert complete_line(game, "ex") == ["expert"]
    assert complete_line(game, "go to ") == [one for one in game.list_commands() if one.startswith("go to ")]


def test_games_are_named_by_number_or_id() -> None:
    assert [find_game_number(STAIRS_WORLD, name) for name in (None, "3", "stairs-8")] == [1, 3, 8]
    for wrong in ("0", "9", "-1", "feedback-0001", "x" * 999):
        with pytest.raises(UserError, match=r"numbered from 1 to 8.*held-out games cannot be played"):
            find_game_number(STAIRS_WORLD, wrong)
    with pytest.raises(UserError, match="no training games"):
        find_game_number(replace(STAIRS_WORLD, games=()), None)


def test_a_task_without_a_world_names_those_that_have_one() -> None:
    with (
        pytest.raises(UserError, match=r"no world to play in.*alfworld, alfworld-mini.*webshop-mini"),
        open_training_world("gsm8k-mini", None),
    ):
        pass


def test_the_help_says_that_only_training_games_are_played() -> None:
    said = CliRunner().invoke(play_command, ["--help"]).output
    assert "training games only, never feedback or held-out games" in said


def read(terminal: int, until: bytes) -> bytes:
    """What a terminal shows, up to a text or to its end."""
    seen = b""
    with suppress(OSError):  # how a terminal says that nobody writes to it any more
        while not seen.endswith(until):
            seen += os.read(terminal, 4096)
    return seen


def wait_until_asleep(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process waits for input: it sleeps and uses no CPU time.

    Python overlooks a signal that arrives just before it waits for a line.
    """
    last, same = "", 0

    def is_asleep() -> bool:
        nonlocal last, same
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        now = " ".join((fields[0], *fields[11:13]))  # state, user time, system time
        same = same + 1 if now == last and fields[0] == "S" else 0
        last = now
        return same >= 10

    wait_until(is_asleep)


@pytest.mark.parametrize("ending", ["end of input", "interrupt"])
def test_a_person_leaves_quietly(launcher: RunLauncher, ending: str) -> None:
    person, terminal = pty.openpty()
    playing = subprocess.Popen(
        launcher.command("play", FEW),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=launcher.home,
        env=launcher.environment(PYTHONPATH=str(ROOT), TERM="dumb"),
    )
    os.close(terminal)
    try:
        begun = read(person, until=b"> ")
        os.write(person, b"look\n")
        looked = read(person, until=b"> ")
        if ending == "interrupt":
            wait_until_asleep(playing)
            playing.send_signal(signal.SIGINT)
        else:
            os.write(person, b"\x04")
        left = read(person, until=b"nothing more")
        assert playing.wait(timeout=120) == 0
    finally:
        playing.kill()
        playing.wait()
        os.close(person)
    assert b"Type an action" in begun
    assert b"You see nothing.\r\n\r\n> " in looked
    assert left.strip() in (b"", b"^D")
