"""Furnish the homes of the miniature: fixtures, things in and on them, and the goal.

Each split has its own rooms and goals. A room is identified by the multiset of its fixtures' kinds, and a
goal by its pair of thing and place; each belongs to one split, by the positions of its kinds in the tables.
So nothing learnt by heart, such as "mugs go on shelves" or the positions of drawers, helps in another split,
while every kind occurs in training.

The kinds of rooms, fixtures and things are in kinds.txt: words from the seedling's training data, each a
single token.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar, get_args

from agent2rl.core.errors import UserError
from agent2rl.environments.alfworld.pddl import PLACED_TWICE, ChainType, GoalType, TaskType

# Kinds of rooms, fixtures and things (kinds.txt)

OPENABLE = frozenset({"drawer", "cabinet", "fridge", "microwave", "box", "safe"})
HOLLOW = OPENABLE | {"sink", "basket", "bin"}
"""Things are put *in* these, and *on* the others."""
LAMP = "lamp"

VERBS: dict[GoalType, tuple[str, ...]] = {
    "pick_clean_then_place_in_recep": ("clean",),
    "pick_heat_then_place_in_recep": ("heat",),
    "pick_cool_then_place_in_recep": ("cool",),
    "pick_clean_heat_then_place_in_recep": ("clean", "heat"),
    "pick_clean_cool_then_place_in_recep": ("clean", "cool"),
    "pick_two_clean_then_place_in_recep": ("clean",),
    "pick_two_heat_then_place_in_recep": ("heat",),
}
"""The treatments of a thing before it is put away, in order."""
APPLIANCES = {"clean": "sink", "heat": "microwave", "cool": "fridge"}


@dataclass(frozen=True)
class ThingKind:
    """A kind of thing."""

    rooms: frozenset[str]
    places: tuple[str, ...]
    """The kinds of fixtures where such a thing may be, and may be put."""
    uses: frozenset[str]
    """The possible actions on such a thing."""


def _read_kinds() -> tuple[dict[str, dict[str, int]], dict[str, ThingKind]]:
    rooms: dict[str, dict[str, int]] = {}
    things: dict[str, ThingKind] = {}
    text = Path(__file__).with_name("kinds.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        name, _, rest = line.partition(": ")
        if line.startswith("#") or not line:
            continue
        if "|" in rest:
            thing_rooms, places, uses = (part.split() for part in rest.split("|"))
            things[name] = ThingKind(frozenset(thing_rooms), tuple(places), frozenset(uses))
        else:
            pairs = (entry.partition(" ") for entry in rest.split(", "))
            rooms[name] = {kind: int(most or 1) for kind, _, most in pairs}
    return rooms, things


_rooms, _things = _read_kinds()
ROOMS: Mapping[str, Mapping[str, int]] = _rooms
"""Room → its kinds of fixtures → the maximum number of each."""
FIXTURES = tuple(dict.fromkeys(kind for room in ROOMS.values() for kind in room))
THINGS: Mapping[str, ThingKind] = _things

Part = Literal["train", "feedback", "heldout"]
Range = tuple[int, int]
"""Minimum and maximum."""
T = TypeVar("T")

TASK_TYPES: tuple[TaskType, ...] = get_args(TaskType)
CHAIN_TYPES: tuple[ChainType, ...] = get_args(ChainType)
SHARES: tuple[Part, ...] = ("train", "train", "train", "feedback", "heldout")


@dataclass(frozen=True)
class HomeDifficulty:
    """Size of a home, how much of it distracts, and the kinds of tasks that only scoring games have."""

    fixtures: Range = (4, 6)
    """Number of fixtures; more if the task needs more."""
    things: Range = (3, 6)
    """Number of things, including those of the goal; more if the goal needs more."""
    alike: Range = (0, 1)
    """Number of extra things of the goal's kind."""
    openable: float = 0.35
    """The share of fixtures that can be opened, among those that the task does not need."""
    shut: float = 0.75
    """Probability that a fixture that can be opened is closed at first."""
    rooms: int = 1
    """Number of rooms whose fixtures and things a home has: the one of the goal, and a second one."""
    unseen: tuple[GoalType, ...] = ()
    """Kinds of tasks of the feedback and held-out games that no training game has."""

    def __post_init__(self) -> None:
        limits = {"fixtures": (3, 12), "things": (3, 20), "alike": (0, 3)}
        for name, (least, most) in limits.items():
            low, high = getattr(self, name)
            if not least <= low <= high <= most:
                raise UserError(f"A home can have {least} to {most} {name}, not {low} to {high}.")
        if not (0 <= self.openable <= 1 and 0 <= self.shut <= 1):
            raise UserError("The shares of a difficulty must be between 0 and 1.")
        if self.rooms not in (1, 2):
            raise UserError(f"A home can have 1 or 2 rooms, not {self.rooms}.")

    def list_task_types(self, split: Part) -> tuple[GoalType, ...]:
        """Return the kinds of tasks that a split has."""
        return TASK_TYPES if split == "train" else (*TASK_TYPES, *self.unseen)


