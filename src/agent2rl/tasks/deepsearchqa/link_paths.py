"""Ways through the miniature's world: links one after another, forwards, backwards (`~`) or both.

A way belongs to one split, so that no question of another split goes the same way.
"""

from collections.abc import Iterator
from functools import cache

from agent2rl.tasks.deepsearchqa.facts import LINKS, FactWorld
from agent2rl.tasks.deepsearchqa.names import Part

LinkPath = tuple[str, ...]
SHARES: dict[Part, tuple[int, ...]] = {"train": (0, 1), "feedback": (2,), "heldout": (3,)}
"""Every way has a number; its remainder by four says whose it is."""
BACK = "~"
TARGETS = {link: (kind, to) for kind, links in LINKS.items() for link, to in links.items()}
"""Link → from what it leads to what."""


def find_start_kind(path: LinkPath) -> str:
    """The kind of thing that a way begins with."""
    link = path[0]
    return TARGETS[link[1:]][1] if link.startswith(BACK) else TARGETS[link][0]


def find_end_kind(path: LinkPath) -> str:
    link = path[-1]
    return TARGETS[link[1:]][0] if link.startswith(BACK) else TARGETS[link][1]


@cache
def list_forward_paths(split: Part) -> tuple[LinkPath, ...]:
    """Two or three links that lead to one thing."""
    return _select_split((path for length in (2, 3) for path in _iterate_chains(length)), split)


@cache
def list_backward_paths(split: Part) -> tuple[LinkPath, ...]:
    """Ways that lead to several things: one or two links back, after none or one forwards."""
    singles: list[LinkPath] = [(BACK + link,) for link in TARGETS]
    doubles = [
        (*one, *two) for one in singles for two in singles if find_end_kind(one) == find_start_kind(two)
    ]
    mixed = [((link, *back)) for link in TARGETS for back in (*singles, *doubles)]
    turned = [
        path
        for path in mixed
        if TARGETS[path[0]][1] == find_start_kind(path[1:]) and path[1] != BACK + path[0]
    ]
    return _select_split((path for path in (*doubles, *turned) if BACK + "capital" not in path), split)


def follow_path(world: FactWorld, thing: str, path: LinkPath) -> list[tuple[str, ...]]:
    """Every way from a thing along a path, as the things that it passes, the first and the last included."""
    ways: list[tuple[str, ...]] = [(thing,)]
    for link in path:
        if link.startswith(BACK):
            ways = [(*way, source) for way in ways for source in world.back.get((link[1:], way[-1]), ())]
        else:
            ways = [(*way, world.things[way[-1]].links[link]) for way in ways]
    return ways


def _iterate_chains(length: int) -> Iterator[LinkPath]:
    if length == 1:
        yield from ((link,) for link in TARGETS)
        return
    for path in _iterate_chains(length - 1):
        for link, (kind, _) in TARGETS.items():
            if kind == find_end_kind(path) and {path[-1], link} != {"country", "capital"}:
                yield (*path, link)


def _select_split(paths: Iterator[LinkPath], split: Part) -> tuple[LinkPath, ...]:
    return tuple(path for number, path in enumerate(sorted(set(paths))) if number % 4 in SHARES[split])
