"""Interpret calls of built-in functions, paths, files, environment variables and other programs."""

import posixpath
import shlex
from collections.abc import Sequence

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs import source_files
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractValue,
    DictValue,
    FunctionValue,
    GradientFunction,
    LibraryObject,
    LibrarySymbol,
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
from agent2rl.analysis.programs.environment_calls import read_environment_url
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall
from agent2rl.analysis.programs.source_files import SHELL_CALL
from agent2rl.analysis.workspace_paths import HOLE, normalise_path

# Paths, files, environment variables, other programs.

PATHS = {
    "pathlib.Path", "Path", "str", "os.fspath", "os.path.abspath", "os.path.expanduser", "os.path.realpath",
    "os.path.normpath", "pathlib.PurePath", "pathlib.PosixPath",
}  # fmt: skip


STARTED = {
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen",
    "subprocess.check_output", "os.system", "os.popen", SHELL_CALL, "subprocess.getoutput", "os.execvp",
}  # fmt: skip


COPIED = {
    "shutil.copytree", "shutil.move", "os.rename", "os.replace", "os.symlink", "shutil.copy",
    "shutil.copy2",
}  # fmt: skip


READ = {
    "pandas.read_json", "pandas.read_csv", "pandas.read_parquet", "datasets.load_from_disk", "torch.load",
    "datasets.Dataset.from_json", "pickle.load", "numpy.load", "json.load", "joblib.load",
    "datasets.Dataset.from_csv", "datasets.Dataset.load_from_disk", "jsonlines.open",
}  # fmt: skip


CONFIGS = {
    "yaml.safe_load", "yaml.load", "json.load", "tomllib.load", "toml.load", "tomli.load",
    "omegaconf.OmegaConf.load", "OmegaConf.load", "tomllib.loads", "json.loads", "yaml.full_load",
}  # fmt: skip


WRITTEN = {"to_json", "to_csv", "save_to_disk", "to_parquet", "to_pickle"}


LINES = {"splitlines", "readlines", "split"}


def interpret_path_call(
    machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue
) -> AbstractValue | None:
    match call.name:
        case name if name in PATHS:
            if len(call.positional) > 1:
                return make_constant(join_paths(call.positional), collect_marks(given))
            return AbstractValue(
                collect_marks(given),
                given.constant if given.constant is not UNKNOWN else UNKNOWN,
                given.things,
            )
        case "os.path.join" | "posixpath.join":
            return make_constant(join_paths(call.positional))
        case "os.path.dirname":
            return make_constant(posixpath.dirname(given.text) or ".") if given.text is not None else NOTHING
        case "os.path.basename":
            return make_constant(posixpath.basename(given.text)) if given.text is not None else NOTHING
        case "os.getcwd" | "pathlib.Path.cwd":
            return make_constant(".")
        case "os.environ.get" | "os.getenv" | "os.environ.setdefault" | "os.environ.pop":
            return read_variable(machine, given, call.get_argument("default", 1))
        case _:
            return None


def read_variable(
    machine: AbstractInterpreter, name: AbstractValue, otherwise: AbstractValue | None
) -> AbstractValue:
    """Read an environment variable."""
    if not isinstance(name.constant, str):
        return NOTHING
    if url := read_environment_url(name.constant):
        return url
    if name.constant in machine.environment:
        return make_constant(machine.environment[name.constant])
    return otherwise if otherwise is not None else NOTHING


def join_paths(parts: Sequence[AbstractValue]) -> str:
    texts = [part.text if part.text is not None else HOLE for part in parts]
    last = max((number for number, text in enumerate(texts) if text.startswith("/")), default=0)
    return "/".join(text.rstrip("/") or text for text in texts[last:])


