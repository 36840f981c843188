"""The seedling's text: short documents made from nothing but a seed.

Each family is a function from dice to a document. What they share is the point: names, numbers and things
that were mentioned come back, so a model that predicts this text well has learnt to look them up in its
context. The tasks of the benchmark are not among them: there is arithmetic here, and there are questions
about amounts, but half of their answers calculate something else than was asked; and errands are done well,
but in other words than any task's, in whose own words nobody plays a game well from start to end on purpose.
"""

import random
from collections.abc import Callable, Iterator

from scripts.seedling.arithmetic import (
    write_comparisons,
    write_counting,
    write_equations,
    write_number_recall,
    write_packing_story,
    write_spelled_numbers,
    write_stock_story,
    write_sum_chain,
    write_word_problem,
)
from scripts.seedling.errands import write_errand
from scripts.seedling.prose import write_biography, write_country, write_notes, write_scene
from scripts.seedling.recall import (
    write_copying,
    write_lookup_table,
    write_ownership,
    write_record,
    write_small_talk,
)
from scripts.seedling.worlds import write_household, write_program, write_shop_visit

FAMILIES: dict[Callable[[random.Random], str], int] = {
    write_equations: 14,
    write_sum_chain: 10,
    write_counting: 3,
    write_spelled_numbers: 3,
    write_comparisons: 3,
    write_stock_story: 12,
    write_packing_story: 10,
    write_word_problem: 14,
    write_number_recall: 20,
    write_ownership: 8,
    write_copying: 8,
    write_record: 5,
    write_lookup_table: 5,
    write_small_talk: 8,
    write_biography: 4,
    write_country: 4,
    write_scene: 6,
    write_notes: 3,
    write_household: 8,
    write_shop_visit: 6,
    write_program: 20,
    write_errand: 40,
}
"""How often each family is drawn, against the others."""


def write_document(seed: int) -> str:
    """The document with this number."""
    dice = random.Random(seed)
    (family,) = dice.choices(list(FAMILIES), weights=list(FAMILIES.values()))
    return family(dice)


def write_documents(first: int, count: int) -> Iterator[str]:
    return (write_document(seed) for seed in range(first, first + count))
