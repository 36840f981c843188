"""Python's own functions: lists, paths, files, other programs."""

import posixpath

from agent2rl.analysis.programs import filesystem
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.values import (
    HOLE,
    NOTHING,
    UNKNOWN,
    Fields,
    Function,
    Gradient,
    Partial,
    Several,
    Value,
    constant,
    deep,
    fields,
    join,
    several,
    some,
    thing,
)

SAME = {
    "list", "tuple", "set", "iter", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "reversed", "copy.copy",
    "copy.deepcopy", "json.loads", "json.dumps", "collections.deque", "asyncio.run", "str.strip",
    "rich.progress.track", "orjson.loads", "orjson.dumps", "ujson.loads", "itertools.chain.from_iterable",
    "itertools.islice", "itertools.cycle", "frozenset", "trange", "random.shuffle", "copy",
}  # fmt: skip
PATH_METHODS = {
    "resolve", "absolute", "as_posix", "expanduser", "strip", "__str__", "format_map", "rstrip", "lower",
}  # fmt: skip


def known(machine: Core, call: Call) -> Value | None:
    name, given = call.name, (call.positional[0] if call.positional else NOTHING)
    if name in SAME and call.receiver is None:
        if name in filesystem.CONFIGS and (found := filesystem.config(machine, given)):
            return found
        return given if call.positional else several([])
    if name in filesystem.STARTED:
        return filesystem.started(machine, call)
    if name in filesystem.COPIED and len(call.positional) > 1:
        source, target = call.positional[0].text, call.positional[1].text
        if source and target:
            machine.trace.copy(source, target)
        return call.positional[1]
    if call.receiver is None and (found := filesystem.paths(machine, call, given)):
        return found
    if found := filesystem.files(machine, call, given):
        return found
    if call.receiver is None:
        return _functions(machine, call, given)
    return _texts(machine, call)


def _functions(machine: Core, call: Call, given: Value) -> Value | None:
    match call.name:
        case "enumerate":
            return some(several([NOTHING, machine.element(given)]))
        case "zip" | "itertools.product" | "itertools.zip_longest":
            return some(several([machine.element(each) for each in call.positional]))
        case "map" | "itertools.starmap":
            return some(machine.call(given, [machine.element(each) for each in call.positional[1:]], {}))
        case "filter":
            element = machine.element(call.positional[1] if len(call.positional) > 1 else NOTHING)
            test = machine.call(given, [element], {})
            return some(machine.guarded(element, deep(test)))
        case "sorted" | "max" | "min" | "heapq.nlargest" | "heapq.nsmallest":
            return _ranked(machine, call, given)
        case "random.choice":
            return machine.element(given)
        case "random.sample" | "random.choices" | "more_itertools.chunked":
            return some(machine.element(given))
        case "itertools.chain":
            return some(join(machine.element(each) for each in call.positional))
        case "dict" | "types.SimpleNamespace" | "argparse.Namespace" | "collections.OrderedDict":
            known = next((one for one in given.things if isinstance(one, Fields)), None)
            return fields(
                {**(known.known if known else {}), **call.keywords}, known.rest if known else NOTHING
            )
        case "collections.defaultdict":
            return fields({}, several([]) if not given.things else machine.call(given, [], {}))
        case "len":
            lists = [one for one in given.things if isinstance(one, Several)]
            whole = [one.elements for one in lists if one.elements is not None and one.rest is NOTHING]
            return constant(len(whole[0])) if len(whole) == len(given.things) == 1 else NOTHING
        case "functools.partial" | "types.MethodType":
            return thing(Partial(given, tuple(call.positional[1:]), dict(call.keywords)))
        case "int" | "float" | "bool" | "round" | "abs" | "sum":
            return _number(call, given)
        case "getattr" if len(call.positional) > 1 and call.positional[1].known:
            return machine.attribute(given, str(call.positional[1].constant))
        case "setattr" if len(call.positional) > 2:
            return NOTHING
        case "vars" | "dataclasses.asdict":
            return given
        case "dataclasses.field" | "pydantic.Field":
            return _default(machine, call, given)
        case "super":
            return NOTHING
        case "jax.grad" | "jax.value_and_grad" | "torch.func.grad" | "torch.func.grad_and_value":
            return thing(Gradient(given))
        case name if name.rpartition(".")[2] in ("grad", "value_and_grad"):
            functions = [each for each in call.positional if _function(each)]
            return thing(Gradient(functions[0])) if functions else None
        case "__import__" | "importlib.import_module":
            module = machine.load(given.text, machine.place.path.rpartition("/")[0]) if given.text else None
            return thing(module) if module else None
        case _:
            return None


