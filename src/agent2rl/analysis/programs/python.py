"""Python's own functions: lists, paths, files, other programs."""

import posixpath
import shlex

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs import sources, worlds
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.sources import SHELL_CALL
from agent2rl.analysis.programs.values import (
    HOLE,
    NOTHING,
    UNKNOWN,
    External,
    Fields,
    Foreign,
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

SAME = {"list", "tuple", "set", "iter", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "reversed", "copy.copy", "copy.deepcopy",
        "json.loads", "json.dumps", "collections.deque", "asyncio.run", "str.strip", "rich.progress.track",
        "orjson.loads", "orjson.dumps", "ujson.loads", "itertools.chain.from_iterable", "itertools.islice",
        "itertools.cycle", "frozenset", "trange", "random.shuffle", "copy"}  # fmt: skip
PATHS = {"pathlib.Path", "Path", "str", "os.fspath", "os.path.abspath", "os.path.expanduser", "os.path.realpath",
         "os.path.normpath", "pathlib.PurePath", "pathlib.PosixPath"}  # fmt: skip
PATH_METHODS = {
    "resolve",
    "absolute",
    "as_posix",
    "expanduser",
    "strip",
    "__str__",
    "format_map",
    "rstrip",
    "lower",
}
STARTED = {"subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen", "subprocess.check_output",
           "os.system", "os.popen", SHELL_CALL, "subprocess.getoutput", "os.execvp"}  # fmt: skip
COPIED = {
    "shutil.copytree",
    "shutil.move",
    "os.rename",
    "os.replace",
    "os.symlink",
    "shutil.copy",
    "shutil.copy2",
}
READ = {"pandas.read_json", "pandas.read_csv", "pandas.read_parquet", "datasets.load_from_disk", "torch.load",
        "datasets.Dataset.from_json", "pickle.load", "numpy.load", "json.load", "joblib.load",
        "datasets.Dataset.from_csv", "datasets.Dataset.load_from_disk", "jsonlines.open"}  # fmt: skip
CONFIGS = {"yaml.safe_load", "yaml.load", "json.load", "tomllib.load", "toml.load", "tomli.load",
           "omegaconf.OmegaConf.load", "OmegaConf.load", "tomllib.loads", "json.loads", "yaml.full_load"}  # fmt: skip
WRITTEN = {"to_json", "to_csv", "save_to_disk", "to_parquet", "to_pickle"}
LINES = {"splitlines", "readlines", "split"}


def known(machine: Core, call: Call) -> Value | None:
    name, given = call.name, (call.positional[0] if call.positional else NOTHING)
    if name in SAME and call.receiver is None:
        if name in CONFIGS and (found := _config(machine, given)):
            return found
        return given if call.positional else several([])
    if name in STARTED:
        return _started(machine, call)
    if name in COPIED and len(call.positional) > 1:
        source, target = call.positional[0].text, call.positional[1].text
        if source and target:
            machine.trace.copy(source, target)
        return call.positional[1]
    if call.receiver is None and (found := _paths(machine, call, given)):
        return found
    if found := _files(machine, call, given):
        return found
    if call.receiver is None:
        return _functions(machine, call, given)
    return _texts(machine, call)


def _paths(machine: Core, call: Call, given: Value) -> Value | None:
    match call.name:
        case name if name in PATHS:
            if len(call.positional) > 1:
                return constant(_slashed(call.positional), deep(given))
            return Value(
                deep(given), given.constant if given.constant is not UNKNOWN else UNKNOWN, given.things
            )
        case "os.path.join" | "posixpath.join":
            return constant(_slashed(call.positional))
        case "os.path.dirname":
            return constant(posixpath.dirname(given.text) or ".") if given.text is not None else NOTHING
        case "os.path.basename":
            return constant(posixpath.basename(given.text)) if given.text is not None else NOTHING
        case "os.getcwd" | "pathlib.Path.cwd":
            return constant(".")
        case "os.environ.get" | "os.getenv" | "os.environ.setdefault" | "os.environ.pop":
            return variable(machine, given, call.argument("default", 1))
        case _:
            return None


def variable(machine: Core, name: Value, otherwise: Value | None) -> Value:
    """Of the process's environment."""
    if not isinstance(name.constant, str):
        return NOTHING
    if found := worlds.address(name.constant):
        return found
    if name.constant in machine.environment:
        return constant(machine.environment[name.constant])
    return otherwise if otherwise is not None else NOTHING


def _slashed(parts: object) -> str:
    texts = [part.text if part.text is not None else HOLE for part in parts]  # type: ignore[attr-defined]
    last = max((number for number, text in enumerate(texts) if text.startswith("/")), default=0)
    return "/".join(text.rstrip("/") or text for text in texts[last:])


def _started(machine: Core, call: Call) -> Value:
    """The command line of a program that this one starts."""
    given = call.positional[0] if call.positional else call.argument("args") or NOTHING
    command = given.text
    for one in given.things:
        if isinstance(one, Several) and one.elements is not None:
            words = [_word(each) for each in one.elements]
            command = " ".join(words)
    if command:
        machine.launches.append(command)
    return NOTHING


def _word(value: Value) -> str:
    if value.text is not None:
        return shlex.quote(value.text) if HOLE not in value.text else value.text
    if any(isinstance(one, External) and one.name == "sys.executable" for one in value.things):
        return "python"
    return str(value.constant) if value.known else HOLE


def _files(machine: Core, call: Call, given: Value) -> Value | None:
    name, last, receiver = call.name, call.last, call.receiver or NOTHING
    if name in ("open", "io.open", "gzip.open", "codecs.open", "builtins.open"):
        return opened(machine, given, call.argument("mode", 1))
    if last == "open" and receiver.text is not None:
        return opened(machine, receiver, call.argument("mode", 0))
    if name in CONFIGS and (found := _config(machine, given)):
        return found
    if name in READ or name == "datasets.load_dataset":
        return _read(machine, call, given)
    if last in ("read_text", "read_bytes") and receiver.text is not None:
        return _content(machine, receiver)
    if last in ("write_text", "write_bytes") and receiver.text is not None:
        machine.trace.write(receiver.text, machine.guarded(given))
        return NOTHING
    path = next((one.attributes.get("path") for one in receiver.things if isinstance(one, Foreign)), None)
    if path is not None and last in ("write", "writelines"):
        value = machine.guarded(machine.element(given) if last == "writelines" else given)
        machine.trace.write(path.text, value)
        return NOTHING
    if path is not None and last in ("read", "readlines", "readline", *LINES):
        return some(machine.element(receiver)) if last == "readlines" else machine.element(receiver)
    if last in ("dump", "save", "savez") and name.startswith(
        ("json.", "pickle.", "torch.", "numpy.", "joblib.", "yaml.")
    ):
        value, target = (
            (call.positional + [NOTHING, NOTHING])[:2]
            if isinstance(call.positional, list)
            else (NOTHING, NOTHING)
        )
        if name.startswith("numpy."):
            value, target = target, value
        where = next(
            (one.attributes.get("path") for one in target.things if isinstance(one, Foreign)), target
        )
        machine.trace.write((where or NOTHING).text, machine.guarded(value))
        return NOTHING
    if last in WRITTEN and call.receiver is not None and given.text:
        machine.trace.write(given.text, some(machine.element(receiver)))
        return NOTHING
    return None


def opened(machine: Core, path: Value, mode: Value | None) -> Value:
    file = Foreign("file", attributes={"path": constant(path.text)})
    written = mode is not None and isinstance(mode.constant, str) and mode.constant[:1] in ("w", "a", "x")
    if not written:
        file.attributes["rows"] = _content(machine, path)
    return thing(file)


def _content(machine: Core, path: Value) -> Value:
    found = machine.trace.read(path.text)
    if path.known and path.text and "." in path.text:
        machine.trace.note("data", path.text, machine.place)
    inner = machine.element(found) if any(isinstance(one, Several) for one in found.things) else found
    return Value(inner.marks | {m.DATA}, UNKNOWN, inner.things)


def _read(machine: Core, call: Call, given: Value) -> Value:
    if given.marks and call.last == "load":
        return given  # what came over the network
    path = call.argument("data_files") or (call.positional[-1] if call.positional else NOTHING)
    for one in (*path.things, *given.things):
        if isinstance(one, Fields | Several):
            path = join([*(one.known.values() if isinstance(one, Fields) else one.elements or ())])
        elif isinstance(one, Foreign) and "path" in one.attributes:
            path = one.attributes["path"]
    content = _content(machine, path if path.text is not None else given)
    return thing(Foreign("dataset", attributes={"rows": content}))


def _config(machine: Core, given: Value) -> Value | None:
    """A configuration file of the workspace is known to its last value."""
    path = given.text
    for one in given.things:
        if isinstance(one, Foreign) and "path" in one.attributes:
            path = one.attributes["path"].text
    source = machine.files.named(path) if path and HOLE not in path else None
    found = sources.config(source) if source else None
    return plain(found) if isinstance(found, dict | list) else None


def plain(found: object) -> Value:
    if isinstance(found, dict):
        return fields({str(key): plain(value) for key, value in found.items()})
    if isinstance(found, list):
        return several([plain(value) for value in found])
    return constant(found) if isinstance(found, str | int | float | bool) or found is None else NOTHING


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
        case "functools.partial":
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
        case name if name.rpartition(".")[2] in ("grad", "value_and_grad") and _function(given):
            return thing(Gradient(given))
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
    if m.TEACHER in marks and m.SAID in marks:
        marks |= {m.JUDGED}
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
        return constant(_slashed([receiver, *call.positional]))
    if last == "with_name" and receiver.text is not None:
        return constant(f"{posixpath.dirname(receiver.text)}/{given.text or HOLE}")
    if last in PATH_METHODS and receiver.text is not None:
        return receiver
    if last in LINES:
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
