"""What is behind a dot."""

import posixpath

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import REWARD, Core
from agent2rl.analysis.programs.values import (
    HOLE,
    UNKNOWN,
    Bound,
    Class,
    External,
    Fields,
    Foreign,
    Function,
    Instance,
    Method,
    Module,
    Thing,
    Value,
    constant,
    join,
    several,
    thing,
)

PLAIN = {
    "shape", "device", "dtype", "config", "pad_token_id", "eos_token_id", "pad_token", "eos_token", "size",
    "ndim", "training", "is_main_process", "generation_config", "vocab_size", "bos_token_id",
}  # fmt: skip
"""Say nothing of what a value is made of."""
PATHS = {"parent", "name", "stem", "suffix"}


def read(machine: Core, value: Value, name: str) -> Value:
    if name in PLAIN:
        return Value()
    if isinstance(value.constant, str) and name in PATHS:
        return constant(_path(value.constant, name), value.marks)
    if value.known and name == "value":
        return value  # of an Enum
    found = [_of(machine, value, each, name) for each in value.things]
    if any(isinstance(each, Fields) for each in value.things) and not any(each is not None for each in found):
        found.append(None)
    known = [each for each in found if each is not None]
    if known and len(known) == len(found):
        joined = join(known)
        return Value(joined.marks | value.marks, joined.constant, joined.things)
    owner = value.things[0] if value.things else None
    return Value(behind(machine, value, name), UNKNOWN, (Method(value, owner, name),))


def _of(machine: Core, value: Value, owner: Thing, name: str) -> Value | None:
    match owner:
        case Module():
            return owner.scope.names.get(name) or _submodule(machine, owner, name)
        case External():
            if owner.name == "sys" and name == "argv":
                return several([constant(machine.place.path), *map(constant, machine.argv)])
            return thing(External(f"{owner.name}.{name}"))
        case Class():
            found = owner.find(name)
            if name == "value" and found is None:
                return thing(owner)
            return found if found is not None else thing(Method(thing(owner), owner, name))
        case Instance():
            return _of_instance(machine, value, owner, name)
        case Fields():
            return owner.known.get(name)
        case Foreign():
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


def _submodule(machine: Core, module: Module, name: str) -> Value | None:
    found = machine.load(f"{module.name}.{name}", module.path.rpartition("/")[0])
    return thing(found) if found else None


def _of_instance(machine: Core, value: Value, owner: Instance, name: str) -> Value | None:
    if name in owner.attributes:
        return owner.attributes[name]
    found = owner.of.find(name)
    if found is None:
        return None
    if name in owner.keywords and not found.things:
        return owner.keywords[name]
    bound: list[Value] = []
    for each in found.things:
        if not isinstance(each, Function):
            continue
        decorators = {ast_name(node) for node in getattr(each.node, "decorator_list", [])}
        if decorators & {"property", "cached_property"}:
            bound.append(machine.call(thing(Bound(each, thing(owner))), [], {}))
        elif "staticmethod" in decorators:
            bound.append(thing(each))
        else:
            bound.append(thing(Bound(each, thing(owner, value.marks))))
    return join(bound) if bound else found


def ast_name(node: object) -> str:
    """The last name of a decorator."""
    node = getattr(node, "func", node)
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _path(path: str, name: str) -> str:
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


def behind(machine: Core, value: Value, name: str) -> m.Marks:
    """The marks of what a value has under a name, where nothing else is known of it."""
    marks = value.marks
    if name == "loss" and m.FORWARD in marks:
        return (marks - {m.FORWARD, m.LOGITS}) | {machine.made(m.NLL)}
    if name in ("logits", "last_hidden_state") and m.FORWARD in marks:
        return (marks - {m.FORWARD}) | {m.LOGITS}
    if REWARD.search(name.lower()) and marks & {m.WORLD, m.SAID, m.DATA} and name != "reward_model":
        return (marks - m.OWN - {m.FILTERED}) | {machine.made(m.JUDGED)}
    if name in ("parameters", "state_dict", "named_parameters", "data", "weight") and m.models(marks):
        return marks | {m.WEIGHTS}
    if name in ("log_prob", "logprobs", "logprob", "log_probs"):
        return marks | {m.LOGPROB, m.PICKED}
    return marks