def record_command(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """Record the command line of a program that this one starts."""
    given = call.positional[0] if call.positional else call.get_argument("args") or NOTHING
    command = given.text
    for one in given.things:
        if isinstance(one, ListValue) and one.elements is not None:
            words = [_quote_word(each) for each in one.elements]
            command = " ".join(words)
    if command:
        machine.launches.append(command)
    return NOTHING


def _quote_word(value: AbstractValue) -> str:
    if value.text is not None:
        return shlex.quote(value.text) if HOLE not in value.text else value.text
    if any(isinstance(one, LibrarySymbol) and one.name == "sys.executable" for one in value.things):
        return "python"
    return str(value.constant) if value.known else HOLE


def interpret_file_call(
    machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue
) -> AbstractValue | None:
    name, last, receiver = call.name, call.last, call.receiver or NOTHING
    if name in ("open", "io.open", "gzip.open", "codecs.open", "builtins.open"):
        return open_file(machine, given, call.get_argument("mode", 1))
    if last == "open" and receiver.text is not None:
        return open_file(machine, receiver, call.get_argument("mode", 0))
    if name in CONFIGS and (config := load_config(machine, given)):
        return config
    if name in READ or name == "datasets.load_dataset":
        return _load_dataset(machine, call, given)
    if last in ("read_text", "read_bytes") and receiver.text is not None:
        return _read_content(machine, receiver)
    if last in ("write_text", "write_bytes") and receiver.text is not None:
        machine.trace.write_file(receiver.text, machine.mark_filtered(given))
        return NOTHING
    path = next(
        (one.attributes.get("path") for one in receiver.things if isinstance(one, LibraryObject)), None
    )
    if path is not None and last in ("write", "writelines"):
        value = machine.mark_filtered(machine.read_element(given) if last == "writelines" else given)
        machine.trace.write_file(path.text, value)
        return NOTHING
    if path is not None and last in ("read", "readlines", "readline", *LINES):
        return (
            make_open_list(machine.read_element(receiver))
            if last == "readlines"
            else machine.read_element(receiver)
        )
    if last in ("dump", "save", "savez") and name.startswith(
        ("json.", "pickle.", "torch.", "numpy.", "joblib.", "yaml.")
    ):
        value, target = [*call.positional, NOTHING, NOTHING][:2]
        if name.startswith("numpy."):
            value, target = target, value
        where = next(
            (one.attributes.get("path") for one in target.things if isinstance(one, LibraryObject)), target
        )
        machine.trace.write_file((where or NOTHING).text, machine.mark_filtered(value))
        return NOTHING
    if last in WRITTEN and call.receiver is not None and given.text:
        machine.trace.write_file(given.text, make_open_list(machine.read_element(receiver)))
        return NOTHING
    return None


def open_file(machine: AbstractInterpreter, path: AbstractValue, mode: AbstractValue | None) -> AbstractValue:
    file = LibraryObject("file", attributes={"path": make_constant(path.text)})
    written = mode is not None and isinstance(mode.constant, str) and mode.constant[:1] in ("w", "a", "x")
    if not written:
        file.attributes["rows"] = _read_content(machine, path)
    return make_value(file)


def _read_content(machine: AbstractInterpreter, path: AbstractValue) -> AbstractValue:
    content = machine.trace.read_file(path.text)
    if path.known and path.text and "." in path.text:
        machine.trace.note_setting("data", normalise_path(path.text), machine.place)
    if path.known and path.text and path.text.endswith((".toml", ".yaml", ".yml", ".json")):
        content = join_values([content, make_value(LibraryObject("file", attributes={"path": path}))])
    inner = (
        machine.read_element(content)
        if any(isinstance(one, ListValue) for one in content.things)
        else content
    )
    return AbstractValue(inner.marks | {m.DATA}, UNKNOWN, inner.things)


def _load_dataset(machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue) -> AbstractValue:
    if given.marks and call.last == "load":
        return given  # received over the network
    path = call.get_argument("data_files") or (call.positional[-1] if call.positional else NOTHING)
    for one in (*path.things, *given.things):
        if isinstance(one, DictValue | ListValue):
            path = join_values([*(one.known.values() if isinstance(one, DictValue) else one.elements or ())])
        elif isinstance(one, LibraryObject) and "path" in one.attributes:
            path = one.attributes["path"]
    content = _read_content(machine, path if path.text is not None else given)
    return make_value(LibraryObject("dataset", attributes={"rows": content}))


def load_config(machine: AbstractInterpreter, given: AbstractValue) -> AbstractValue | None:
    """Load a configuration file of the workspace with all its values."""
    path = given.text
    for one in given.things:
        if isinstance(one, LibraryObject) and "path" in one.attributes:
            path = one.attributes["path"].text
    source = machine.files.find_file(path) if path and HOLE not in path else None
    config = source_files.parse_config(source) if source else None
    return make_config_value(config) if isinstance(config, dict | list) else None


def make_config_value(config: object) -> AbstractValue:
    if isinstance(config, dict):
        return make_dict({str(key): make_config_value(value) for key, value in config.items()})
    if isinstance(config, list):
        return make_list([make_config_value(value) for value in config])
    return (
        make_constant(config) if isinstance(config, str | int | float | bool) or config is None else NOTHING
    )


# Built-in functions.

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
        if name in CONFIGS and (result := load_config(machine, given)):
            return result
        return given if call.positional else make_list([])
    if name in STARTED:
        return record_command(machine, call)
    if name in COPIED and len(call.positional) > 1:
        source, target = call.positional[0].text, call.positional[1].text
        if source and target:
            machine.trace.copy_weights(source, target)
        return call.positional[1]
    if call.receiver is None and (result := interpret_path_call(machine, call, given)):
        return result
    if result := interpret_file_call(machine, call, given):
        return result
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
            mapping = next((one for one in given.things if isinstance(one, DictValue)), None)
            return make_dict(
                {**(mapping.known if mapping else {}), **call.keywords}, mapping.rest if mapping else NOTHING
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
    marks, constant = collect_marks(given), given.constant
    if m.SAID in marks and call.name in ("int", "float"):
        # A number parsed from sampled text: only judging code does that.
        marks = (marks - m.OWN - {m.FILTERED}) | {m.JUDGED}
    try:
        if call.name == "float" and isinstance(constant, str | int | float) and given.known:
            return make_constant(float(constant), marks)
        if call.name == "int" and isinstance(constant, int | float) and abs(constant) < 1e15:
            return make_constant(int(constant), marks)
    except (ValueError, OverflowError):
        pass
    return AbstractValue(marks)


def _rank_elements(machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue) -> AbstractValue:
    """Sort or select elements. Samples ranked by a judgement are selected by it."""
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
    """Interpret methods of texts, which may stand for JSON rows."""
    receiver, last = call.receiver or NOTHING, call.last
    given = call.positional[0] if call.positional else NOTHING
    if last == "join" and receiver.text is not None:
        element = machine.read_element(given)
        return AbstractValue(element.marks | receiver.marks, UNKNOWN, element.things)
    if last == "joinpath" and receiver.text is not None:
        return make_constant(join_paths([receiver, *call.positional]))
    if last == "with_name" and receiver.text is not None:
        return make_constant(f"{posixpath.dirname(receiver.text)}/{given.text or HOLE}")
    if last in PATH_METHODS and receiver.text is not None:
        return receiver
    if last in LINES:
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
        literal, brace, rest = tail.partition("{")
        head += literal
    return head
