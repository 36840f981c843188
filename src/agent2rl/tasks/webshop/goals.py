"""Goals as examples: what is asked, and actions that fulfil it."""

from dataclasses import asdict, replace

from agent2rl.core.task import Example, Splits
from agent2rl.environments.webshop import Shop, ShoppingGoal, WebshopEpisode
from agent2rl.environments.webshop.environment import STEPS
from agent2rl.environments.webshop.pages import OFFICIAL, PageLayout


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
