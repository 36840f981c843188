"""Text in which something is done: a room, a shop, a program. Played with sense and nonsense alike."""

import random
from collections.abc import Sequence

from scripts.seedling import words
from scripts.seedling.arithmetic import draw_sum

Dice = random.Random


def write_household(dice: Dice) -> str:
    """Somebody tries commands in a room, with what comes of it."""
    kinds = dice.sample(words.RECEPTACLES, dice.randint(3, 6))
    places = [f"{kind} {index}" for index, kind in enumerate(kinds, start=1)]
    inside = {place: draw_things(dice) for place in places}
    thing = dice.choice(words.THING)
    goal = dice.choice(["look around", f"find a {thing}", f"put a {thing} on the {places[0]}"])
    lines = [f"You are in a room. You see {join_names(places)}. Your task is to: {goal}."]
    here: str | None = None
    held: str | None = None
    for _ in range(dice.randint(3, 9)):
        act = dice.random()
        if act < 0.45 or here is None:
            here = dice.choice(places)
            lines += [f"> go to {here}", f"On the {here}, you see {join_names(inside[here])}."]
        elif act < 0.65 and held is None and inside[here]:
            held = dice.choice(inside[here])
            inside[here].remove(held)
            lines += [f"> take {held} from {here}", f"You pick up the {held} from the {here}."]
        elif act < 0.8 and held is not None:
            inside[here].append(held)
            lines += [f"> move {held} to {here}", f"You move the {held} to the {here}."]
            held = None
        elif act < 0.9:
            lines += ["> inventory", f"You are carrying: {f'a {held}' if held else 'nothing'}."]
        else:
            verb = dice.choice(["eat", "open", "throw", "use"])
            lines += [f"> {verb} {dice.choice(words.THING)}", "Nothing happens."]
    return "\n".join(lines)


def draw_things(dice: Dice) -> list[str]:
    return [f"{thing} {dice.randint(1, 3)}" for thing in dice.sample(words.THING, dice.randint(0, 3))]


def join_names(items: Sequence[str]) -> str:
    if not items:
        return "nothing"
    named = [f"a {item}" for item in items]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + f", and {named[-1]}"


def write_shop_visit(dice: Dice) -> str:
    """Goods with prices, a search, and sometimes a purchase."""
    kinds = (words.BRANDS, words.COLOURS, words.MATERIALS, words.THING)
    goods = []
    for _ in range(dice.randint(2, 5)):
        what = " ".join(dice.choice(kind) for kind in kinds)
        goods.append((f"B{dice.randint(100, 999)}", what, dice.randint(2, 99)))
    code, what, price = dice.choice(goods)
    wish = " ".join(what.split()[1:])
    lines = [f"I want a {wish} for less than {price + dice.randint(1, 20)} dollars.", f"search[{wish}]"]
    lines += [f"[{key}] {name} ${cost}" for key, name, cost in goods]
    picked = (code, what, price) if dice.random() < 0.6 else dice.choice(goods)
    lines += [f"click[{picked[0]}]", f"{picked[1]}. Price: ${picked[2]}. Rating: {dice.randint(1, 5)}."]
    if dice.random() < 0.6:
        lines += ["click[buy now]", f"You bought {picked[1]} for ${picked[2]}."]
    return "\n".join(lines)


def write_program(dice: Dice) -> str:
    """Small Python, with what it gives."""
    a, b, c = dice.sample("abcdnmpqxy", 3)
    n, (left, sign, right, result) = dice.randint(1, 9), draw_sum(dice)
    name = dice.choice(["add", "change", "compute", "work", "combine", "step", "mix", "f", "g", "value"])
    items = [dice.randint(0, 20) for _ in range(dice.randint(3, 6))]
    sign = "//" if sign == "/" else sign
    shown = (
        f"print(len({a}))  # {len(items)}\nprint(max({a}))  # {max(items)}\nprint(sum({a}))  # {sum(items)}"
    )
    defined = f'def {name}({a}):\n    """Return {a} plus {n}."""\n    return {a} + {n}'
    return dice.choice(
        [
            f"def {name}({a}, {b}):\n    return {a} {sign} {b}\n\nprint({name}({left}, {right}))  # {result}",
            f"{a} = {left}\n{b} = {right}\n{c} = {a} {sign} {b}\nassert {c} == {result}",
            f"{a} = {items}\n{shown}",
            f"{defined}\n\n>>> {name}({left})\n{left + n}",
            f"for {a} in {items}:\n    print({a} + {n})\n# {' '.join(str(item + n) for item in items)}",
            f'{a} = "{dice.choice(words.THING)}"\n{b} = {a}.upper()\nif {c} << {n} > {left}:\n    pass',
        ]
    )
