"""WebShop: find and buy what an instruction asks for, in text.

The official files, from a folder. Goals are in the official order and split as officially: the first 500 are
the test set and held out, the next 500 (half of the validation goals) answer submissions, and all from number
1,500 on are the agent's to train on.

webshop                 what people wrote, where there is enough of it for all splits; else generated goals
webshop:generated       generated goals in any case; or `webshop:human`

An example's answer is a sequence of actions that buys the goal's product.
"""

import json
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
from agent2rl.evaluators.episodes import EpisodePrompt, Episodes
from agent2rl.evaluators.task_data import read_prompts

# The official files: where they are, which goals they give, and what an agent is shown of them.

FEEDBACK = slice(VALIDATION.start, VALIDATION.start + TEST.stop)
"""Of the validation goals, as many as there are test goals."""
FILES = (
    "It wants WebShop's own files, which its setup.sh downloads (-d small or -d all): items_shuffle*.json, "
    "items_ins_v2*.json and, for goals that people wrote, items_human_ins*.json; compressed (.xz) or not."
)


def find_data_folder(data_dir: Path | None) -> Path:
    """The folder that holds the files. No download: their source wants a person to agree to large ones."""
    if data_dir is None:
        raise UserError("webshop has no data of its own.", f"Name a folder with --data-dir. {FILES}")
    for name in (PRODUCTS, INSTRUCTIONS):
        if find_official_file(data_dir, name) is None:
            raise UserError(f"There is no {name}*.json in {data_dir}.", FILES)
    return data_dir


def load_shop(place: Path, kind: Kind | None) -> tuple[Kind, Shop]:
    """The shop with its goals: of the kind that is asked for, or what people wrote where that is enough."""
    kinds: tuple[Kind, ...] = ("human", "generated") if kind is None else (kind,)
    products = load_products(place)
    for each in kinds:
        count = len(build_goals(products, each)[0])
        if count > TRAIN.start:
            return each, Shop.from_products(products, each)
    raise UserError(
        f"There are {count} {each} goals in {place}: all of them would be for scoring.",
        f"Training begins with number {TRAIN.start}.",
    )


def write_visible_files(place: Path, target: Path) -> None:
    """Write what an agent may see: all products, and their attributes without what anybody asks for."""
    for name in (PRODUCTS, REVIEWS):
        if (path := find_official_file(place, name)) is not None:
            shutil.copyfile(path, target / path.name)
    path = find_official_file(place, INSTRUCTIONS)
    assert path is not None
    known = {
        asin: {"attributes": row["attributes"]}
        for asin, row in read_json_file(path, dict).items()
        if "attributes" in row
    }
    (target / f"{INSTRUCTIONS}.json").write_text(json.dumps(known), encoding="utf-8")


# Goals as examples: what is asked, and actions that fulfil it.


def build_example(
    shop: Shop, goal: ShoppingGoal, name: str, steps: int = STEPS, layout: PageLayout = OFFICIAL
) -> Example:
    """Asks with what is seen first; actions that buy the product it was made from are its answer."""
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
    """Searches for what is wanted, turns pages until it is there, chooses and buys.

    Somebody who knows the product wrote it: it is no proof that its features were read. Empty where nothing
    finds it: among many products with one title, some are on nobody's list.
    """
    visit = WebshopEpisode(shop, goal, layout=layout)
    wanted = shop.products[goal.asin]
    query = _find_query(shop, goal)
    if query is None:
        return ()
    actions = [f"search[{query}]"]
    visit.step(actions[0])
    while wanted.asin.lower() not in visit.available.clickables:
        actions.append("click[next >]")
        visit.step(actions[-1])
    chosen = [value for _, value in goal.options]
    return (*actions, *(f"click[{name}]" for name in (wanted.asin.lower(), *chosen, "buy now")))


def _find_query(shop: Shop, goal: ShoppingGoal) -> str | None:
    """The first that finds the product: what is asked for in a few words, in its own, or the very title."""
    wanted = shop.products[goal.asin]
    queries = (" ".join([*goal.attributes, wanted.query]), goal.instruction, wanted.title)
    for query in queries:
        if wanted in shop.search(query):
            return query
    return None


def withhold_walkthroughs(splits: Splits) -> Splits:
    """The training goals without the actions that fulfil them."""
    return replace(splits, train=tuple(replace(one, target="") for one in splits.train))


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
    withhold=withhold_walkthroughs,
)
