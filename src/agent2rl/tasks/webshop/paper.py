"""WebShop as published: the page, its actions and the last five turns in each request; success from 0.5.

The test set has the first 100 generated goals, with 50 steps each.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Example, PublishedProfile, Splits
from agent2rl.environments.webshop.environment import WebshopEnvironment
from agent2rl.environments.webshop.reward import get_noun_tagger
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.published_prompts import ShopWindowPrompt, extract_shop_action

GOALS, STEPS = 100, 50
SYSTEM = (
    "You shop on a web site for somebody else. You get their instruction, the page that you see and the "
    "actions that it offers. Choose the action that best leads to buying a product that fits. Reply with one "
    "action alone, such as search[red shoes] or click[buy now]: no other words, no explanation."
)
REQUEST = """\
You are on a shopping site. Find a product that fits the instruction, and buy it.

Instruction: {instruction}

Available actions:
{actions}

Rules:
- Reply with one of the available actions alone.
- To search, write search[your query].
- To click, write click[a text of the list].
- Write nothing else.

Your turn:
"""


def list_actions(example: Example) -> Example:
    return replace(example, meta={**example.meta, "list_actions": True})


def adapt(splits: Splits) -> Splits:
    """Let the pages list their actions."""
    return splits.map_examples(list_actions)


def load(load_goals: Callable[[Path | None], Splits], data_dir: Path | None) -> Splits:
    splits = load_goals(data_dir)
    assert splits.test is not None
    return replace(
        splits,
        train=tuple(map(_lengthen, splits.train)),
        test=tuple(map(_lengthen, splits.test[:GOALS])),
    )


def _lengthen(example: Example) -> Example:
    return replace(example, meta={**example.meta, "steps": STEPS})


EVALUATOR = Episodes(
    rule=f"paper-webshop-1-nouns-by-{get_noun_tagger()}",
    world=WebshopEnvironment,
    prompt=ShopWindowPrompt(chat=SYSTEM, request=REQUEST, stop=(), name="paper"),
    group="category",
    sampling=Sampling(max_tokens=100, stop=("\n",)),
    success=0.5,
    also=(1.0,),
    action=extract_shop_action,
)


def build_profile(load_goals: Callable[[Path | None], Splits] | None) -> PublishedProfile:
    """`load_goals` loads the official goals; None: the task's own examples are used as they are."""
    return PublishedProfile(
        name="paper-webshop",
        version=1,
        evaluator=EVALUATOR,
        load=partial(load, load_goals) if load_goals else None,
        adapt=adapt,
        scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    )