def _function(value: Value) -> bool:
    return any(isinstance(one, Function | Partial) for one in value.things)


def _default(machine: Core, call: Call, given: Value) -> Value:
    made = call.argument("default_factory")
    if made is not None:
        return machine.call(made, [], {})
    return call.argument("default") or given


def _number(call: Call, given: Value) -> Value:
    marks, known = deep(given), given.constant
    if m.SAID in marks and call.name in ("int", "float"):
        marks = (marks - m.OWN - {m.FILTERED}) | {m.JUDGED}  # a number in what was said: only judges read it
    try:
        if call.name == "float" and isinstance(known, str | int | float) and given.known:
            return constant(float(known), marks)
        if call.name == "int" and isinstance(known, int | float) and abs(known) < 1e15:
            return constant(int(known), marks)
    except (ValueError, OverflowError):
        pass
    return Value(marks)


def _ranked(machine: Core, call: Call, given: Value) -> Value:
    """The best of several: samples that a judgement put first are chosen by it."""
    values = [given] if call.name != "heapq.nlargest" else list(call.positional[1:2])
    several_given = len(call.positional) > 1 and not call.name.startswith("heapq")
    element = join(call.positional) if several_given else machine.element(join(values))
    key = call.argument("key")
    judged = deep(machine.call(key, [element], {})) if key is not None else deep(element)
    if m.JUDGED in judged or (key is not None and m.SAID in judged):
        element = machine.guarded(element, frozenset({m.JUDGED}))
        for one in element.things:
            if isinstance(one, Several) and one.elements is not None:
                chosen = [machine.guarded(each, frozenset({m.JUDGED})) for each in one.elements]
                element = Value(element.marks, UNKNOWN, several(chosen).things)
    if several_given:
        return Value(deep(element), UNKNOWN, element.things)
    return element if call.name in ("max", "min") else some(element)


def _texts(machine: Core, call: Call) -> Value | None:
    """Methods of texts, which may stand for what was written as JSON."""
    receiver, last = call.receiver or NOTHING, call.last
    given = call.positional[0] if call.positional else NOTHING
    if last == "join" and receiver.text is not None:
        element = machine.element(given)
        return Value(element.marks | receiver.marks, UNKNOWN, element.things)
    if last == "joinpath" and receiver.text is not None:
        return constant(filesystem.slashed([receiver, *call.positional]))
    if last == "with_name" and receiver.text is not None:
        return constant(f"{posixpath.dirname(receiver.text)}/{given.text or HOLE}")
    if last in PATH_METHODS and receiver.text is not None:
        return receiver
    if last in filesystem.LINES:
        return some(Value(receiver.marks, UNKNOWN, receiver.things))
    if last == "format" and receiver.text is not None:
        marks = receiver.marks.union(*map(deep, call.all))
        return Value(marks, _filled(receiver.text, call))
    return None


def _filled(text: str, call: Call) -> str:
    head, brace, rest = text.partition("{")
    number = 0
    while brace:
        name, _, tail = rest.partition("}")
        value = call.keywords.get(name)
        if value is None and number < len(call.positional):
            value, number = call.positional[number], number + 1
        head += str(value.constant) if value is not None and value.constant is not UNKNOWN else HOLE
        more, brace, rest = tail.partition("{")
        head += more
    return head
