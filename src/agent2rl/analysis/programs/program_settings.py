"""Read settings of a program: command-line options, by common parsers, and hyperparameters in its code."""

import re
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from agent2rl.analysis.programs import source_files, standard_library_calls
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractValue,
    ClassValue,
    CodeLocation,
    Constant,
    DictValue,
    FunctionValue,
    LibraryObject,
    ListValue,
    join_values,
    make_constant,
    make_dict,
    make_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall
from agent2rl.analysis.workspace_paths import HOLE

# Hyperparameters: in calls, on the command line, by well-known names.

NAMES = {
    "learning_rate": ("learning_rate", "lr", "peak_lr", "step_size", "actor_learning_rate", "actor_lr"),
    "epochs": ("epochs", "num_train_epochs", "num_epochs", "n_epochs", "max_epochs", "num_ppo_epochs"),
    "steps": ("steps", "max_steps", "num_steps", "n_steps", "iterations", "total_steps"),
    "batch_size": ("batch_size", "per_device_train_batch_size", "bs", "train_batch_size", "micro_batch_size",
                   "per_device_batch_size"),
    "gradient_accumulation": ("gradient_accumulation_steps", "grad_accum", "accumulate_grad_batches",
                              "grad_accum_steps", "accum_steps"),
    "group_size": ("num_generations", "group_size", "group", "n_samples", "num_samples", "samples_per_prompt",
                   "k_samples", "rloo_k", "num_return_sequences", "n_rollouts", "rollouts_per_prompt"),
    "beta": ("beta", "kl_coef", "kl", "kl_beta", "init_kl_coef", "kl_coeff", "kl_weight"),
    "clip": ("clip_range", "cliprange", "epsilon", "clip_eps", "clip_epsilon", "eps_clip"),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "max_tokens": ("max_new_tokens", "max_completion_length", "max_tokens", "response_length", "max_gen_len"),
    "max_length": ("max_length", "max_seq_length", "max_seq_len", "cutoff_len", "sequence_len", "max_len"),
    "weight_decay": ("weight_decay", "wd"),
    "warmup": ("warmup_ratio", "warmup_steps", "num_warmup_steps", "warmup"),
    "schedule": ("lr_scheduler_type", "lr_scheduler", "scheduler"),
    "lora_rank": ("lora_r", "lora_rank"),
    "lora_alpha": ("lora_alpha",),
    "lora_dropout": ("lora_dropout",),
    "gradient_clip": ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clip_val"),
    "seed": ("seed",),
    "optimizer": ("optim", "optimizer_name"),
    "data": ("data_path", "train_file", "train_path", "data_files", "dataset_name", "dataset"),
    "model": ("model_name_or_path", "model_path", "model_name", "base_model", "pretrain"),
    "loss_type": ("loss_type",),
    "gamma": ("gamma", "discount"),
    "lambda": ("lam", "gae_lambda"),
}  # fmt: skip
CANONICAL = {name: canonical for canonical, names in NAMES.items() for name in names}
OPTIMIZERS = re.compile(
    r"(?:^|\.)(?:Fused|Paged)?(Adam\w*|SGD|Adafactor|Lion\w*|RMSprop|Adagrad|Muon|adamw?|sgd|adafactor|lion)$"
)
SAYING = re.compile(
    r"Config$|Arguments$|Settings$|Params$|Trainer$|\.generate$|DataLoader$|get_peft_model$|\.fit$|\.reinforce$"
    r"|\.train$|SamplingParams|get_\w*schedule|clip_grad_norm"
)
CALL, OPTION, NAME = 3, 2, 1
"""Precedence of sources; the largest wins."""


def canonical_setting(name: str, call: str = "") -> str | None:
    if name == "r" and "lora" in call.lower():
        return "lora_rank"
    if name == "n" and ("sampling" in call.lower() or "rollout" in call.lower()):
        return "group_size"
    return CANONICAL.get(name)


