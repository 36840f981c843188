"""Methods of lists and dictionaries."""

from collections.abc import Mapping, Sequence

from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractValue,
    DictValue,
    ListValue,
    join_values,
    make_constant,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter

ADDING = {"append", "add", "appendleft", "put", "push", "add_example"}
EXTENDING = {"extend", "update", "extendleft"}
TAKING = {"pop", "popleft", "popitem", "get"}
SAME_ITEMS = {"copy", "tolist", "shuffle", "select", "shard", "with_format", "reverse", "union"}


def interpret_container_method(
    machine: AbstractInterpreter,
    receiver: AbstractValue,
    owner: ListValue | DictValue,
    name: str,
    positional: Sequence[AbstractValue],
    keywords: Mapping[str, AbstractValue],
) -> AbstractValue | None:
    """What it gives; None where it is not known."""
    if isinstance(owner, ListValue):
        return _interpret_list_method(machine, receiver, owner, name, positional)
    return _interpret_dict_method(receiver, owner, name, positional, keywords)


def _interpret_list_method(
    machine: AbstractInterpreter,
    receiver: AbstractValue,
    owner: ListValue,
    name: str,
    positional: Sequence[AbstractValue],
) -> AbstractValue | None:
    if (name in ADDING and positional) or (name == "insert" and len(positional) > 1):
        added = machine.mark_filtered(positional[-1])
        if owner.elements is not None and not machine.loops and not machine.uncertain:
            owner.elements.append(added)
        else:
            owner.rest = join_values([owner.rest, added])
        return make_constant(None)
    if name in EXTENDING and positional:
        owner.rest = join_values([owner.rest, machine.mark_filtered(machine.read_element(positional[0]))])
        return make_constant(None)
    if name in TAKING:
        return machine.read_element(receiver)
    if name in SAME_ITEMS:
        return receiver
    if name == "sort":
        return make_constant(None)
    return None


def _interpret_dict_method(
    receiver: AbstractValue,
    owner: DictValue,
    name: str,
    positional: Sequence[AbstractValue],
    keywords: Mapping[str, AbstractValue],
) -> AbstractValue | None:
    key = positional[0].constant if positional and positional[0].known else UNKNOWN
    if name in ("get", "pop", "setdefault"):
        if key is not UNKNOWN and str(key) in owner.known:
            found = owner.known[str(key)]
        elif name == "setdefault" and len(positional) > 1:
            if key is UNKNOWN:
                owner.rest = join_values([owner.rest, positional[1]])
                found = owner.rest
            else:
                found = owner.known[str(key)] = positional[1]
        else:
            otherwise = positional[1] if len(positional) > 1 else NOTHING
            found = join_values([owner.rest if key is not UNKNOWN else owner.join_elements(), otherwise])
        return AbstractValue(found.marks | receiver.marks, found.constant, found.things)
    if name == "items":
        if owner.rest is NOTHING:
            return make_list([make_list([make_constant(each), value]) for each, value in owner.known.items()])
        return make_open_list(make_list([NOTHING, owner.join_elements()]))
    if name == "values":
        return (
            make_list(owner.known.values())
            if owner.rest is NOTHING
            else make_open_list(owner.join_elements())
        )
    if name == "keys":
        return make_list([make_constant(each) for each in owner.known])
    if name == "update":
        for each in positional:
            for one in each.things:
                if isinstance(one, DictValue):
                    owner.known |= one.known
                    owner.rest = join_values([owner.rest, one.rest])
        owner.known |= dict(keywords)
        return make_constant(None)
    if name == "copy":
        return make_value(DictValue(dict(owner.known), owner.rest), receiver.marks)
    if name == "to":
        return receiver
    return None
