"""WebShop: find and buy what an instruction asks for, in text.

The official files, from a folder. Goals are in the official order and split as officially: the first 500 are
the test set and held out, the next 500 (half of the validation goals) answer submissions, and all from number
1,500 on are the agent's to train on.

webshop                 what people wrote, where there is enough of it for all splits; else generated goals
webshop:generated       generated goals in any case; or `webshop:human`
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Splits, Task
from agent2rl.environments.webshop.environment import SHOP, WebshopEnvironment
from agent2rl.environments.webshop.goal import TEST, TRAIN, Kind
from agent2rl.environments.webshop.nouns import get_noun_tagger
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.tasks.webshop import goals, official

RULE = f"webshop-2-nouns-by-{get_noun_tagger()}"
"""Changes whenever the same actions could score otherwise."""

EVALUATOR = Episodes(
    rule=RULE,
    world=WebshopEnvironment,
    telling=EpisodePrompt(chat="").prompted(read_prompts(Path(__file__).with_name("prompts.toml"))),
    group="category",
    sampling=Sampling(max_tokens=64),
    success=1.0,
    also=(0.5,),
)


def load(data_dir: Path | None, kind: Kind | None = None) -> Splits:
    folder = official.find_data_folder(data_dir)
    kind, shop = official.load_shop(folder, kind)
    numbered = list(enumerate(shop.goals))
    scoring = {goal.instruction for _, goal in (*numbered[TEST], *numbered[official.FEEDBACK])}
    train = [(number, goal) for number, goal in numbered[TRAIN] if goal.instruction not in scoring]
    test, feedback, training = (
        tuple(goals.build_example(shop, goal, f"{kind}-{number:05}") for number, goal in part)
        for part in (numbered[TEST], numbered[official.FEEDBACK], train)
    )
    return Splits(
        train=training,
        feedback=feedback,
        heldout=test,
        test=test,
        folders={SHOP: partial(official.write_visible_files, folder)},
        beside={SHOP: folder},
    )


def parse(argument: str) -> Task:
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    if argument not in kinds:
        raise UserError(f"There are no {argument!r} goals.", f"Known: {', '.join(kinds)}.")
    return replace(TASK, id=f"webshop-{argument}", load=partial(load, kind=kinds[argument]))


TASK: Task = Task(
    id="webshop",
    level=3,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=EVALUATOR,
    world="webshop",
    withhold=goals.withhold_walkthroughs,
)
