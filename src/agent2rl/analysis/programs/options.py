"""What a program is told on its command line, by the parsers that programs use."""

from collections.abc import Iterator

from agent2rl.analysis.programs import filesystem, noting, sources
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.values import (
    HOLE,
    NOTHING,
    UNKNOWN,
    Class,
    Constant,
    Fields,
    Foreign,
    Function,
    Several,
    Value,
    constant,
    fields,
    join,
    several,
    thing,
)

PARSERS = {"HfArgumentParser", "TrlParser", "ArgumentParser", "DataClassArgumentParser", "H4ArgumentParser"}
CALLED = {
    "fire.Fire", "typer.run", "Fire", "absl.app.run", "tyro.cli", "jsonargparse.CLI",
    "simple_parsing.parse", "draccus.parse", "pyrallis.parse", "chz.entrypoint", "defopt.run", "plac.call",
}  # fmt: skip


def known(machine: Core, call: Call) -> Value | None:
    name, last = call.name, call.last
    given = call.positional[0] if call.positional else NOTHING
    if name in CALLED:
        return _called(machine, given)
    owner = next((one for one in (call.receiver or NOTHING).things if isinstance(one, Foreign)), None)
    if last in PARSERS and call.receiver is None:
        return thing(Foreign("parser", tuple(call.positional), dict(call.keywords)))
    if owner is None or owner.name != "parser":
        return None
    if last == "add_argument":
        _added(owner, call)
        return NOTHING
    if last in ("add_argument_group", "add_mutually_exclusive_group"):
        return call.receiver
    if last == "add_subparsers":
        dest = call.argument("dest")
        owner.attributes["dest"] = dest or constant(None)
        return call.receiver
    if last == "add_parser":
        owner.attributes[f"sub {given.text}"] = constant(True)
        return thing(Foreign("parser", attributes={"of": constant(given.text), "parent": thing(owner)}))
    if last == "set_defaults":
        chosen = owner.attributes.get("of")
        target = _top(owner)
        if chosen is None or chosen.constant in machine.argv:
            target.attributes |= {f"default {word}": value for word, value in call.keywords.items()}
        return NOTHING
    if last in ("parse_args", "parse_known_args"):
        argv = _argv(given) if given.things else machine.argv
        found = _parsed(machine, _top(owner), argv)
        return several([found, several([])]) if last == "parse_known_args" else found
    if last in ("parse_args_into_dataclasses", "parse_args_and_config", "parse"):
        return _dataclasses(machine, owner)
    return None


def _top(owner: Foreign) -> Foreign:
    parent = owner.attributes.get("parent")
    for one in parent.things if parent else ():
        if isinstance(one, Foreign):
            one.attributes |= {
                name: value for name, value in owner.attributes.items() if name.startswith("-- ")
            }
            return _top(one)
    return owner


def _argv(value: Value) -> list[str]:
    for one in value.things:
        if isinstance(one, Several) and one.elements is not None:
            return [each.text or HOLE for each in one.elements]
    return []


def _added(owner: Foreign, call: Call) -> None:
    names = [each.text for each in call.positional if each.text]
    if not names:
        return
    long = next((name for name in names if name.startswith("--")), names[0])
    dest = call.argument("dest")
    key = dest.text if dest and dest.text else long.lstrip("-").replace("-", "_")
    action = call.argument("action")
    flag = action.text if action and action.text else ""
    default = call.argument("default")
    if default is None:
        default = constant({"store_true": False, "store_false": True}.get(flag))
    kind = call.argument("type")
    of = next((getattr(one, "name", "") for one in kind.things), "") if kind else ""
    place = call.place
    spec = Foreign(
        key,
        tuple(constant(name) for name in names),
        {"default": default, "flag": constant(flag), "type": constant(of)},
        place=place,
    )
    owner.attributes[f"-- {key}"] = thing(spec)
    parent = owner.attributes.get("parent")
    for one in parent.things if parent else ():
        if isinstance(one, Foreign):
            one.attributes[f"-- {key}"] = thing(spec)


def _parsed(machine: Core, parser: Foreign, argv: list[str]) -> Value:
    found = {
        name.removeprefix("default "): value
        for name, value in parser.attributes.items()
        if name.startswith("default ")
    }
    free = _free(argv)
    for name, value in parser.attributes.items():
        for spec in value.things:
            if name.startswith("-- ") and isinstance(spec, Foreign):
                names = [each.text or "" for each in spec.positional]
                if names[0].startswith("-"):
                    said = _said(argv, names, spec.keywords["flag"].text or "")
                else:
                    said = free.pop(0) if free else None
                default = found.get(spec.name, spec.keywords["default"])
                known = default if said is None else constant(_typed(said, spec.keywords["type"].text or ""))
                found[spec.name] = known
                noting.option(machine, spec.name, known, spec.place, said is not None)
    subs = [name.removeprefix("sub ") for name in parser.attributes if name.startswith("sub ")]
    dest = parser.attributes.get("dest")
    if dest is not None and dest.text:
        chosen = next((word for word in argv if word in subs), None)
        found[dest.text] = constant(chosen) if chosen else NOTHING
    return fields(found)


