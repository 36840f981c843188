"""The seedling's text: short documents made from nothing but a seed.

Each family is a function from dice to a document. What they share is the point: names, numbers and things
that were mentioned come back, so a model that predicts this text well has learnt to look them up in its
context. The tasks of the benchmark are not among them: there is arithmetic here, and there are questions
about amounts, but half of their answers calculate something else than was asked; and errands are done well,
but in other words than any task's, in whose own words nobody plays a game well from start to end on purpose.
"""

import random
from collections.abc import Callable, Iterator

from agent2rl.training.seedling.amounts import (
    asked,
    chain,
    comparing,
    counting,
    equations,
    gist,
    packing,
    spelling,
    stock,
)
from agent2rl.training.seedling.errands import errand
from agent2rl.training.seedling.prose import land, notes, person, scene
from agent2rl.training.seedling.recall import copying, owners, pairs, record, talk
from agent2rl.training.seedling.worlds import household, program, shop

FAMILIES: dict[Callable[[random.Random], str], int] = {
    equations: 14,
    chain: 10,
    counting: 3,
    spelling: 3,
    comparing: 3,
    stock: 12,
    packing: 10,
    asked: 14,
    gist: 20,
    owners: 8,
    copying: 8,
    record: 5,
    pairs: 5,
    talk: 8,
    person: 4,
    land: 4,
    scene: 6,
    notes: 3,
    household: 8,
    shop: 6,
    program: 20,
    errand: 40,
}
"""How often each family is drawn, against the others."""


def document(seed: int) -> str:
    """The document with this number."""
    dice = random.Random(seed)
    (family,) = dice.choices(list(FAMILIES), weights=list(FAMILIES.values()))
    return family(dice)


def documents(first: int, count: int) -> Iterator[str]:
    return (document(seed) for seed in range(first, first + count))
