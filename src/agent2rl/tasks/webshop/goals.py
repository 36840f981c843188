"""Goals as examples: what is asked, and actions that fulfil it."""

from dataclasses import asdict, replace

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits
from agent2rl.environments.webshop import Goal, Shop, Visit
from agent2rl.environments.webshop.pages import OFFICIAL, Layout
from agent2rl.environments.webshop.store import STEPS


def example(shop: Shop, goal: Goal, name: str, steps: int = STEPS, layout: Layout = OFFICIAL) -> Example:
    """Asks with what is seen first; actions that buy the product it was made from are its answer."""
    return Example(
        id=name,
        prompt=Visit(shop, goal, layout=layout).observation,
        target="\n".join(walkthrough(shop, goal, layout)),
        meta={
            "goal": goal.record(),
            "steps": steps,
            "category": shop.products[goal.asin].category,
            "layout": asdict(layout),
        },
    )


def walkthrough(shop: Shop, goal: Goal, layout: Layout = OFFICIAL) -> tuple[str, ...]:
    """Searches for what is wanted, turns pages until it is there, chooses and buys.

    Somebody who knows the product wrote it: it is no proof that its features were read.
    """
    visit = Visit(shop, goal, layout=layout)
    wanted = shop.products[goal.asin]
    actions = [f"search[{_query(shop, goal)}]"]
    visit.step(actions[0])
    while wanted.asin.lower() not in visit.available.clickables:
        actions.append("click[next >]")
        visit.step(actions[-1])
    chosen = [value for _, value in goal.options]
    return (*actions, *(f"click[{name}]" for name in (wanted.asin.lower(), *chosen, "buy now")))


def _query(shop: Shop, goal: Goal) -> str:
    """The first that finds the product: what is asked for in a few words, in its own, or the very title."""
    wanted = shop.products[goal.asin]
    queries = (" ".join([*goal.attributes, wanted.query]), goal.instruction, wanted.title)
    for query in queries:
        if wanted in shop.search(query):
            return query
    raise UserError(f"No search finds the product {goal.asin}.", "Use the official files.")


def withhold(splits: Splits) -> Splits:
    """The training goals without the actions that fulfil them."""
    return replace(splits, train=tuple(replace(one, target="") for one in splits.train))
