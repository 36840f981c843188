"""Text in which things come back: lists, tables, records and talk that only looking up can continue."""

import random

from scripts.seedling import words
from scripts.seedling.arithmetic import draw_small_number, draw_sum
from scripts.seedling.chat import write_conversation

Dice = random.Random


def write_ownership(dice: Dice) -> str:
    """Who has what, then who has what again, in another order."""
    people = dice.sample(words.NAMES, dice.randint(2, 5))
    facts = {
        name: (draw_small_number(dice), dice.choice(words.COLOURS), dice.choice(words.THINGS))
        for name in people
    }
    lines = [f"{name} has {n} {colour} {things}." for name, (n, colour, things) in facts.items()]
    for name in dice.sample(people, len(people)):
        n, colour, things = facts[name]
        lines.append(
            dice.choice(
                [
                    f"How many {things} does {name} have? {n}.",
                    f"Who has the {colour} {things}? {name}.",
                    f"What does {name} have? {n} {colour} {things}.",
                    f"What colour are the {things} of {name}? {colour}.",
                ]
            )
        )
    return " ".join(lines)


def write_copying(dice: Dice) -> str:
    digits, letters = [str(value) for value in range(200)], list("abcdefghijklmnopqrstuvwxyz")
    pool = dice.choice([words.THING, words.NAMES, words.COLOURS, digits, letters])
    items = [dice.choice(pool) for _ in range(dice.randint(3, 10))]
    line, mode = " ".join(items), dice.random()
    if mode < 0.4:
        return f"{line} | {line}" if mode < 0.2 else f"Say it again: {line}\n{line}\nOnce more: {line}"
    if mode < 0.6:
        return f"{line} backwards: {' '.join(reversed(items))}"
    if mode < 0.75:
        return f"{line} sorted: {' '.join(sorted(items))}"
    index = dice.randrange(len(items))
    place = f"Number {index + 1}: {items[index]}. Length: {len(items)}."
    return f"{line}. First: {items[0]}. Last: {items[-1]}. {place}"


def write_record(dice: Dice) -> str:
    """Fields and values, then the same in other words."""
    fields = {
        "name": dice.choice(words.NAMES),
        "age": str(dice.randint(5, 90)),
        "town": dice.choice(words.TOWNS),
        "job": dice.choice(words.JOBS),
        "pet": dice.choice(words.ANIMALS),
        "colour": dice.choice(words.COLOURS),
    }
    chosen = dice.sample(sorted(fields), dice.randint(3, 6))
    again = dice.sample(chosen, len(chosen) - 1)
    if dice.random() < 0.5:
        shown = "\n".join(f"{key}: {fields[key]}" for key in chosen)
        return shown + "\n" + " ".join(f"The {key} is {fields[key]}." for key in again)
    shown = ", ".join(f'"{key}": "{fields[key]}"' for key in chosen)
    return f"{{{shown}}}\n" + "\n".join(f"{key} -> {fields[key]}" for key in again)


def write_lookup_table(dice: Dice) -> str:
    """A made-up dictionary, then look-ups in it."""
    keys = dice.sample(words.THING, dice.randint(3, 7))
    table = {
        key: dice.choice([dice.choice(words.NAMES), str(dice.randint(1, 99)), dice.choice(words.COLOURS)])
        for key in keys
    }
    lines = [f"{key} = {value}" for key, value in table.items()]
    lines += [f"{key} ? {table[key]}" for key in dice.choices(keys, k=dice.randint(3, 8))]
    return "\n".join(lines)


def write_small_talk(dice: Dice) -> str:
    """A request and its answer, or a few."""
    turns = []
    for _ in range(dice.randint(1, 3)):
        a, sign, b, c = draw_sum(dice)
        things = dice.sample(words.THING, dice.randint(2, 5))
        name, thing = dice.choice(words.NAMES), dice.choice(words.THING)
        colour, size = dice.choice(words.COLOURS), dice.choice(words.SIZES)
        turns.append(
            dice.choice(
                [
                    (f"What is {a} {sign} {b}?", f"{a} {sign} {b} = {c}"),
                    (f"Say {' '.join(things)}.", " ".join(things)),
                    (f"I am {name} and I like my {thing}. What is my name?", f"Your name is {name}."),
                    (f"Which is the last: {', '.join(things)}?", f"The last is {things[-1]}."),
                    (f"How many words are in this list: {' '.join(things)}?", f"There are {len(things)}."),
                    (f"Tell me about a {thing}.", f"The {thing} is {colour} and {size}."),
                ]
            )
        )
    return write_conversation(turns)
