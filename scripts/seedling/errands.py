"""Errands, done well: somebody looks for things, carries them about, and remembers what was seen where.

They teach what takes long to learn and is the same in every world: to go where one has not been yet, to read
a wish and find what it names, to know what one holds and what is still to do. The words of an errand are
drawn anew for each, and none of them are those of a task of the benchmark: there people `go to` places,
`take` things `from` them and `move` them; nobody does here, and a test holds it. In the benchmark's words
somebody only tries this and that (`worlds.household`).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scripts.seedling import words
from scripts.seedling.chat import write_conversation
from scripts.seedling.errand_wording import TREATMENTS, Wording, draw_wording

Dice = random.Random

MAX_STEPS = 15
"""A longer errand would not fit the context."""
MISTAKE_RATE = 0.15
"""How often somebody who errs does so."""


@dataclass
class ErrandState:
    """Where everything is, what is wanted, and how far one has come."""

    contents: dict[str, list[str]]
    """Of every place."""
    locked: set[str]
    thing: str
    """The kind of thing that is wanted."""
    place: str = ""
    """The kind of place where; or the kind of who is to see it, if `meeting`."""
    count: int = 1
    verb: str = ""
    meeting: bool = False
    handy: bool = False
    """Whether a thing can be treated at a place that is locked."""
    here: str = ""
    held: str = ""
    seen: set[str] = field(default_factory=set)
    treated: set[str] = field(default_factory=set)
    delivered: int = 0

    @property
    def done(self) -> bool:
        return self.delivered >= self.count


def strip_number(name: str) -> str:
    return name.rstrip("0123456789 ")


def write_errand(dice: Dice) -> str:
    """Somebody does an errand from start to end, in words of their own."""
    while True:
        said = draw_wording(dice)
        job, wish = _draw_errand(dice, said)
        turns = list(_play_errand(dice, job, said, wish))
        if job.done and len(turns) <= MAX_STEPS:
            return _format_turns(dice, turns)


def _format_turns(dice: Dice, turns: list[tuple[str, str]]) -> str:
    """As a conversation, or as a script."""
    if dice.random() < 0.7:
        return write_conversation(turns)
    mark = dice.choice(["* ", "me: ", "- ", "= ", "I "])
    return "\n".join(f"{told}\n{mark}{said}" for told, said in turns)


def _number_names(dice: Dice, kinds: Sequence[str], numbered: bool) -> list[str]:
    names = [f"{one} {kinds[: at + 1].count(one)}" if numbered else one for at, one in enumerate(kinds)]
    return dice.sample(names, len(names))


def _draw_errand(dice: Dice, said: Wording) -> tuple[ErrandState, str]:
    """Places, things in them, and a wish that can be fulfilled."""
    numbered = dice.random() < 0.7
    form = dice.choice(["bring", "bring", "bring_two", "bring_treated", "bring_treated", "meet", "find"])
    verb = dice.choice(list(TREATMENTS)) if form == "bring_treated" else ""
    pools = [words.RECEPTACLES, words.PLACES, words.TOWNS, [one for one, _ in words.VESSELS]]
    pool = [one for one in dice.choice(pools) if not verb or one != TREATMENTS[verb][1]]
    target = dice.choice(pool)
    others = dice.choices(pool, k=dice.randint(2, 5)) if numbered else dice.sample(pool, dice.randint(3, 5))
    needed = [target, *([TREATMENTS[verb][1]] if verb else [])]
    places = _number_names(
        dice, [*needed, *(one for one in others if numbered or one not in needed)], numbered
    )
    goods = dice.choice(
        [words.THING, words.THING, words.THINGS, words.ANIMALS, words.MATERIALS, words.COLOURS]
    )
    thing, *rest = dice.sample(goods, 6)
    count = 2 if form == "bring_two" and numbered else 1
    kinds = [thing] * (count + (dice.random() < 0.4 and numbered))
    kinds += dice.choices(rest, k=dice.randint(1, 5)) if numbered else dice.sample(rest, dice.randint(1, 4))
    who = dice.choice(words.NAMES)
    kinds += [who] if form == "meet" else []
    contents: dict[str, list[str]] = {place: [] for place in places}
    away = [place for place in places if strip_number(place) != target] or places
    for name in _number_names(dice, kinds, numbered):
        contents[dice.choice(away if strip_number(name) == thing else places)].append(name)
    locked = {place for place in places if dice.random() < dice.choice([0.0, 0.2, 0.5])}
    place = {"meet": who, "find": ""}.get(form, target)
    wish = said["bring" if form == "bring_two" else form].format(
        n={1: dice.choice(["a", "one", "some", "any"]), 2: "two"}[count],
        thing=thing,
        place=place,
        verb=verb,
        state=TREATMENTS[verb][0] if verb else "",
    )
    handy = dice.random() < 0.6
    return ErrandState(contents, locked, thing, place, count, verb, form == "meet", handy), wish


def _play_errand(dice: Dice, job: ErrandState, said: Wording, wish: str) -> Iterator[tuple[str, str]]:
    """What is told and what is done about it, in turn."""
    order = list(job.contents)
    start = said["start"].format(places=_join_names(order, said), wish=wish)
    told = said["told"] + start
    if dice.random() < 0.6:
        dice.shuffle(order)
    errs = dice.random() < 0.2
    for _ in range(MAX_STEPS + 1):
        act, place, thing = (
            _draw_mistake(dice, job) if errs and dice.random() < MISTAKE_RATE else _choose_action(job, order)
        )
        command = said[act].format(place, thing, job.verb)
        yield told, command
        told = _apply_action(job, act, place, thing, said)
        if job.done:
            return


def _draw_mistake(dice: Dice, job: ErrandState) -> tuple[str, str, str]:
    """Somewhere one has been, or something that is not to be had."""
    place = dice.choice(list(job.contents))
    every = [thing for things in job.contents.values() for thing in things]
    return dice.choice(["visit", "get", "unlock", "put"]), place, dice.choice([*every, job.thing])


def _choose_action(job: ErrandState, order: Sequence[str]) -> tuple[str, str, str]:
    """What one who remembers does: carry on with what is held, fetch what was seen, or look further."""
    if job.held and strip_number(job.held) != job.thing:
        return "put", job.here, job.held
    if job.held and job.verb and job.held not in job.treated:
        station = TREATMENTS[job.verb][1]
        return _go_and_act(job, [one for one in order if strip_number(one) == station], "treat", job.held)
    if job.held and job.meeting:
        spots = [
            (one, who)
            for one in order
            if one in job.seen
            for who in job.contents[one]
            if strip_number(who) == job.place
        ]
        if spots:
            return _go_and_act(job, [spots[0][0]], "ring", spots[0][1])
        return _search_further(job, order)
    if job.held:
        return _go_and_act(job, [one for one in order if strip_number(one) == job.place], "put", job.held)
    known = [
        (one != job.here, one, thing)
        for one in order
        if one in job.seen and (strip_number(one) != job.place or job.meeting)
        for thing in job.contents[one]
        if strip_number(thing) == job.thing
    ]
    if known:
        _, place, thing = min(known, key=lambda spot: spot[0])
        return _go_and_act(job, [place], "get", thing)
    return _search_further(job, order)


def _go_and_act(job: ErrandState, places: Sequence[str], act: str, thing: str) -> tuple[str, str, str]:
    """Be at one of the places, with its lock open, then act."""
    place = job.here if job.here in places else places[0]
    if job.here != place:
        return "visit", place, ""
    shut = place in job.locked and not (act == "treat" and job.handy)
    return ("unlock", place, "") if shut else (act, place, thing)


def _search_further(job: ErrandState, order: Sequence[str]) -> tuple[str, str, str]:
    if job.here in job.locked:
        return "unlock", job.here, ""
    unseen = [one for one in order if one not in job.seen]
    return "visit", (unseen or list(order))[0], ""


def _apply_action(job: ErrandState, act: str, place: str, thing: str, said: Wording) -> str:
    """What comes of it."""
    if not _is_possible(job, act, place, thing):
        return said["refused"]
    match act:
        case "visit" | "unlock":
            job.here = place
            job.locked -= {place} if act == "unlock" else set()
            if place in job.locked:
                return said["locked"].format(place)
            job.seen.add(place)
            told = _join_names(job.contents[place], said)
            return said["found"].format(place, list=told, is_="is" if len(job.contents[place]) < 2 else "are")
        case "get":
            job.contents[place].remove(thing)
            job.held = thing
            job.delivered += not job.place
            return said["got"].format(place, thing)
        case "put":
            job.contents[place].append(thing)
            job.held = ""
            wanted = strip_number(thing) == job.thing and strip_number(place) == job.place
            job.delivered += wanted and (not job.verb or thing in job.treated)
            return said["put_down"].format(place, thing)
        case "treat":
            job.treated.add(thing)
            return said["treated"].format(place, thing, job.verb, TREATMENTS[job.verb][0])
        case _:
            job.delivered += 1
            return ""


def _is_possible(job: ErrandState, act: str, place: str, thing: str) -> bool:
    match act:
        case "visit":
            return place != job.here
        case "unlock":
            return place == job.here and place in job.locked
        case "get":
            return place == job.here and place in job.seen and not job.held and thing in job.contents[place]
        case "put":
            return place == job.here and place not in job.locked and thing == job.held
        case _:
            return place == job.here


def _join_names(names: Sequence[str], said: Wording) -> str:
    if not names:
        return said["none"]
    *first, last = (said["article"] + name for name in names)
    joint, and_ = said["joint"], said["last"] if said["joint"] == ", " else ""
    return joint.join([*first, and_ + last if first else last])
