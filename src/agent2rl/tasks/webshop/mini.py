"""WebShop in miniature: a generated shop in the official file format, small enough for a tiny model."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.environments.webshop import Shop
from agent2rl.environments.webshop.environment import SHOP
from agent2rl.environments.webshop.pages import PageLayout
from agent2rl.environments.webshop.product import read_products
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.tasks.webshop import EVALUATOR, goals
from agent2rl.tasks.webshop import TASK as WEBSHOP
from agent2rl.tasks.webshop.catalogue import Part, generate_stock

STEPS = 12
SCORING = 120
LAYOUT = PageLayout(separator=" | ", shown=4, head=False)
"""A tiny model has a small context, and the official separator is five tokens to it."""
PROMPTS = read_prompts(Path(__file__).with_name("mini_prompts.toml"))


PRICE_BOUNDS_SEED = 90417
"""Draws what a goal may cost, in a package that the agent does not see: it cannot foretell what is asked."""


@cache
def build_shop() -> Shop:
    products = read_products(generate_stock().build_files(("train", "feedback", "heldout")), "the miniature")
    return Shop.from_products(products, seed=PRICE_BOUNDS_SEED)


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("webshop-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=_build_examples("train"),
        feedback=_build_examples("feedback")[:SCORING],
        heldout=_build_examples("heldout")[:SCORING],
        folders={SHOP: lambda place: generate_stock().write_files(place, ("train",))},
        beside={SHOP: lambda place: generate_stock().write_files(place)},
    )


def _build_examples(part: Part) -> tuple[Example, ...]:
    wanted = [goal for goal in build_shop().goals if generate_stock().parts[goal.asin] == part]
    return tuple(
        goals.build_example(build_shop(), goal, f"{part}-{number:04}", STEPS, LAYOUT)
        for number, goal in enumerate(wanted)
    )


TASK: Task = replace(
    WEBSHOP,
    id="webshop-mini",
    description=WEBSHOP.description
    + """
## The miniature

The shop is generated and small. The goals that score you ask for products of it that no training goal asks
for.
""",
    load=load,
    # An action is one line; what a small model says beyond it would only fill its context.
    evaluator=replace(EVALUATOR.prompted(PROMPTS), sampling=Sampling(max_tokens=24, stop=("\n",))),
)
