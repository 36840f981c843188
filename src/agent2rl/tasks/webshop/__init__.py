"""WebShop: find and buy what an instruction asks for, in text.

The official files, from a folder. Goals have the official order and split: the first 500 are the test set
and held out, the next 500 (half of the validation goals) give the feedback on submissions, and all from
number 1,500 on are for training.

webshop                 human-written goals if there are enough for all splits, else generated ones
webshop:generated       always generated goals; or `webshop:human`

An example's target is a sequence of actions that buys the goal's product.
"""

import json
import logging
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import get_args

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.environments.webshop import VALIDATION, Shop, ShoppingGoal, WebshopEpisode
from agent2rl.environments.webshop.environment import SHOP, STEPS, WebshopEnvironment
from agent2rl.environments.webshop.pages import OFFICIAL, PageLayout
from agent2rl.environments.webshop.product import (
    INSTRUCTIONS,
    PRODUCTS,
    REVIEWS,
    find_official_file,
    load_products,
    read_json_file,
)
from agent2rl.environments.webshop.reward import get_noun_tagger
from agent2rl.environments.webshop.shop import TEST, TRAIN, Kind, build_goals
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.task_data import read_prompts
from agent2rl.tasks.webshop.paper import build_profile

logger = logging.getLogger(__name__)

# The official files: finding and loading them, and the part of them that the agent sees

FEEDBACK = slice(VALIDATION.start, VALIDATION.start + TEST.stop)
"""As many validation goals as there are test goals."""
FILES = (
    "It must have WebShop's own files, which its setup.sh downloads (-d small or -d all): "
    "items_shuffle*.json, items_ins_v2*.json and, for human-written goals, items_human_ins*.json; "
    "compressed (.xz) or not."
)


def find_data_folder(data_dir: Path | None) -> Path:
    """Return the folder with the files. No download: their host asks a person to confirm large ones."""
    if data_dir is None:
        raise UserError("webshop does not download its data.", f"Name a folder with --data-dir. {FILES}")
    for name in (PRODUCTS, INSTRUCTIONS):
        if find_official_file(data_dir, name) is None:
            raise UserError(f"There is no {name}*.json in {data_dir}.", FILES)
    return data_dir


def load_shop(folder: Path, requested: Kind | None) -> tuple[Kind, Shop]:
    """Load the shop with goals of the requested kind, by default human-written ones if there are enough."""
    kinds: tuple[Kind, ...] = ("human", "generated") if requested is None else (requested,)
    products = load_products(folder)
    for kind in kinds:
        count = len(build_goals(products, kind)[0])
        if count > TRAIN.start:
            logger.debug("Using %d %s goals of %s", count, kind, folder)
            return kind, Shop.from_products(products, kind)
    raise UserError(
        f"There are {count} {kind} goals in {folder}: all of them are used for scoring, none for training.",
        f"Use files with more than {TRAIN.start} goals: training goals begin with that number.",
    )


def write_visible_files(folder: Path, target: Path) -> None:
    """Write the files that the agent may see: all products, with their attributes but no instructions."""
    for name in (PRODUCTS, REVIEWS):
        if (path := find_official_file(folder, name)) is not None:
            shutil.copyfile(path, target / path.name)
    path = find_official_file(folder, INSTRUCTIONS)
    assert path is not None
    attributes = {
        asin: {"attributes": row["attributes"]}
        for asin, row in read_json_file(path, dict).items()
        if "attributes" in row
    }
    (target / f"{INSTRUCTIONS}.json").write_text(json.dumps(attributes), encoding="utf-8")


# Goals as examples, with actions that reach them


def build_example(
    shop: Shop, goal: ShoppingGoal, name: str, steps: int = STEPS, layout: PageLayout = OFFICIAL
) -> Example:
    """Turn a goal into an example: the first page is its prompt, actions that buy its product the target."""
    return Example(
        id=name,
        prompt=WebshopEpisode(shop, goal, layout=layout).observation,
        target="\n".join(find_walkthrough(shop, goal, layout)),
        meta={
            "goal": goal.to_record(),
            "steps": steps,
            "category": shop.products[goal.asin].category,
            "layout": asdict(layout),
        },
    )


def find_walkthrough(shop: Shop, goal: ShoppingGoal, layout: PageLayout = OFFICIAL) -> tuple[str, ...]:
    """Return actions that search for the product, turn pages until it is listed, choose options and buy.

    They are written with knowledge of the product: its features need not have been read. Empty if no query
    finds it: among many products with the same title, some are in no result list.
    """
    episode = WebshopEpisode(shop, goal, layout=layout)
    product = shop.products[goal.asin]
    query = _find_query(shop, goal)
    if query is None:
        return ()
    actions = [f"search[{query}]"]
    episode.step(actions[0])
    while product.asin.lower() not in episode.available.clickables:
        actions.append("click[next >]")
        episode.step(actions[-1])
    options = [value for _, value in goal.options]
    return (*actions, *(f"click[{name}]" for name in (product.asin.lower(), *options, "buy now")))


def _find_query(shop: Shop, goal: ShoppingGoal) -> str | None:
    """Return the first query that finds the product: attributes, the instruction, or the exact title."""
    product = shop.products[goal.asin]
    queries = (" ".join([*goal.attributes, product.query]), goal.instruction, product.title)
    for query in queries:
        if product in shop.search(query):
            return query
    return None


def withhold_walkthroughs(splits: Splits) -> Splits:
    """Remove the actions that reach the goals from the training goals."""
    return replace(splits, train=tuple(replace(example, target="") for example in splits.train))


RULE = f"webshop-2-nouns-by-{get_noun_tagger()}"
"""Must change whenever the same actions could get another score."""

EVALUATOR = Episodes(
    rule=RULE,
    world=WebshopEnvironment,
    prompt=EpisodePrompt(chat="").with_prompts(read_prompts(Path(__file__).with_name("prompts.toml"))),
    group="category",
    sampling=Sampling(max_tokens=64),
    success=1.0,
    also=(0.5,),
)


def load(data_dir: Path | None, kind: Kind | None = None) -> Splits:
    folder = find_data_folder(data_dir)
    kind, shop = load_shop(folder, kind)
    numbered = list(enumerate(shop.goals))
    scoring = {goal.instruction for _, goal in (*numbered[TEST], *numbered[FEEDBACK])}
    train = [(number, goal) for number, goal in numbered[TRAIN] if goal.instruction not in scoring]
    test, feedback, training = (
        tuple(build_example(shop, goal, f"{kind}-{number:05}") for number, goal in part)
        for part in (numbered[TEST], numbered[FEEDBACK], train)
    )
    return Splits(
        train=training,
        feedback=feedback,
        heldout=test,
        test=test,
        folders={SHOP: partial(write_visible_files, folder)},
        evaluator_folders={SHOP: folder},
    )


def parse(argument: str) -> Task:
    """Build the task with one kind of goals."""
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    if argument not in kinds:
        raise UserError(f"There are no {argument!r} goals.", f"Known: {', '.join(kinds)}.")
    load_kind = partial(load, kind=kinds[argument])
    return replace(TASK, id=f"webshop-{argument}", load=load_kind, paper=build_profile(load_kind))


TASK: Task = Task(
    id="webshop",
    level=3,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=EVALUATOR,
    world="webshop",
    withhold=withhold_walkthroughs,
    paper=build_profile(partial(load, kind="generated")),
)
