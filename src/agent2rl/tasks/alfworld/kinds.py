"""What there is in the homes of the miniature: kinds of rooms, fixtures and things (kinds.txt).

A kind is the word that stands for it in texts. All are words that the seedling has read, one token each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent2rl.environments.alfworld.goal import TaskType

OPENABLE = frozenset({"drawer", "cabinet", "fridge", "microwave", "box", "safe"})
HOLLOW = OPENABLE | {"sink", "basket", "bin"}
"""Things are put *in* these, and *on* the others."""
LAMP = "lamp"

VERBS: dict[TaskType, str] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
"""What is to be done to a thing before it is put away."""
APPLIANCES = {"clean": "sink", "heat": "microwave", "cool": "fridge"}


@dataclass(frozen=True)
class ThingKind:
    """A kind of things."""

    rooms: frozenset[str]
    places: tuple[str, ...]
    """The kinds of fixtures where one lies, and where one may be put."""
    uses: frozenset[str]
    """What can be done to one."""


def _read_kinds() -> tuple[dict[str, dict[str, int]], dict[str, ThingKind]]:
    rooms: dict[str, dict[str, int]] = {}
    things: dict[str, ThingKind] = {}
    text = Path(__file__).with_name("kinds.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        name, _, rest = line.partition(": ")
        if line.startswith("#") or not line:
            continue
        if "|" in rest:
            where, places, uses = (part.split() for part in rest.split("|"))
            things[name] = ThingKind(frozenset(where), tuple(places), frozenset(uses))
        else:
            pairs = (entry.partition(" ") for entry in rest.split(", "))
            rooms[name] = {kind: int(most or 1) for kind, _, most in pairs}
    return rooms, things


_rooms, _things = _read_kinds()
ROOMS: Mapping[str, Mapping[str, int]] = _rooms
"""Room → its kinds of fixtures → how many of the kind there may be."""
FIXTURES = tuple(dict.fromkeys(kind for room in ROOMS.values() for kind in room))
THINGS: Mapping[str, ThingKind] = _things
