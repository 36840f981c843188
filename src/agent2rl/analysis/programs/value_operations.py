"""Operations on values: attributes, items, and the methods of lists and dictionaries."""

import posixpath
from collections.abc import Mapping, Sequence

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractObject,
    AbstractValue,
    BoundMethod,
    ClassValue,
    Constant,
    DictValue,
    FunctionValue,
    InstanceValue,
    LibraryObject,
    LibrarySymbol,
    ListValue,
    ModuleValue,
    UnresolvedMethod,
    join_values,
    make_constant,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import REWARD, AbstractInterpreter
from agent2rl.analysis.workspace_paths import HOLE

# Attributes.

PLAIN = {
    "shape", "device", "dtype", "config", "pad_token_id", "eos_token_id", "pad_token", "eos_token", "size",
    "ndim", "training", "is_main_process", "generation_config", "vocab_size", "bos_token_id",
}  # fmt: skip
"""Attributes without any marks."""
PATHS = {"parent", "name", "stem", "suffix"}


def look_up_attribute(machine: AbstractInterpreter, value: AbstractValue, name: str) -> AbstractValue:
    if name in PLAIN:
        return AbstractValue()
    if isinstance(value.constant, str) and name in PATHS:
        return make_constant(_path_part(value.constant, name), value.marks)
    if value.known and name == "value":
        return value  # `.value` of an Enum member
    results = [_find_on_object(machine, value, each, name) for each in value.things]
    if any(isinstance(each, DictValue) for each in value.things) and not any(
        each is not None for each in results
    ):
        results.append(None)
    members = [each for each in results if each is not None]
    if members and len(members) == len(results):
        joined = join_values(members)
        return AbstractValue(joined.marks | value.marks, joined.constant, joined.things)
    owner = value.things[0] if value.things else None
    return AbstractValue(
        infer_attribute_marks(machine, value, name), UNKNOWN, (UnresolvedMethod(value, owner, name),)
    )


def _find_on_object(
    machine: AbstractInterpreter, value: AbstractValue, owner: AbstractObject, name: str
) -> AbstractValue | None:
    match owner:
        case ModuleValue():
            return owner.scope.names.get(name) or _load_submodule(machine, owner, name)
        case LibrarySymbol():
            if owner.name == "sys" and name == "argv":
                return make_list([make_constant(machine.place.path), *map(make_constant, machine.argv)])
            return make_value(LibrarySymbol(f"{owner.name}.{name}"))
        case ClassValue():
            member = owner.find_member(name)
            if name == "value" and member is None:
                return make_value(owner)
            return (
                member if member is not None else make_value(UnresolvedMethod(make_value(owner), owner, name))
            )
        case InstanceValue():
            return _find_on_instance(machine, value, owner, name)
        case DictValue():
            return owner.known.get(name)
        case LibraryObject():
            if name in owner.attributes:
                return owner.attributes[name]
            configured = ("Config", "Arguments", "Settings")
            if name in owner.keywords and (
                owner.name.endswith(configured) or not owner.keywords[name].things
            ):
                return owner.keywords[name]
            return None
        case _:
            return None


def _load_submodule(machine: AbstractInterpreter, module: ModuleValue, name: str) -> AbstractValue | None:
    submodule = machine.load_module(f"{module.name}.{name}", module.path.rpartition("/")[0])
    return make_value(submodule) if submodule else None


def _find_on_instance(
    machine: AbstractInterpreter, value: AbstractValue, owner: InstanceValue, name: str
) -> AbstractValue | None:
    if name in owner.attributes:
        return owner.attributes[name]
    member = owner.of.find_member(name)
    if member is None:
        return None
    if name in owner.keywords and not member.things:
        return owner.keywords[name]
    bound: list[AbstractValue] = []
    for each in member.things:
        if not isinstance(each, FunctionValue):
            continue
        decorators = {decorator_name(node) for node in getattr(each.node, "decorator_list", [])}
        if decorators & {"property", "cached_property"}:
            bound.append(machine.call_value(make_value(BoundMethod(each, make_value(owner))), [], {}))
        elif "staticmethod" in decorators:
            bound.append(make_value(each))
        else:
            bound.append(make_value(BoundMethod(each, make_value(owner, value.marks))))
    return join_values(bound) if bound else member


def decorator_name(node: object) -> str:
    """Return the last part of a decorator's name."""
    node = getattr(node, "func", node)
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _path_part(path: str, name: str) -> str:
    head, last = posixpath.split(path.rstrip("/"))
    match name:
        case "parent":
            return head or "."
        case "name":
            return last
        case "stem":
            return last.rpartition(".")[0] or last
        case _:
            return posixpath.splitext(last)[1] if HOLE not in last else HOLE