EASY = HomeDifficulty()
LEVELS: Mapping[str, HomeDifficulty] = {
    "easy": EASY,
    "medium": HomeDifficulty(fixtures=(6, 8), things=(6, 10), alike=(0, 2), openable=0.45, shut=0.9),
    "hard": HomeDifficulty(
        fixtures=(9, 12),
        things=(10, 18),
        alike=(0, 3),
        openable=0.55,
        shut=1.0,
        rooms=2,
        unseen=CHAIN_TYPES,
    ),
}


@dataclass(frozen=True)
class HomeGoal:
    """Put things of a kind in a kind of fixture, or hold one under a lamp."""

    type: GoalType
    room: str
    thing: str
    place: str
    """A kind of fixture, or the lamp."""

    @property
    def verbs(self) -> tuple[str, ...]:
        """The treatments of the thing, in order; empty if there is none."""
        return VERBS.get(self.type, ())

    @property
    def appliances(self) -> tuple[str, ...]:
        return tuple(APPLIANCES[verb] for verb in self.verbs)

    @property
    def count(self) -> int:
        return 2 if self.type in PLACED_TWICE else 1


@dataclass(frozen=True)
class HomeLayout:
    """A home, with names such as "drawer 2" or "mug 1"; each kind is numbered from 1."""

    goal: HomeGoal
    fixtures: tuple[str, ...]
    shut: frozenset[str]
    """The fixtures that are closed at first."""
    things: Mapping[str, str]
    """Thing → the fixture that it is in or on."""

    def list_of_kind(self, kind: str) -> list[str]:
        """Return the fixtures or things of a kind."""
        return [name for name in (*self.fixtures, *self.things) if kind_of(name) == kind]


def kind_of(name: str) -> str:
    return name.partition(" ")[0]


def split_of_room(fixtures: Iterable[str]) -> Part:
    """Return the split of a room, by the kinds of its fixtures."""
    return SHARES[sum(map(FIXTURES.index, fixtures)) % len(SHARES)]


def split_of_pair(thing: str, place: str) -> Part:
    """Return the split of a pair. As in a Latin square, training has 3/5 of the pairs of each kind."""
    return SHARES[([*THINGS].index(thing) + [*FIXTURES, LAMP].index(place)) % len(SHARES)]


@cache
def list_goals(task: GoalType, split: Part) -> tuple[HomeGoal, ...]:
    """Return all goals of a split. The thing must be able to start somewhere else than in its target."""
    goals = []
    for room, fixtures in ROOMS.items():
        for thing, kind in THINGS.items():
            places = (LAMP,) if task == "look_at_obj_in_light" else kind.places
            for place in places:
                goal = HomeGoal(task, room, thing, place)
                if split_of_pair(thing, place) == split and _is_sensible_goal(goal, fixtures):
                    goals.append(goal)
    return tuple(goals)


def _is_sensible_goal(goal: HomeGoal, fixtures: Mapping[str, int]) -> bool:
    kind = THINGS[goal.thing]
    return (
        {"take", *goal.verbs} <= kind.uses
        and goal.room in kind.rooms
        and (goal.place in fixtures or (goal.place == LAMP and goal.room in THINGS[LAMP].rooms))
        and all(appliance in fixtures and appliance != goal.place for appliance in goal.appliances)
        and bool(_list_source_kinds(goal))
    )


def _list_source_kinds(goal: HomeGoal) -> list[str]:
    """Return the kinds of fixtures where a thing of the goal may be at first."""
    return [kind for kind in THINGS[goal.thing].places if kind in ROOMS[goal.room] and kind != goal.place]


