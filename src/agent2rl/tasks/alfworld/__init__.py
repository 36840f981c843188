"""ALFWorld: six kinds of household tasks, played in text.

The official games, from the release or a folder. The training games are the agent's; valid_seen answers
submissions and valid_unseen is held out; under the paper's protocol valid_unseen is the test set.

A model with a chat template is told the commands; one without goes on after two episodes of the same kind of
task (prompts.toml), which are our own and in no part of the data.
"""

from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Splits, Task
from agent2rl.environments.alfworld.environment import AlfworldEnvironment
from agent2rl.environments.alfworld.world import GAMES
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.tasks.alfworld import games

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
    root = games.find_games_root(data_dir)
    unseen = games.load_scoring_examples(root / games.UNSEEN)
    return Splits(
        train=games.load_training_examples(root / games.TRAIN),
        feedback=games.load_scoring_examples(root / games.SEEN),
        heldout=unseen,
        test=unseen,
        folders={GAMES: root / games.TRAIN},
    )


TASK: Task = Task(
    id="alfworld",
    level=3,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=EVALUATOR,
    world="alfworld",
    withhold=games.withhold_walkthroughs,
)
