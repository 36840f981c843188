"""Prose: people, lands, scenes and notes, as an encyclopaedia, a story or a notebook would have them."""

import random

from scripts.seedling import words

Dice = random.Random


def write_biography(dice: Dice) -> str:
    name = f"{dice.choice(words.NAMES)} {dice.choice(words.FIRMS)}"
    born, town, job = dice.randint(1820, 1999), dice.choice(words.TOWNS), dice.choice(words.JOBS)
    title = f"The {dice.choice(words.SIZES).title()} {dice.choice(words.THING).title()}"
    age, genre = dice.randint(20, 60), dice.choice(words.GENRES)
    return (
        f"{name} was born in {town} in {born} and became a {job}. In {born + age}, at the age of {age}, "
        f"{name} made the {genre} {title!r}. Where was {name} born? In {town}. Who made {title!r}? {name}. "
        f"When? In {born + age}."
    )


def write_country(dice: Dice) -> str:
    country, towns = dice.choice(words.COUNTRIES), dice.sample(words.TOWNS, 3)
    people = [dice.randint(2, 900) for _ in towns]
    firm, head, year = dice.choice(words.FIRMS), dice.choice(words.NAMES), dice.randint(1850, 2015)
    sizes = " ".join(f"{town} has {n} thousand people." for town, n in zip(towns, people, strict=True))
    return (
        f"{country} is a country with three towns: {towns[0]}, {towns[1]} and {towns[2]}. {sizes} "
        f"The largest is {towns[people.index(max(people))]}. The firm {firm} of {towns[1]} was founded by "
        f"{head} in {year}. {head} lives in {towns[1]}, a town of {country}."
    )


def write_scene(dice: Dice) -> str:
    a, b = dice.sample(words.NAMES, 2)
    place, thing, animal = dice.choice(words.PLACES), dice.choice(words.THING), dice.choice(words.ANIMALS)
    colour, mood, day = dice.choice(words.COLOURS), dice.choice(words.ADJECTIVES), dice.choice(words.DAYS)
    lines = [
        f"On {day} {a} went to the {place} to look for a {colour} {thing}.",
        f"{b} was there too, and {b} was {mood}.",
        f'"Have you seen my {thing}?" asked {a}. "{dice.choice(["Yes", "No"])}," said {b}.',
        f"A {animal} sat near the {place} and watched {a}.",
        f"{a} found the {thing} under a {dice.choice(words.RECEPTACLES)}.",
        f"So {a} took the {colour} {thing} home, and {b} stayed in the {place} with the {animal}.",
    ]
    kept = sorted(dice.sample(range(len(lines)), dice.randint(3, 6)))
    return " ".join(lines[index] for index in kept)


def write_notes(dice: Dice) -> str:
    """Headings and lists, as notes have them."""
    mark = "#" * dice.randint(1, 4)
    items = dice.sample(words.THINGS, dice.randint(2, 6))
    lines = [f"{mark} {dice.choice(words.MONTHS)} {dice.randint(1, 28)}"]
    lines += [f"- {dice.randint(1, 30)} {item}" for item in items]
    lines += [f"{mark} {dice.choice(words.PLACES)}", f"- ask {dice.choice(words.NAMES)} about the {items[0]}"]
    return "\n".join(lines)