def furnish_home(dice: random.Random, task: GoalType, split: Part, difficulty: HomeDifficulty) -> HomeLayout:
    """Generate a home of a split in which a task can be done, and is not done yet."""
    while True:
        goal = pick_one(dice, list_goals(task, split))
        rooms = _choose_rooms(dice, goal, difficulty)
        kinds = _choose_fixture_kinds(dice, goal, rooms, difficulty)
        if split_of_room(kinds) == split:
            fixtures = _number_names(sorted(kinds))
            openable = (name for name in fixtures if kind_of(name) in OPENABLE)
            shut = frozenset(name for name in openable if dice.random() < difficulty.shut)
            things = _place_things(dice, goal, rooms, fixtures, difficulty)
            return HomeLayout(goal, fixtures, shut, things)


def _choose_rooms(dice: random.Random, goal: HomeGoal, difficulty: HomeDifficulty) -> tuple[str, ...]:
    """Choose the rooms of a home, that of the goal first."""
    if difficulty.rooms == 1:
        return (goal.room,)
    return (goal.room, pick_one(dice, [room for room in ROOMS if room != goal.room]))


def _choose_fixture_kinds(
    dice: random.Random, goal: HomeGoal, rooms: Sequence[str], difficulty: HomeDifficulty
) -> list[str]:
    """Choose the kinds of a home's fixtures: first those that the task needs, then others."""
    needs = {pick_one(dice, _list_source_kinds(goal)), goal.place, *goal.appliances} - {LAMP}
    kinds = sorted(needs)
    if goal.place == LAMP and not needs.intersection(THINGS[LAMP].places):
        kinds.append(pick_one(dice, [kind for kind in THINGS[LAMP].places if kind in ROOMS[goal.room]]))
    left: Counter[str] = Counter()
    for room in rooms:  # the maximum and not the sum: two rooms have one sink, as an appliance is unique
        left |= Counter(ROOMS[room])
    left.subtract(kinds)
    size = _draw_between(dice, difficulty.fixtures)
    while len(kinds) < size:
        openable = dice.random() < difficulty.openable
        free = [kind for kind, count in left.items() if count > 0]
        kind = pick_one(dice, [kind for kind in free if (kind in OPENABLE) == openable] or free)
        left[kind] -= 1
        kinds.append(kind)
    return kinds


def _place_things(
    dice: random.Random,
    goal: HomeGoal,
    rooms: Sequence[str],
    fixtures: Sequence[str],
    difficulty: HomeDifficulty,
) -> dict[str, str]:
    """Place the things of the goal, others of their kind, and unrelated ones."""

    def list_spots(thing: str) -> list[str]:
        return [name for name in fixtures if kind_of(name) in THINGS[thing].places]

    def list_other_spots(thing: str) -> list[str]:
        return [name for name in list_spots(thing) if kind_of(name) != goal.place]

    others = [
        kind
        for kind, thing in THINGS.items()
        if thing.rooms.intersection(rooms) and kind not in (goal.thing, LAMP) and list_spots(kind)
    ]
    placed = [(goal.thing, pick_one(dice, list_other_spots(goal.thing))) for _ in range(goal.count)]
    for _ in range(_draw_between(dice, difficulty.alike)):
        # A thing that must be treated first may already be at its target.
        spots = list_spots(goal.thing) if goal.verbs else list_other_spots(goal.thing)
        placed.append((goal.thing, pick_one(dice, spots)))
    if goal.place == LAMP:
        placed.append((LAMP, pick_one(dice, list_spots(LAMP))))
    for _ in range(_draw_between(dice, difficulty.things) - len(placed)):
        kind = pick_one(dice, others)
        placed.append((kind, pick_one(dice, list_spots(kind))))
    placed.sort(key=lambda pair: pair[0])
    return dict(zip(_number_names([kind for kind, _ in placed]), (place for _, place in placed), strict=True))


def _number_names(kinds: Iterable[str]) -> tuple[str, ...]:
    """Number names by kind, from 1."""
    seen: Counter[str] = Counter()
    names = []
    for kind in kinds:
        seen[kind] += 1
        names.append(f"{kind} {seen[kind]}")
    return tuple(names)


def _draw_between(dice: random.Random, limits: Range) -> int:
    return pick_one(dice, range(limits[0], limits[1] + 1))


def pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """Pick a value with `random()`, the only method with the same numbers in every Python version."""
    return choices[int(dice.random() * len(choices))]
