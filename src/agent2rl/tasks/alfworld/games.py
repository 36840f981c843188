"""Official games as examples: found in a folder of the official layout, or downloaded from the release.

    json_2.1.1/<split>/<task>/<trial>/game.tw-pddl

An example that scores carries its game with it (82 KB); one for training names it, and the folder is shown.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits
from agent2rl.environments.alfworld import AlfworldEpisode, AlfworldGame
from agent2rl.environments.alfworld.environment import GAME_FILE, STEPS
from agent2rl.environments.alfworld.world import GAMES
from agent2rl.evaluators.release_archive import fetch_archive

RELEASE = "https://github.com/alfworld/alfworld/releases/download/0.4.0/json_2.1.2_tw-pddl.zip"
FOLDER = "json_2.1.1"
HOME = Path("~/.cache/alfworld")
"""Where ALFWorld's own download puts them, so that neither is done twice."""
TRAIN, SEEN, UNSEEN = "train", "valid_seen", "valid_unseen"


def find_games_root(data_dir: Path | None) -> Path:
    """The folder that holds the splits."""
    if data_dir is None:
        return fetch_archive(RELEASE, HOME.expanduser(), FOLDER, f"*/{GAME_FILE}")
    found = data_dir / FOLDER if (data_dir / FOLDER).is_dir() else data_dir
    for split in (TRAIN, SEEN, UNSEEN):
        if not (found / split).is_dir():
            raise UserError(
                f"There is no {split} in {found}.",
                f"--data-dir wants the official {FOLDER} with {TRAIN}, {SEEN} and {UNSEEN}.",
            )
    return found


def load_training_examples(folder: Path) -> tuple[Example, ...]:
    return tuple(build_example(data, name) for name, data in _iterate_games(folder))


def load_scoring_examples(folder: Path) -> tuple[Example, ...]:
    return tuple(attach_game(build_example(data, name), data) for name, data in _iterate_games(folder))


def build_example(data: Mapping[str, JsonValue], name: str, steps: int = STEPS) -> Example:
    """A game as an example: it asks with what is seen first, and commands that win are its answer."""
    try:
        game = AlfworldGame.from_data(data, name)
    except UserError as error:  # which does not say which of thousands
        raise UserError(f"{name}: {error.message}", error.hint) from error
    if not game.walkthrough:
        raise UserError(f"The game {name!r} has no walkthrough.", "Use the games of the official release.")
    problem = json.dumps([data["pddl_problem"], game.task])
    return Example(
        id=name,
        prompt=AlfworldEpisode(game).observation,
        target="\n".join(game.walkthrough),
        meta={
            "task_type": game.task_type,
            "steps": steps,
            "sha256": hashlib.sha256(problem.encode()).hexdigest(),
        },
    )


def attach_game(one: Example, data: Mapping[str, JsonValue]) -> Example:
    return replace(one, meta={**one.meta, "game": dict(data)})


def withhold_walkthroughs(splits: Splits) -> Splits:
    """The training games without the commands that win them."""
    shown = splits.folders[GAMES]

    def write(place: Path) -> None:
        if not isinstance(shown, Path):
            shown(place)
        for name, data in _iterate_games(shown if isinstance(shown, Path) else place):
            write_game(place, name, {**data, "walkthrough": []})

    return replace(
        splits,
        train=tuple(replace(one, target="") for one in splits.train),
        folders={**splits.folders, GAMES: write},
    )


def write_game(folder: Path, name: str, data: Mapping[str, JsonValue]) -> None:
    """Write a game where its name says."""
    path = folder / name / GAME_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def _iterate_games(folder: Path) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """Every game below a folder, by its name `<task>/<trial>`, in order."""
    paths = sorted(folder.glob(f"*/*/{GAME_FILE}"))
    if not paths:
        raise UserError(f"There are no games in {folder}.", f"Each is a file <task>/<trial>/{GAME_FILE}.")
    for path in paths:
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read as a game: {error}.") from error
        if not isinstance(data, dict):
            raise UserError(f"{path} holds no game.")
        yield f"{path.parent.parent.name}/{path.parent.name}", data
