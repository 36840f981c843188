"""Methods of lists and dictionaries."""

from collections.abc import Mapping, Sequence

from agent2rl.analysis.programs.core import Core
from agent2rl.analysis.programs.values import (
    NOTHING,
    UNKNOWN,
    Fields,
    Several,
    Value,
    constant,
    join,
    several,
    some,
    thing,
)

ADDING = {"append", "add", "appendleft", "put", "push", "add_example"}
EXTENDING = {"extend", "update", "extendleft"}
TAKING = {"pop", "popleft", "popitem", "get"}
SAME = {"copy", "tolist", "shuffle", "select", "shard", "with_format", "reverse", "union"}


def method(
    machine: Core,
    receiver: Value,
    owner: Several | Fields,
    name: str,
    positional: Sequence[Value],
    keywords: Mapping[str, Value],
) -> Value | None:
    """What it gives; None where it is not known."""
    if isinstance(owner, Several):
        return _of_list(machine, receiver, owner, name, positional)
    return _of_dictionary(receiver, owner, name, positional, keywords)


def _of_list(
    machine: Core, receiver: Value, owner: Several, name: str, positional: Sequence[Value]
) -> Value | None:
    if (name in ADDING and positional) or (name == "insert" and len(positional) > 1):
        added = machine.guarded(positional[-1])
        if owner.elements is not None and not machine.loops and not machine.uncertain:
            owner.elements.append(added)
        else:
            owner.rest = join([owner.rest, added])
        return constant(None)
    if name in EXTENDING and positional:
        owner.rest = join([owner.rest, machine.guarded(machine.element(positional[0]))])
        return constant(None)
    if name in TAKING:
        return machine.element(receiver)
    if name in SAME:
        return receiver
    if name == "sort":
        return constant(None)
    return None


def _of_dictionary(
    receiver: Value, owner: Fields, name: str, positional: Sequence[Value], keywords: Mapping[str, Value]
) -> Value | None:
    key = positional[0].constant if positional and positional[0].known else UNKNOWN
    if name in ("get", "pop", "setdefault"):
        if key is not UNKNOWN and str(key) in owner.known:
            found = owner.known[str(key)]
        elif name == "setdefault" and len(positional) > 1:
            if key is UNKNOWN:
                owner.rest = join([owner.rest, positional[1]])
                found = owner.rest
            else:
                found = owner.known[str(key)] = positional[1]
        else:
            otherwise = positional[1] if len(positional) > 1 else NOTHING
            found = join([owner.rest if key is not UNKNOWN else owner.any(), otherwise])
        return Value(found.marks | receiver.marks, found.constant, found.things)
    if name == "items":
        if owner.rest is NOTHING:
            return several([several([constant(each), value]) for each, value in owner.known.items()])
        return some(several([NOTHING, owner.any()]))
    if name == "values":
        return several(owner.known.values()) if owner.rest is NOTHING else some(owner.any())
    if name == "keys":
        return several([constant(each) for each in owner.known])
    if name == "update":
        for each in positional:
            for one in each.things:
                if isinstance(one, Fields):
                    owner.known |= one.known
                    owner.rest = join([owner.rest, one.rest])
        owner.known |= dict(keywords)
        return constant(None)
    if name == "copy":
        return thing(Fields(dict(owner.known), owner.rest), receiver.marks)
    if name == "to":
        return receiver
    return None
