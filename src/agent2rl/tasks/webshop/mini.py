"""WebShop in miniature: a generated shop in the official file format, small enough for a tiny model."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.environments.webshop import Shop
from agent2rl.environments.webshop.pages import Layout
from agent2rl.environments.webshop.product import read_products
from agent2rl.environments.webshop.store import SHOP
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.tasks.webshop import EVALUATOR, goals
from agent2rl.tasks.webshop import TASK as WEBSHOP
from agent2rl.tasks.webshop.catalogue import Part, stock

STEPS = 12
SCORING = 120
LAYOUT = Layout(separator=" | ", shown=4, head=False)
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
        feedback=_examples("feedback")[:SCORING],
        heldout=_examples("heldout")[:SCORING],
        folders={SHOP: lambda place: stock().write(place, ("train",))},
        beside={SHOP: lambda place: stock().write(place)},
    )


def _examples(part: Part) -> tuple[Example, ...]:
    wanted = [goal for goal in shop().goals if stock().parts[goal.asin] == part]
    return tuple(
        goals.example(shop(), goal, f"{part}-{number:04}", STEPS, LAYOUT)
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