def note_call(machine: AbstractInterpreter, call: LibraryCall) -> None:
    """Note the settings in a library call."""
    optimizer = OPTIMIZERS.search(call.name) if call.receiver is None else None
    if not optimizer and not SAYING.search(call.name):
        return
    said: dict[str, AbstractValue] = dict(call.keywords)
    if optimizer:
        machine.trace.note_setting("optimizer", optimizer[1], call.place, CALL)
        if rate := call.get_argument("lr", 1):
            said.setdefault("lr", rate)
    lines = {word.arg: word.value.lineno for word in call.node.keywords} if call.node else {}
    for name, value in said.items():
        setting = canonical_setting(name, call.name)
        if setting and (plain := _plain_value(value)) is not None:
            place = CodeLocation(call.place.path, lines.get(name, call.place.line))
            machine.trace.note_setting(setting, plain, place, CALL)


def note_option(
    machine: AbstractInterpreter, name: str, value: AbstractValue, place: CodeLocation | None, said: bool
) -> None:
    setting, plain = canonical_setting(name), _plain_value(value)
    if setting and plain is not None:
        machine.trace.note_setting(setting, plain, place, CALL + 1 if said else OPTION, said)


def note_name(machine: AbstractInterpreter, name: str, value: AbstractValue) -> None:
    """Note an assignment to a well-known name."""
    setting, plain = canonical_setting(name.lower()), _plain_value(value)
    if setting and plain is not None and not value.marks and setting not in ("data", "model", "steps"):
        machine.trace.note_setting(setting, plain, machine.place, NAME)


def note_config_class(
    machine: AbstractInterpreter, of: ClassValue, attributes: Mapping[str, AbstractValue], place: CodeLocation
) -> None:
    """Note the fields of the agent's own configuration class."""
    for field in of.list_fields():
        value = attributes.get(field)
        if (
            value is not None
            and (setting := canonical_setting(field))
            and (plain := _plain_value(value)) is not None
        ):
            machine.trace.note_setting(setting, plain, place, OPTION)


def _plain_value(value: AbstractValue) -> JsonValue:
    if isinstance(value.constant, str):
        return value.constant[:200] if value.constant and HOLE not in value.constant else None
    constant = value.constant
    if isinstance(constant, bool) or not isinstance(constant, int | float) or not abs(constant) < 1e15:
        return None
    return constant


# Command-line options.

PARSERS = {"HfArgumentParser", "TrlParser", "ArgumentParser", "DataClassArgumentParser", "H4ArgumentParser"}
CALLED = {
    "fire.Fire", "typer.run", "Fire", "absl.app.run", "tyro.cli", "jsonargparse.CLI",
    "simple_parsing.parse", "draccus.parse", "pyrallis.parse", "chz.entrypoint", "defopt.run", "plac.call",
}  # fmt: skip


def interpret_option_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    name, last = call.name, call.last
    given = call.positional[0] if call.positional else NOTHING
    if name in CALLED:
        return _call_entry_point(machine, given)
    owner = next((one for one in (call.receiver or NOTHING).things if isinstance(one, LibraryObject)), None)
    if last in PARSERS and call.receiver is None:
        return make_value(LibraryObject("parser", tuple(call.positional), dict(call.keywords)))
    if owner is None or owner.name != "parser":
        return None
    if last == "add_argument":
        _add_argument(owner, call)
        return NOTHING
    if last in ("add_argument_group", "add_mutually_exclusive_group"):
        return call.receiver
    if last == "add_subparsers":
        dest = call.get_argument("dest")
        owner.attributes["dest"] = dest or make_constant(None)
        return call.receiver
    if last == "add_parser":
        owner.attributes[f"sub {given.text}"] = make_constant(True)
        return make_value(
            LibraryObject("parser", attributes={"of": make_constant(given.text), "parent": make_value(owner)})
        )
    if last == "set_defaults":
        chosen = owner.attributes.get("of")
        target = _find_top_parser(owner)
        if chosen is None or chosen.constant in machine.argv:
            target.attributes |= {f"default {word}": value for word, value in call.keywords.items()}
        return NOTHING
    if last in ("parse_args", "parse_known_args"):
        argv = _read_argv(given) if given.things else machine.argv
        options = _parse_arguments(machine, _find_top_parser(owner), argv)
        return make_list([options, make_list([])]) if last == "parse_known_args" else options
    if last in ("parse_args_into_dataclasses", "parse_args_and_config", "parse"):
        return _parse_dataclasses(machine, owner)
    return None


