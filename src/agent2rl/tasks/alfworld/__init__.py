"""ALFWorld: six kinds of household tasks, played in text.

The official games, from the release or a folder. The training games are the agent's; valid_seen answers
submissions and valid_unseen is held out; under the paper's protocol valid_unseen is the test set.

A model with a chat template is told the commands; one without goes on after two episodes of the same kind of
task (prompts.toml), which are our own and in no part of the data.

Games are found in the official layout, `json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`, or downloaded. An
example that scores carries its game (82 KB); one for training names it, and the agent is given the folder.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.environments.alfworld import AlfworldEpisode, AlfworldGame
from agent2rl.environments.alfworld.environment import GAME_FILE, GAMES, STEPS, AlfworldEnvironment
from agent2rl.evaluators.episodes import EpisodePrompt, Episodes
from agent2rl.evaluators.task_data import fetch_archive, read_prompts

# Official games as examples: found in a folder of the official layout, or downloaded from the release.

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


RULE = "alfworld-1"
"""Changes whenever the same actions could score otherwise."""

EVALUATOR = Episodes(
    rule=RULE,
    world=AlfworldEnvironment,
    telling=EpisodePrompt(chat="").prompted(read_prompts(Path(__file__).with_name("prompts.toml"))),
    group="task_type",
    sampling=Sampling(max_tokens=100),
)


def load(data_dir: Path | None) -> Splits:
    root = find_games_root(data_dir)
    unseen = load_scoring_examples(root / UNSEEN)
    return Splits(
        train=load_training_examples(root / TRAIN),
        feedback=load_scoring_examples(root / SEEN),
        heldout=unseen,
        test=unseen,
        folders={GAMES: root / TRAIN},
    )


TASK: Task = Task(
    id="alfworld",
    level=3,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=EVALUATOR,
    world="alfworld",
    withhold=withhold_walkthroughs,
)
