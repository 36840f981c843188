"""Python's own functions: lists, paths, files, other programs."""

import posixpath

from agent2rl.analysis.programs import filesystem_calls
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    HOLE,
    NOTHING,
    UNKNOWN,
    AbstractValue,
    DictValue,
    FunctionValue,
    GradientFunction,
    ListValue,
    PartialFunction,
    collect_marks,
    join_values,
    make_constant,
    make_dict,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall

SAME_ELEMENTS = {
    "list", "tuple", "set", "iter", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "reversed", "copy.copy",
    "copy.deepcopy", "json.loads", "json.dumps", "collections.deque", "asyncio.run", "str.strip",
    "rich.progress.track", "orjson.loads", "orjson.dumps", "ujson.loads", "itertools.chain.from_iterable",
    "itertools.islice", "itertools.cycle", "frozenset", "trange", "random.shuffle", "copy",
}  # fmt: skip
PATH_METHODS = {
    "resolve", "absolute", "as_posix", "expanduser", "strip", "__str__", "format_map", "rstrip", "lower",
}  # fmt: skip


def interpret_builtin_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    name, given = call.name, (call.positional[0] if call.positional else NOTHING)
    if name in SAME_ELEMENTS and call.receiver is None:
        if name in filesystem_calls.CONFIGS and (found := filesystem_calls.load_config(machine, given)):
            return found
        return given if call.positional else make_list([])
    if name in filesystem_calls.STARTED:
        return filesystem_calls.record_command(machine, call)
    if name in filesystem_calls.COPIED and len(call.positional) > 1:
        source, target = call.positional[0].text, call.positional[1].text
        if source and target:
            machine.trace.copy_weights(source, target)
        return call.positional[1]
    if call.receiver is None and (found := filesystem_calls.interpret_path_call(machine, call, given)):
        return found
    if found := filesystem_calls.interpret_file_call(machine, call, given):
        return found
    if call.receiver is None:
        return _interpret_function(machine, call, given)
    return _interpret_text_method(machine, call)


def _interpret_function(
    machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue
) -> AbstractValue | None:
    match call.name:
        case "enumerate":
            return make_open_list(make_list([NOTHING, machine.read_element(given)]))
        case "zip" | "itertools.product" | "itertools.zip_longest":
            return make_open_list(make_list([machine.read_element(each) for each in call.positional]))
        case "map" | "itertools.starmap":
            return make_open_list(
                machine.call_value(given, [machine.read_element(each) for each in call.positional[1:]], {})
            )
        case "filter":
            element = machine.read_element(call.positional[1] if len(call.positional) > 1 else NOTHING)
            test = machine.call_value(given, [element], {})
            return make_open_list(machine.mark_filtered(element, collect_marks(test)))
        case "sorted" | "max" | "min" | "heapq.nlargest" | "heapq.nsmallest":
            return _rank_elements(machine, call, given)
        case "random.choice":
            return machine.read_element(given)
        case "random.sample" | "random.choices" | "more_itertools.chunked":
            return make_open_list(machine.read_element(given))
        case "itertools.chain":
            return make_open_list(join_values(machine.read_element(each) for each in call.positional))
        case "dict" | "types.SimpleNamespace" | "argparse.Namespace" | "collections.OrderedDict":
            known = next((one for one in given.things if isinstance(one, DictValue)), None)
            return make_dict(
                {**(known.known if known else {}), **call.keywords}, known.rest if known else NOTHING
            )
        case "collections.defaultdict":
            return make_dict({}, make_list([]) if not given.things else machine.call_value(given, [], {}))
        case "len":
            lists = [one for one in given.things if isinstance(one, ListValue)]
            whole = [one.elements for one in lists if one.elements is not None and one.rest is NOTHING]
            return make_constant(len(whole[0])) if len(whole) == len(given.things) == 1 else NOTHING
        case "functools.partial" | "types.MethodType":
            return make_value(PartialFunction(given, tuple(call.positional[1:]), dict(call.keywords)))
        case "int" | "float" | "bool" | "round" | "abs" | "sum":
            return _convert_number(call, given)
        case "getattr" if len(call.positional) > 1 and call.positional[1].known:
            return machine.read_attribute(given, str(call.positional[1].constant))
        case "setattr" if len(call.positional) > 2:
            return NOTHING
        case "vars" | "dataclasses.asdict":
            return given
        case "dataclasses.field" | "pydantic.Field":
            return _field_default(machine, call, given)
        case "super":
            return NOTHING
        case "jax.grad" | "jax.value_and_grad" | "torch.func.grad" | "torch.func.grad_and_value":
            return make_value(GradientFunction(given))
        case name if name.rpartition(".")[2] in ("grad", "value_and_grad"):
            functions = [each for each in call.positional if _is_function(each)]
            return make_value(GradientFunction(functions[0])) if functions else None
        case "__import__" | "importlib.import_module":
            module = (
                machine.load_module(given.text, machine.place.path.rpartition("/")[0]) if given.text else None
            )
            return make_value(module) if module else None
        case _:
            return None