def _free(argv: list[str]) -> list[str]:
    free, skip = [], False
    for word in argv:
        if word.startswith("-") and not _numeric(word):
            skip = "=" not in word
        elif skip:
            skip = False
        else:
            free.append(word)
    return free or [word for word in argv if not word.startswith("-")]


def _said(argv: list[str], names: list[str], flag: str) -> str | bool | None:
    """What the command line says to an option; the last word counts."""
    found: str | bool | None = None
    for number, word in enumerate(argv):
        head, equals, tail = word.partition("=")
        if head.replace("_", "-") not in [name.replace("_", "-") for name in names]:
            continue
        if flag in ("store_true", "store_false"):
            found = flag == "store_true"
        elif equals:
            found = tail
        else:
            found = argv[number + 1] if number + 1 < len(argv) else ""
    return found


def _typed(said: str | bool, of: str) -> Constant:
    if isinstance(said, bool) or HOLE in said:
        return said if isinstance(said, bool) else UNKNOWN
    if of in ("float", "int", "") and _numeric(said):
        number = float(said)
        return (
            int(number)
            if of != "float" and number.is_integer() and "e" not in said and "." not in said
            else number
        )
    if of in ("bool", "") and said.lower() in ("true", "false"):
        return said.lower() == "true"
    return said


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return len(text) < 40


def words(argv: list[str]) -> Iterator[tuple[str, Value]]:
    """`--name value`, `--name=value` and `name=value`."""
    for number, word in enumerate(argv):
        head, equals, tail = word.partition("=")
        if not (word.startswith("--") or equals):
            continue
        name = head.lstrip("-+").replace("-", "_")
        after = argv[number + 1] if number + 1 < len(argv) else "--"
        if equals:
            yield name, constant(_typed(tail, ""))
        elif after.startswith("--"):
            yield name, constant(True)
        else:
            yield name, constant(_typed(after, ""))


def _dataclasses(machine: Core, parser: Foreign) -> Value:
    given = parser.positional[0] if parser.positional else parser.keywords.get("dataclass_types", NOTHING)
    kinds = [given]
    for one in given.things:
        if isinstance(one, Several):
            kinds = list(one.elements or ())
    said = dict(words(machine.argv)) | _named_config(machine)
    return several([_made(machine, kind, said) for kind in kinds])


def _named_config(machine: Core) -> dict[str, Value]:
    """A configuration file that the command line names."""
    for word in machine.argv:
        source = machine.files.named(word) if word.endswith((".yaml", ".yml", ".json", ".toml")) else None
        found = sources.config(source) if source else None
        if isinstance(found, dict):
            return {name: filesystem.plain(value) for name, value in found.items()}
    return {}


def _made(machine: Core, kind: Value, said: dict[str, Value]) -> Value:
    given = said
    for one in kind.things:
        if isinstance(one, Class):
            given = {name: value for name, value in said.items() if name in one.all_fields()}
    return machine.call(kind, [], given)


def _called(machine: Core, given: Value) -> Value:
    """A function, or a class, that takes the command line."""
    said = dict(words(machine.argv)) | _named_config(machine)
    for one in given.things:
        if isinstance(one, Fields):
            chosen = [value for name, value in one.known.items() if name in machine.argv]
            return join(machine.call(value, [], said) for value in chosen)
        if isinstance(one, Class):
            return _made(machine, given, said)
    return machine.call(given, [], said)


def entered(machine: Core, function: Function) -> dict[str, Value]:
    """A function whose decorators say what it takes from the command line."""
    said = dict(words(machine.argv))
    if any(name.startswith("config") for name in function.options):
        return {"": _hydra(machine, function, said)}
    free = _free(machine.argv)
    found = {}
    for name, default in function.options.items():
        found[name] = said.get(name, default)
        if name not in said and free and default.constant is None:
            found[name] = constant(free.pop(0))
    return found


def _hydra(machine: Core, function: Function, said: dict[str, Value]) -> Value:
    name = function.options.get("config_name", NOTHING).text or "config"
    folder = (function.options.get("config_path") or NOTHING).text or ""
    stem = name.removesuffix(".yaml")
    source = machine.files.named(f"{folder}/{stem}.yaml", function.module.path.rpartition("/")[0])
    found = sources.config(source) if source else None
    value = filesystem.plain(found if isinstance(found, dict) else {})
    for path, given in said.items():
        at = value
        *above, last = path.split(".")
        for part in above:
            at = machine.attribute(at, part)
        for one in at.things:
            if isinstance(one, Fields):
                one.known[last] = given
    return value
