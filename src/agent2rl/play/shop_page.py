"""A visit to the shop, as its page shows it: what can be clicked, and what the purchase was worth."""

from dataclasses import dataclass
from typing import Any

from agent2rl.environments.webshop import PurchaseScore, ShoppingGoal, WebshopEnvironment, WebshopEpisode
from agent2rl.environments.webshop.goal import UNBOUNDED
from agent2rl.environments.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SUB_PAGES
from agent2rl.environments.webshop.tools import click

TILES = 6
"""Colours of the tiles that stand for pictures."""
KINDS = {1.0: "the kind of thing that was wanted", 0.0: "another kind of thing"}
LIKE = "something like what was wanted"


@dataclass(frozen=True)
class RewardTerm:
    """A part of the reward: what was asked for, and how much of it the purchase has."""

    name: str
    wanted: str
    got: str


def describe_visit(store: WebshopEnvironment) -> dict[str, Any]:
    """For `shop_page.html`; the environment has begun."""
    visit = store.visit
    if visit is None:
        raise RuntimeError("An episode is begun with reset() before it can be shown.")
    there = {*visit.available.clickables}
    buttons = {
        name: [label for label in labels if label.lower() in there]
        for name, labels in (("back", (BACK, PREVIOUS, NEXT)), ("more", SUB_PAGES), ("buy", (BUY,)))
    }
    return {
        "visit": visit,
        "seen": visit.seen,
        "buttons": buttons,
        "click": lambda name: click(name.lower()),
        "tile": lambda asin: sum(map(ord, asin)) % TILES,
        "terms": _list_reward_terms(visit, visit.score) if visit.score else [],
        "sum": _format_reward_sum(visit.goal, visit.score) if visit.score else "",
    }


def _list_reward_terms(visit: WebshopEpisode, score: PurchaseScore) -> list[RewardTerm]:
    goal, bought = visit.goal, visit.seen.product
    paid = f"${visit.shop.prices[bought.asin]:.2f}" if bought else ""
    options = [f"{name}: {value}" if name else value for name, value in goal.options]
    attributes = ", ".join(goal.attributes)
    bound = f"at most ${goal.price_upper:.2f}" if goal.price_upper < UNBOUNDED else "any"
    return [
        RewardTerm("Attributes", attributes or "none", f"{score.attributes} of {len(goal.attributes)}"),
        RewardTerm("Options", ", ".join(options) or "none", f"{score.options} of {len(goal.options)}"),
        RewardTerm("Price", bound, f"{int(score.price)} of 1 ({paid})"),
        RewardTerm("Type", goal.product_category, f"× {score.kind:g}: {KINDS.get(score.kind, LIKE)}"),
    ]


def _format_reward_sum(goal: ShoppingGoal, score: PurchaseScore) -> str:
    """The official formula with its numbers."""
    most = len(goal.attributes) + len(goal.options) + 1
    hits = f"{score.attributes} + {score.options} + {int(score.price)}"
    return f"({hits}) / {most} × {score.kind:g} = {score.reward:.3g}"
