"""Paths, files, variables of the environment, other programs."""

import posixpath
import shlex
from collections.abc import Sequence

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs import sources, worlds
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.sources import SHELL_CALL
from agent2rl.analysis.programs.trace import tidy
from agent2rl.analysis.programs.values import (
    HOLE,
    NOTHING,
    UNKNOWN,
    External,
    Fields,
    Foreign,
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


def paths(machine: Core, call: Call, given: Value) -> Value | None:
    match call.name:
        case name if name in PATHS:
            if len(call.positional) > 1:
                return constant(slashed(call.positional), deep(given))
            return Value(
                deep(given), given.constant if given.constant is not UNKNOWN else UNKNOWN, given.things
            )
        case "os.path.join" | "posixpath.join":
            return constant(slashed(call.positional))
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


def slashed(parts: Sequence[Value]) -> str:
    texts = [part.text if part.text is not None else HOLE for part in parts]
    last = max((number for number, text in enumerate(texts) if text.startswith("/")), default=0)
    return "/".join(text.rstrip("/") or text for text in texts[last:])


def started(machine: Core, call: Call) -> Value:
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


def files(machine: Core, call: Call, given: Value) -> Value | None:
    name, last, receiver = call.name, call.last, call.receiver or NOTHING
    if name in ("open", "io.open", "gzip.open", "codecs.open", "builtins.open"):
        return opened(machine, given, call.argument("mode", 1))
    if last == "open" and receiver.text is not None:
        return opened(machine, receiver, call.argument("mode", 0))
    if name in CONFIGS and (found := config(machine, given)):
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
        value, target = [*call.positional, NOTHING, NOTHING][:2]
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
        machine.trace.note("data", tidy(path.text), machine.place)
    if path.known and path.text and path.text.endswith((".toml", ".yaml", ".yml", ".json")):
        found = join([found, thing(Foreign("file", attributes={"path": path}))])
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


def config(machine: Core, given: Value) -> Value | None:
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