def _is_function(value: AbstractValue) -> bool:
    return any(isinstance(one, FunctionValue | PartialFunction) for one in value.things)


def _field_default(machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue) -> AbstractValue:
    made = call.get_argument("default_factory")
    if made is not None:
        return machine.call_value(made, [], {})
    return call.get_argument("default") or given


def _convert_number(call: LibraryCall, given: AbstractValue) -> AbstractValue:
    marks, known = collect_marks(given), given.constant
    if m.SAID in marks and call.name in ("int", "float"):
        marks = (marks - m.OWN - {m.FILTERED}) | {m.JUDGED}  # a number in what was said: only judges read it
    try:
        if call.name == "float" and isinstance(known, str | int | float) and given.known:
            return make_constant(float(known), marks)
        if call.name == "int" and isinstance(known, int | float) and abs(known) < 1e15:
            return make_constant(int(known), marks)
    except (ValueError, OverflowError):
        pass
    return AbstractValue(marks)


def _rank_elements(machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue) -> AbstractValue:
    """The best of several: samples that a judgement put first are chosen by it."""
    values = [given] if call.name != "heapq.nlargest" else list(call.positional[1:2])
    several_given = len(call.positional) > 1 and not call.name.startswith("heapq")
    element = join_values(call.positional) if several_given else machine.read_element(join_values(values))
    key = call.get_argument("key")
    judged = (
        collect_marks(machine.call_value(key, [element], {})) if key is not None else collect_marks(element)
    )
    if m.JUDGED in judged or (key is not None and m.SAID in judged):
        element = machine.mark_filtered(element, frozenset({m.JUDGED}))
        for one in element.things:
            if isinstance(one, ListValue) and one.elements is not None:
                chosen = [machine.mark_filtered(each, frozenset({m.JUDGED})) for each in one.elements]
                element = AbstractValue(element.marks, UNKNOWN, make_list(chosen).things)
    if several_given:
        return AbstractValue(collect_marks(element), UNKNOWN, element.things)
    return element if call.name in ("max", "min") else make_open_list(element)


def _interpret_text_method(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    """Methods of texts, which may stand for what was written as JSON."""
    receiver, last = call.receiver or NOTHING, call.last
    given = call.positional[0] if call.positional else NOTHING
    if last == "join" and receiver.text is not None:
        element = machine.read_element(given)
        return AbstractValue(element.marks | receiver.marks, UNKNOWN, element.things)
    if last == "joinpath" and receiver.text is not None:
        return make_constant(filesystem_calls.join_paths([receiver, *call.positional]))
    if last == "with_name" and receiver.text is not None:
        return make_constant(f"{posixpath.dirname(receiver.text)}/{given.text or HOLE}")
    if last in PATH_METHODS and receiver.text is not None:
        return receiver
    if last in filesystem_calls.LINES:
        return make_open_list(AbstractValue(receiver.marks, UNKNOWN, receiver.things))
    if last == "format" and receiver.text is not None:
        marks = receiver.marks.union(*map(collect_marks, call.all))
        return AbstractValue(marks, _format_text(receiver.text, call))
    return None


def _format_text(text: str, call: LibraryCall) -> str:
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
