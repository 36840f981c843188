"""ALFWorld: six kinds of household tasks, played in text.

The official games, from the release or a folder. The training games are for the agent; valid_seen gives the
feedback on submissions and valid_unseen is held out; under the paper's protocol valid_unseen is the test set.

The prompt of a model with a chat template lists the commands; a model without one gets two example episodes
of the same kind of task (prompts.toml), which we wrote ourselves and are in no part of the data.

Games are read in the official layout, `json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`, or downloaded. An
example for scoring contains its game (82 KB); one for training names it, and the agent gets the folder.
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
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.task_data import fetch_archive, read_prompts
from agent2rl.tasks.alfworld.paper import PAPER

# Loading the official games as examples, from a folder or the release

RELEASE = "https://github.com/alfworld/alfworld/releases/download/0.4.0/json_2.1.2_tw-pddl.zip"
FOLDER = "json_2.1.1"
HOME = Path("~/.cache/alfworld")
"""Where ALFWorld's own download puts the games, so that they are downloaded only once."""
TRAIN, SEEN, UNSEEN = "train", "valid_seen", "valid_unseen"


def find_games_root(data_dir: Path | None) -> Path:
    """Return the folder with the splits; download it if no directory is given."""
    if data_dir is None:
        return fetch_archive(RELEASE, HOME.expanduser(), FOLDER, f"*/{GAME_FILE}")
    root = data_dir / FOLDER if (data_dir / FOLDER).is_dir() else data_dir
    for split in (TRAIN, SEEN, UNSEEN):
        if not (root / split).is_dir():
            raise UserError(
                f"There is no {split} in {root}.",
                f"--data-dir must be the official {FOLDER} with {TRAIN}, {SEEN} and {UNSEEN}.",
            )
    return root


def load_training_examples(folder: Path) -> tuple[Example, ...]:
    return tuple(build_example(data, name) for name, data in _iterate_games(folder))


def load_scoring_examples(folder: Path) -> tuple[Example, ...]:
    return tuple(attach_game(build_example(data, name), data) for name, data in _iterate_games(folder))


def build_example(data: Mapping[str, JsonValue], name: str, steps: int = STEPS) -> Example:
    """Turn a game into an example: the first observation is its prompt, commands that win its target."""
    try:
        game = AlfworldGame.from_data(data, name)
    except UserError as error:  # add the name: there are thousands of games
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


def attach_game(example: Example, data: Mapping[str, JsonValue]) -> Example:
    return replace(example, meta={**example.meta, "game": dict(data)})


def withhold_walkthroughs(splits: Splits) -> Splits:
    """Remove the commands that win from the training games."""
    games = splits.folders[GAMES]

    def write(folder: Path) -> None:
        if not isinstance(games, Path):
            games(folder)
        for name, data in _iterate_games(games if isinstance(games, Path) else folder):
            write_game(folder, name, {**data, "walkthrough": []})

    return replace(
        splits,
        train=tuple(replace(example, target="") for example in splits.train),
        folders={**splits.folders, GAMES: write},
    )


def write_game(folder: Path, name: str, data: Mapping[str, JsonValue]) -> None:
    """Write a game to the path that its name gives."""
    path = folder / name / GAME_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def _iterate_games(folder: Path) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """Yield every game below a folder with its name `<task>/<trial>`, in order."""
    paths = sorted(folder.glob(f"*/*/{GAME_FILE}"))
    if not paths:
        raise UserError(
            f"There are no games in {folder}.", f"Each game is a file <task>/<trial>/{GAME_FILE}."
        )
    for path in paths:
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"Cannot read the game {path}: {error}.") from error
        if not isinstance(data, dict):
            raise UserError(f"{path} is not a game.")
        yield f"{path.parent.parent.name}/{path.parent.name}", data


RULE = "alfworld-1"
"""Must change whenever the same actions could get another score."""

EVALUATOR = Episodes(
    rule=RULE,
    world=AlfworldEnvironment,
    prompt=EpisodePrompt(chat="").with_prompts(read_prompts(Path(__file__).with_name("prompts.toml"))),
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
    paper=PAPER,
)
