"""ALFWorld in miniature: generated homes in the official format, small enough for a tiny model.

alfworld-mini           four to six places to look
alfworld-mini:medium    larger homes with more things
alfworld-mini:hard      homes of two rooms; scoring games have longer chains, which training never shows

`layout.LEVELS` has the levels.
"""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Splits, Task
from agent2rl.environments.alfworld.environment import GAMES, STEPS
from agent2rl.evaluators.task_data import read_prompts
from agent2rl.tasks import alfworld
from agent2rl.tasks.alfworld import EVALUATOR
from agent2rl.tasks.alfworld import TASK as ALFWORLD
from agent2rl.tasks.alfworld.homes import GeneratedHome, generate_homes
from agent2rl.tasks.alfworld.layout import EASY, LEVELS, HomeDifficulty
from agent2rl.tasks.alfworld.paper import build_profile

TRAIN, SCORING = 1200, 400
"""With 400 games, the standard error of a score is at most 2.5 points."""
DEMONSTRATIONS = 96
"""The expert help of a run unless the user chooses another level."""
EASY_STEPS = 20

PROMPTS = read_prompts(Path(__file__).with_name("mini_prompts.toml"))


UNSEEN = """
Some of them are of kinds that no training game has: an object that must be cleaned and then heated or cooled
before it is put somewhere, and two objects that must both be cleaned or heated. All kinds count equally.
"""


def build_mini_task(name: str, difficulty: HomeDifficulty, steps: int) -> Task:
    def load(data_dir: Path | None) -> Splits:
        if data_dir is not None:
            raise UserError(f"{name} is generated and reads no files.", "Leave out --data-dir.")
        train = generate_homes("train", TRAIN, difficulty)
        parts = (
            generate_homes("feedback", SCORING, difficulty),
            generate_homes("heldout", SCORING, difficulty),
        )
        feedback, heldout = (
            tuple(
                alfworld.attach_game(alfworld.build_example(home.data, home.id, steps), home.data)
                for home in part
            )
            for part in parts
        )
        return Splits(
            train=tuple(alfworld.build_example(home.data, home.id, steps) for home in train),
            feedback=feedback,
            heldout=heldout,
            folders={GAMES: lambda folder: _write_homes(folder, train)},
        )

    return replace(
        ALFWORLD,
        id=name,
        description=ALFWORLD.description
        + """
## The miniature

These homes are generated and small. The games that are used for scoring have other rooms and ask for other
pairs of an object and a place, in the same words.
"""
        + (UNSEEN if difficulty.unseen else ""),
        load=load,
        evaluator=replace(
            EVALUATOR.with_prompts(PROMPTS),
            # A command is one line; more text of a small model would only fill its context.
            sampling=Sampling(max_tokens=24, stop=("\n",)),
        ),
        default_expert=DEMONSTRATIONS,
        paper=build_profile(PROMPTS),
    )


def _write_homes(folder: Path, train: tuple[GeneratedHome, ...]) -> None:
    for home in train:
        alfworld.write_game(folder, home.id, home.data)


def parse(argument: str) -> Task:
    """Build the task with homes of a level of difficulty."""
    if argument not in LEVELS:
        raise UserError(f"There is no difficulty {argument!r}.", f"Known: {', '.join(LEVELS)}.")
    return build_mini_task(f"alfworld-mini-{argument}", LEVELS[argument], STEPS)


TASK: Task = build_mini_task("alfworld-mini", EASY, EASY_STEPS)