def _find_top_parser(owner: LibraryObject) -> LibraryObject:
    parent = owner.attributes.get("parent")
    for one in parent.things if parent else ():
        if isinstance(one, LibraryObject):
            one.attributes |= {
                name: value for name, value in owner.attributes.items() if name.startswith("-- ")
            }
            return _find_top_parser(one)
    return owner


def _read_argv(value: AbstractValue) -> list[str]:
    for one in value.things:
        if isinstance(one, ListValue) and one.elements is not None:
            return [each.text or HOLE for each in one.elements]
    return []


def _add_argument(owner: LibraryObject, call: LibraryCall) -> None:
    names = [each.text for each in call.positional if each.text]
    if not names:
        return
    long = next((name for name in names if name.startswith("--")), names[0])
    dest = call.get_argument("dest")
    key = dest.text if dest and dest.text else long.lstrip("-").replace("-", "_")
    action = call.get_argument("action")
    flag = action.text if action and action.text else ""
    default = call.get_argument("default")
    if default is None:
        default = make_constant({"store_true": False, "store_false": True}.get(flag))
    kind = call.get_argument("type")
    of = next((getattr(one, "name", "") for one in kind.things), "") if kind else ""
    place = call.place
    spec = LibraryObject(
        key,
        tuple(make_constant(name) for name in names),
        {"default": default, "flag": make_constant(flag), "type": make_constant(of)},
        place=place,
    )
    owner.attributes[f"-- {key}"] = make_value(spec)
    parent = owner.attributes.get("parent")
    for one in parent.things if parent else ():
        if isinstance(one, LibraryObject):
            one.attributes[f"-- {key}"] = make_value(spec)


def _parse_arguments(machine: AbstractInterpreter, parser: LibraryObject, argv: list[str]) -> AbstractValue:
    options = {
        name.removeprefix("default "): value
        for name, value in parser.attributes.items()
        if name.startswith("default ")
    }
    free = _list_positionals(argv)
    for name, value in parser.attributes.items():
        for spec in value.things:
            if name.startswith("-- ") and isinstance(spec, LibraryObject):
                names = [each.text or "" for each in spec.positional]
                if names[0].startswith("-"):
                    said = _find_option(argv, names, spec.keywords["flag"].text or "")
                else:
                    said = free.pop(0) if free else None
                default = options.get(spec.name, spec.keywords["default"])
                option_value = (
                    default
                    if said is None
                    else make_constant(_convert_type(said, spec.keywords["type"].text or ""))
                )
                options[spec.name] = option_value
                note_option(machine, spec.name, option_value, spec.place, said is not None)
    subs = [name.removeprefix("sub ") for name in parser.attributes if name.startswith("sub ")]
    dest = parser.attributes.get("dest")
    if dest is not None and dest.text:
        chosen = next((word for word in argv if word in subs), None)
        options[dest.text] = make_constant(chosen) if chosen else NOTHING
    return make_dict(options)


def _list_positionals(argv: list[str]) -> list[str]:
    free, skip = [], False
    for word in argv:
        if word.startswith("-") and not _is_numeric(word):
            skip = "=" not in word
        elif skip:
            skip = False
        else:
            free.append(word)
    return free or [word for word in argv if not word.startswith("-")]


def _find_option(argv: list[str], names: list[str], flag: str) -> str | bool | None:
    """Return the value of an option on the command line; the last one counts."""
    option_value: str | bool | None = None
    for number, word in enumerate(argv):
        head, equals, tail = word.partition("=")
        if head.replace("_", "-") not in [name.replace("_", "-") for name in names]:
            continue
        if flag in ("store_true", "store_false"):
            option_value = flag == "store_true"
        elif equals:
            option_value = tail
        else:
            option_value = argv[number + 1] if number + 1 < len(argv) else ""
    return option_value


