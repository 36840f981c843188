"""What is behind a dot."""

import posixpath

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    HOLE,
    UNKNOWN,
    AbstractObject,
    AbstractValue,
    BoundMethod,
    ClassValue,
    DictValue,
    FunctionValue,
    InstanceValue,
    LibraryObject,
    LibrarySymbol,
    ModuleValue,
    UnresolvedMethod,
    join_values,
    make_constant,
    make_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import REWARD, AbstractInterpreter

PLAIN = {
    "shape", "device", "dtype", "config", "pad_token_id", "eos_token_id", "pad_token", "eos_token", "size",
    "ndim", "training", "is_main_process", "generation_config", "vocab_size", "bos_token_id",
}  # fmt: skip
"""Say nothing of what a value is made of."""
PATHS = {"parent", "name", "stem", "suffix"}


def look_up_attribute(machine: AbstractInterpreter, value: AbstractValue, name: str) -> AbstractValue:
    if name in PLAIN:
        return AbstractValue()
    if isinstance(value.constant, str) and name in PATHS:
        return make_constant(_path_part(value.constant, name), value.marks)
    if value.known and name == "value":
        return value  # of an Enum
    found = [_find_on_object(machine, value, each, name) for each in value.things]
    if any(isinstance(each, DictValue) for each in value.things) and not any(
        each is not None for each in found
    ):
        found.append(None)
    known = [each for each in found if each is not None]
    if known and len(known) == len(found):
        joined = join_values(known)
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
            found = owner.find_member(name)
            if name == "value" and found is None:
                return make_value(owner)
            return (
                found if found is not None else make_value(UnresolvedMethod(make_value(owner), owner, name))
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
    found = machine.load_module(f"{module.name}.{name}", module.path.rpartition("/")[0])
    return make_value(found) if found else None


def _find_on_instance(
    machine: AbstractInterpreter, value: AbstractValue, owner: InstanceValue, name: str
) -> AbstractValue | None:
    if name in owner.attributes:
        return owner.attributes[name]
    found = owner.of.find_member(name)
    if found is None:
        return None
    if name in owner.keywords and not found.things:
        return owner.keywords[name]
    bound: list[AbstractValue] = []
    for each in found.things:
        if not isinstance(each, FunctionValue):
            continue
        decorators = {decorator_name(node) for node in getattr(each.node, "decorator_list", [])}
        if decorators & {"property", "cached_property"}:
            bound.append(machine.call_value(make_value(BoundMethod(each, make_value(owner))), [], {}))
        elif "staticmethod" in decorators:
            bound.append(make_value(each))
        else:
            bound.append(make_value(BoundMethod(each, make_value(owner, value.marks))))
    return join_values(bound) if bound else found


def decorator_name(node: object) -> str:
    """The last name of a decorator."""
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
    """The marks of what a value has under a name, where nothing else is known of it."""
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