def infer_attribute_marks(machine: AbstractInterpreter, value: AbstractValue, name: str) -> m.Marks:
    """Return the marks of an attribute of which nothing else is known."""
    marks = value.marks
    if name == "loss" and m.FORWARD in marks:
        return (marks - {m.FORWARD, m.LOGITS}) | {machine.record_mark(m.NLL)}
    if name in ("logits", "last_hidden_state") and m.FORWARD in marks:
        return (marks - {m.FORWARD}) | {m.LOGITS}
    if REWARD.search(name.lower()) and marks & {m.WORLD, m.SAID, m.DATA} and name != "reward_model":
        return (marks - m.OWN - {m.FILTERED}) | {machine.record_mark(m.JUDGED)}
    if name in ("parameters", "state_dict", "named_parameters", "data", "weight") and m.select_models(marks):
        return marks | {m.WEIGHTS}
    if name in ("log_prob", "logprobs", "logprob", "log_probs"):
        return marks | {m.LOGPROB, m.PICKED}
    return marks


# Items and elements.

PAIR = {
    "chosen": m.CHOSEN,
    "rejected": m.REJECTED,
    "preferred": m.CHOSEN,
    "dispreferred": m.REJECTED,
    "winner": m.CHOSEN,
    "loser": m.REJECTED,
}


class ItemInterpreter(AbstractInterpreter):
    def read_item(self, value: AbstractValue, index: AbstractValue) -> AbstractValue:
        key = index.constant
        exact, loose = list[AbstractValue](), list[AbstractValue]()
        for one in value.things:
            match one:
                case ListValue() if one.elements is not None and isinstance(key, int):
                    inside = -len(one.elements) <= key < len(one.elements)
                    exact.append(one.elements[key] if inside else one.rest)
                case ListValue():
                    exact.append(one.join_elements())
                case DictValue() if key is not UNKNOWN and str(key) in one.known:
                    exact.append(one.known[str(key)])
                case DictValue():
                    loose.append(one.rest if key is not UNKNOWN else one.join_elements())
                case InstanceValue() if one.of.find_member("__getitem__"):
                    exact.append(self.call_value(self.read_attribute(value, "__getitem__"), [index], {}))
                case InstanceValue() if isinstance(key, str):
                    exact.append(one.attributes.get(key, NOTHING))
                case LibraryObject() if isinstance(key, str) and key in one.attributes:
                    exact.append(one.attributes[key])
                case LibraryObject():
                    loose.append(self.read_element(make_value(one)))
                case _:
                    pass
        item = join_values([*exact, *loose])
        item = AbstractValue(item.marks | value.marks, item.constant, item.things)
        return item if exact else self.mark_named_item(item, key)

    def mark_named_item(self, value: AbstractValue, name: Constant) -> AbstractValue:
        """Mark an item of a row or of an environment's response by its name."""
        if not isinstance(name, str):
            return value
        if m.FORWARD in value.marks and name in ("loss", "logits"):
            return AbstractValue(infer_attribute_marks(self, value, name))
        lowered = name.lower()
        for word, mark in PAIR.items():
            if lowered.startswith(word):
                return value.with_marks(self.record_mark(mark))
        if REWARD.search(lowered) and value.marks & {m.DATA, m.SAID, m.WORLD, m.TOKENS}:
            return AbstractValue(value.marks - m.OWN - {m.FILTERED}, UNKNOWN).with_marks(
                self.record_mark(m.JUDGED)
            )
        return value

    def read_element(self, value: AbstractValue) -> AbstractValue:
        """Return any element of a value."""
        elements: list[AbstractValue] = []
        for one in value.things:
            match one:
                case ListValue() | DictValue():
                    elements.append(one.join_elements() if isinstance(one, ListValue) else NOTHING)
                case InstanceValue():
                    for name in ("__iter__", "__getitem__"):
                        if one.of.find_member(name):
                            joined = self.call_value(self.read_attribute(make_value(one), name), [], {})
                            elements.append(self.read_element(joined) if name == "__iter__" else joined)
                            break
                case LibraryObject() if "rows" in one.attributes:
                    elements.append(one.attributes["rows"])
                case LibraryObject() | UnresolvedMethod():
                    elements.append(AbstractValue(things=(one,)))
                case _:
                    pass
        joined = join_values(elements)
        return AbstractValue(joined.marks | value.marks, joined.constant, joined.things)

    def read_attribute(self, value: AbstractValue, name: str) -> AbstractValue:
        return look_up_attribute(self, value, name)


# Methods of lists and dictionaries.

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
    """Return the result of a method; None if the method is not known."""
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
        # In a loop, or in a branch that may not be taken, the length is not known any more.
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
            item = owner.known[str(key)]
        elif name == "setdefault" and len(positional) > 1:
            if key is UNKNOWN:
                owner.rest = join_values([owner.rest, positional[1]])
                item = owner.rest
            else:
                item = owner.known[str(key)] = positional[1]
        else:
            otherwise = positional[1] if len(positional) > 1 else NOTHING
            item = join_values([owner.rest if key is not UNKNOWN else owner.join_elements(), otherwise])
        return AbstractValue(item.marks | receiver.marks, item.constant, item.things)
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