def _convert_type(said: str | bool, of: str) -> Constant:
    if isinstance(said, bool) or HOLE in said:
        return said if isinstance(said, bool) else UNKNOWN
    if of in ("float", "int", "") and _is_numeric(said):
        number = float(said)
        return (
            int(number)
            if of != "float" and number.is_integer() and "e" not in said and "." not in said
            else number
        )
    if of in ("bool", "") and said.lower() in ("true", "false"):
        return said.lower() == "true"
    return said


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return len(text) < 40


def split_options(argv: list[str]) -> Iterator[tuple[str, AbstractValue]]:
    """Yield options of the forms `--name value`, `--name=value` and `name=value`."""
    for number, word in enumerate(argv):
        head, equals, tail = word.partition("=")
        if not (word.startswith("--") or equals):
            continue
        name = head.lstrip("-+").replace("-", "_")
        after = argv[number + 1] if number + 1 < len(argv) else "--"
        if equals:
            yield name, make_constant(_convert_type(tail, ""))
        elif after.startswith("--"):
            yield name, make_constant(True)
        else:
            yield name, make_constant(_convert_type(after, ""))


def _parse_dataclasses(machine: AbstractInterpreter, parser: LibraryObject) -> AbstractValue:
    given = parser.positional[0] if parser.positional else parser.keywords.get("dataclass_types", NOTHING)
    kinds = [given]
    for one in given.things:
        if isinstance(one, ListValue):
            kinds = list(one.elements or ())
    said = dict(split_options(machine.argv)) | _load_named_config(machine)
    return make_list([_build_config(machine, kind, said) for kind in kinds])


def _load_named_config(machine: AbstractInterpreter) -> dict[str, AbstractValue]:
    """Load the configuration file that the command line names."""
    for word in machine.argv:
        source = machine.files.find_file(word) if word.endswith((".yaml", ".yml", ".json", ".toml")) else None
        config = source_files.parse_config(source) if source else None
        if isinstance(config, dict):
            return {name: standard_library_calls.make_config_value(value) for name, value in config.items()}
    return {}


def _build_config(
    machine: AbstractInterpreter, kind: AbstractValue, said: dict[str, AbstractValue]
) -> AbstractValue:
    given = said
    for one in kind.things:
        if isinstance(one, ClassValue):
            given = {name: value for name, value in said.items() if name in one.list_fields()}
    return machine.call_value(kind, [], given)


def _call_entry_point(machine: AbstractInterpreter, given: AbstractValue) -> AbstractValue:
    """Call a function or a class with the options of the command line."""
    said = dict(split_options(machine.argv)) | _load_named_config(machine)
    for one in given.things:
        if isinstance(one, DictValue):
            chosen = [value for name, value in one.known.items() if name in machine.argv]
            return join_values(machine.call_value(value, [], said) for value in chosen)
        if isinstance(one, ClassValue):
            return _build_config(machine, given, said)
    return machine.call_value(given, [], said)


def bind_command_line(machine: AbstractInterpreter, function: FunctionValue) -> dict[str, AbstractValue]:
    """Return the arguments of a function with options declared by decorators."""
    said = dict(split_options(machine.argv))
    if any(name.startswith("config") for name in function.options):
        return {"": _load_hydra_config(machine, function, said)}
    free = _list_positionals(machine.argv)
    arguments = {}
    for name, default in function.options.items():
        arguments[name] = said.get(name, default)
        if name not in said and free and default.constant is None:
            arguments[name] = make_constant(free.pop(0))
    return arguments


def _load_hydra_config(
    machine: AbstractInterpreter, function: FunctionValue, said: dict[str, AbstractValue]
) -> AbstractValue:
    name = function.options.get("config_name", NOTHING).text or "config"
    folder = (function.options.get("config_path") or NOTHING).text or ""
    stem = name.removesuffix(".yaml")
    source = machine.files.find_file(f"{folder}/{stem}.yaml", function.module.path.rpartition("/")[0])
    config = source_files.parse_config(source) if source else None
    value = standard_library_calls.make_config_value(config if isinstance(config, dict) else {})
    for path, given in said.items():
        at = value
        *above, last = path.split(".")
        for part in above:
            at = machine.read_attribute(at, part)
        for one in at.things:
            if isinstance(one, DictValue):
                one.known[last] = given
    return value
