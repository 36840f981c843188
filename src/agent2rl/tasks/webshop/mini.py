"""WebShop in miniature: a generated shop in the official file format, small enough for a tiny model."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.environments.webshop import Shop
from agent2rl.environments.webshop.pages import Layout
from agent2rl.environments.webshop.product import read_products
from agent2rl.environments.webshop.world import SHOP
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.tasks.webshop import EVALUATOR, goals
from agent2rl.tasks.webshop.catalogue import Part, stock

STEPS = 12
SCORING = 120
LAYOUT = Layout(separator=" | ", shown=5)
"""A tiny model has a small context, and the official separator is five tokens to it."""
PROMPTS = read_prompts(Path(__file__).with_name("mini_prompts.toml"))


@cache
def shop() -> Shop:
    return Shop.of(read_products(stock().files(("train", "feedback", "heldout")), "the miniature"))


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("webshop-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=_examples("train"),
        feedback=_carrying(_examples("feedback")[:SCORING]),
        heldout=_carrying(_examples("heldout")[:SCORING]),
        folders={SHOP: lambda place: stock().write(place, ("train",))},
    )


def withhold(splits: Splits) -> Splits:
    """The training goals without the actions that fulfil them."""
    return replace(splits, train=tuple(replace(one, target="") for one in splits.train))


def _examples(part: Part) -> tuple[Example, ...]:
    wanted = [goal for goal in shop().goals if stock().parts[goal.asin] == part]
    return tuple(
        goals.example(shop(), goal, f"{part}-{number:04}", STEPS, LAYOUT)
        for number, goal in enumerate(wanted)
    )


def _carrying(examples: Sequence[Example]) -> tuple[Example, ...]:
    """With the shop, but without what is asked of anybody."""
    files = stock().files()
    return tuple(replace(one, meta={**one.meta, "shop": files}) for one in examples)


TASK: Task = Task(
    id="webshop-mini",
    level=3,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=replace(EVALUATOR.prompted(PROMPTS), sampling=Sampling(max_tokens=24, stop=("\n",))),
    world="webshop",
    withhold=withhold,
)
