"""Paths, files, variables of the environment, other programs."""

import posixpath
import shlex
from collections.abc import Sequence

from agent2rl.analysis.programs import environment_calls, source_files
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    HOLE,
    NOTHING,
    UNKNOWN,
    AbstractValue,
    DictValue,
    LibraryObject,
    LibrarySymbol,
    ListValue,
    collect_marks,
    join_values,
    make_constant,
    make_dict,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall
from agent2rl.analysis.programs.program_trace import normalise_path
from agent2rl.analysis.programs.source_files import SHELL_CALL

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
    """Of the process's environment."""
    if not isinstance(name.constant, str):
        return NOTHING
    if found := environment_calls.read_environment_url(name.constant):
        return found
    if name.constant in machine.environment:
        return make_constant(machine.environment[name.constant])
    return otherwise if otherwise is not None else NOTHING


def join_paths(parts: Sequence[AbstractValue]) -> str:
    texts = [part.text if part.text is not None else HOLE for part in parts]
    last = max((number for number, text in enumerate(texts) if text.startswith("/")), default=0)
    return "/".join(text.rstrip("/") or text for text in texts[last:])


def record_command(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """The command line of a program that this one starts."""
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
    if name in CONFIGS and (found := load_config(machine, given)):
        return found
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
    found = machine.trace.read_file(path.text)
    if path.known and path.text and "." in path.text:
        machine.trace.note_setting("data", normalise_path(path.text), machine.place)
    if path.known and path.text and path.text.endswith((".toml", ".yaml", ".yml", ".json")):
        found = join_values([found, make_value(LibraryObject("file", attributes={"path": path}))])
    inner = machine.read_element(found) if any(isinstance(one, ListValue) for one in found.things) else found
    return AbstractValue(inner.marks | {m.DATA}, UNKNOWN, inner.things)


def _load_dataset(machine: AbstractInterpreter, call: LibraryCall, given: AbstractValue) -> AbstractValue:
    if given.marks and call.last == "load":
        return given  # what came over the network
    path = call.get_argument("data_files") or (call.positional[-1] if call.positional else NOTHING)
    for one in (*path.things, *given.things):
        if isinstance(one, DictValue | ListValue):
            path = join_values([*(one.known.values() if isinstance(one, DictValue) else one.elements or ())])
        elif isinstance(one, LibraryObject) and "path" in one.attributes:
            path = one.attributes["path"]
    content = _read_content(machine, path if path.text is not None else given)
    return make_value(LibraryObject("dataset", attributes={"rows": content}))


def load_config(machine: AbstractInterpreter, given: AbstractValue) -> AbstractValue | None:
    """A configuration file of the workspace is known to its last value."""
    path = given.text
    for one in given.things:
        if isinstance(one, LibraryObject) and "path" in one.attributes:
            path = one.attributes["path"].text
    source = machine.files.find_file(path) if path and HOLE not in path else None
    found = source_files.parse_config(source) if source else None
    return make_config_value(found) if isinstance(found, dict | list) else None


def make_config_value(found: object) -> AbstractValue:
    if isinstance(found, dict):
        return make_dict({str(key): make_config_value(value) for key, value in found.items()})
    if isinstance(found, list):
        return make_list([make_config_value(value) for value in found])
    return make_constant(found) if isinstance(found, str | int | float | bool) or found is None else NOTHING
