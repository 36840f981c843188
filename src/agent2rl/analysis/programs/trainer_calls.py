"""Interpret trainers of libraries and their data sets: which route a trainer is when it is started."""

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import array_calls, model_calls
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractObject,
    AbstractValue,
    DictValue,
    InstanceValue,
    LibraryObject,
    ListValue,
    collect_marks,
    join_values,
    make_constant,
    make_dict,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.array_calls import RouteGuess
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall
from agent2rl.analysis.programs.marks import Marks

# Data sets and loaders.

SAME_ROWS = {
    "shuffle", "select", "train_test_split", "with_format", "remove_columns", "rename_column", "flatten",
    "take", "skip", "set_format", "shard", "sort", "repeat", "to_list", "iterrows", "to_dict", "sample",
    "head", "reset_index", "dropna", "drop_duplicates", "to_pandas", "batch", "cast", "itertuples",
}  # fmt: skip


def interpret_dataset_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    last, given = call.last, (call.positional[0] if call.positional else NOTHING)
    if last == "DataLoader" or last.endswith("DataLoader"):
        return _build_loader(machine, call)
    if last == "from_dict" and call.receiver is None:
        for one in given.things:
            if isinstance(one, DictValue):
                columns = {name: machine.read_element(value) for name, value in one.known.items()}
                return build_dataset(make_dict(columns, machine.read_element(one.rest)))
    if last in ("from_list", "from_pandas", "DataFrame") and call.all:
        return build_dataset(machine.read_element(call.all[0]))
    if last == "from_generator":
        return build_dataset(machine.read_element(machine.call_value(given, [], {})))
    if last in ("concatenate_datasets", "ConcatDataset"):
        return build_dataset(machine.read_element(machine.read_element(given)))
    if last == "TensorDataset":
        return build_dataset(
            make_open_list(AbstractValue(frozenset().union(*map(collect_marks, call.positional))))
        )
    if call.receiver is None:
        return None
    if not any(isinstance(one, LibraryObject) and "rows" in one.attributes for one in call.receiver.things):
        return None
    rows = machine.read_element(call.receiver)
    if last == "map":
        return build_dataset(_map_rows(rows, machine.call_value(given, [rows], {})))
    if last == "filter":
        return build_dataset(
            machine.mark_filtered(rows, collect_marks(machine.call_value(given, [rows], {})))
        )
    if last in SAME_ROWS:
        return call.receiver
    return None


def build_dataset(rows: AbstractValue) -> AbstractValue:
    return make_value(LibraryObject("dataset", attributes={"rows": rows}))


def _map_rows(rows: AbstractValue, new: AbstractValue) -> AbstractValue:
    """Add the columns that a mapped function returns to the row."""
    before = next((one for one in rows.things if isinstance(one, DictValue)), None)
    after = next((one for one in new.things if isinstance(one, DictValue)), None)
    if after is None:
        return AbstractValue(rows.marks | collect_marks(new), things=rows.things)
    fields = {**(before.known if before else {}), **after.known}
    rest = before.rest if before else AbstractValue(rows.marks)
    return AbstractValue(new.marks, things=make_dict(fields, rest).things)


def _build_loader(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    rows = machine.read_element(
        call.positional[0] if call.positional else call.keywords.get("dataset", NOTHING)
    )
    collate = call.get_argument("collate_fn")
    if collate is not None and any(not isinstance(one, LibraryObject) for one in collate.things):
        rows = machine.call_value(collate, [make_open_list(rows)], {})
    return make_value(LibraryObject("loader", attributes={"rows": rows}))


# Trainers.

ROUTES: dict[str, Route | None] = {
    **dict.fromkeys(
        ("SFTTrainer", "Trainer", "Seq2SeqTrainer", "UnslothTrainer", "IterativeSFTTrainer"), "sft"
    ),
    **dict.fromkeys(
        ("DPOTrainer", "ORPOTrainer", "KTOTrainer", "CPOTrainer", "BCOTrainer", "IPOTrainer", "SimPOTrainer",
         "OnlineDPOTrainer", "XPOTrainer", "NashMDTrainer", "AlignPropTrainer"),
        "preference",
    ),
    **dict.fromkeys(
        ("GRPOTrainer", "PPOTrainer", "RLOOTrainer", "PPOv2Trainer", "RLOOv2Trainer", "AsyncGRPOTrainer",
         "AgentTrainer", "ReinforceTrainer", "RayPPOTrainer", "GSPOTrainer", "DAPOTrainer", "RLTrainer"),
        "policy-gradient",
    ),
    **dict.fromkeys(("GKDTrainer", "MiniLLMTrainer", "DistillationTrainer", "GOLDTrainer"), "other"),
    **dict.fromkeys(("RewardTrainer", "PRMTrainer", "CrossEncoderTrainer"), None),
}  # fmt: skip
STARTS = {"train", "fit", "learn", "run"}
IMITATING = {"agent2rl.training.sft.sft": 2, "agent2rl.training.sft.imitate": 1}
"""Functions that imitate rows, with the position of that argument."""
ENVIRONMENT_ARGUMENTS = ("environment_factory", "env", "environment", "envs", "env_factory")
LOSSES: dict[str, Route] = {
    "cross_entropy": "sft",
    "importance_sampling": "policy-gradient",
    "ppo": "policy-gradient",
    "cispo": "policy-gradient",
    "dro": "policy-gradient",
}
STAGES: dict[str, Route] = {
    "sft": "sft",
    "pt": "sft",
    "dpo": "preference",
    "kto": "preference",
    "orpo": "preference",
    "simpo": "preference",
    "ppo": "policy-gradient",
    "grpo": "policy-gradient",
    "rloo": "policy-gradient",
}


def find_trainer_family(name: str) -> str | None:
    """Return the known trainer with the name of a class. Libraries that wrap trainers keep their names."""
    last = name.rpartition(".")[2]
    return last if last in ROUTES else None


def interpret_trainer_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    name, last = call.name, call.last
    if call.receiver is None and find_trainer_family(name):
        made = LibraryObject(name, tuple(call.positional), dict(call.keywords), place=call.place)
        made.attributes["model"] = _load_trainer_model(machine, call.get_argument("model", 0))
        return make_value(made)
    if last == "backward":
        return _interpret_backward(machine, call)
    trainer = _find_trainer(call.receiver) if call.receiver is not None else None
    if last == "step" and len(call.positional) >= 3 and trainer and _object_family(trainer) == "PPOTrainer":
        marks = frozenset[str]().union(*map(collect_marks, call.positional))
        return _add_stage(
            machine, array_calls.classify_policy_gradient(marks, 0.95), marks | _model_marks(trainer), call
        )
    if trainer and last in STARTS:
        return _interpret_train(machine, call, trainer)
    if last == "forward_backward" and (given := call.get_argument("loss_fn", 1)) and given.text in LOSSES:
        return _add_named_route(machine, call, LOSSES[given.text])
    if last in ("run_exp", "train_model") and call.all:
        stage = machine.read_attribute(call.all[0], "stage").text
        return _add_named_route(machine, call, STAGES[stage]) if stage in STAGES else None
    if call.name == "torch.autograd.grad" and call.positional:
        array_calls.record_training(machine, call.positional[0], call.place)
        return make_open_list(AbstractValue(collect_marks(call.positional[0])))
    return _interpret_own_recipe(machine, call)


def attach_trainer_model(machine: AbstractInterpreter, made: InstanceValue) -> None:
    """Give an instance of the agent's own trainer class its model."""
    if (
        any(find_trainer_family(name) for name in made.of.list_library_bases())
        and "model" not in made.attributes
    ):
        given = made.keywords.get("model") or (made.positional[0] if made.positional else NOTHING)
        made.attributes["model"] = _load_trainer_model(machine, given)


def _load_trainer_model(machine: AbstractInterpreter, given: AbstractValue | None) -> AbstractValue:
    if given is not None and given.text is not None:
        return model_calls.load_model(machine, given)
    return (
        given
        if given is not None and (given.marks or given.things)
        else model_calls.load_model(machine, None)
    )


def _interpret_backward(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    loss = (
        call.positional[0]
        if call.positional and m.select_models(collect_marks(call.positional[0]))
        else call.receiver
    )
    if call.positional and not collect_marks(loss):
        loss = call.positional[0]
    array_calls.record_training(machine, loss or NOTHING, call.place)
    return make_constant(None)


def _find_trainer(receiver: AbstractValue) -> LibraryObject | InstanceValue | None:
    for one in receiver.things:
        if isinstance(one, LibraryObject | InstanceValue) and _object_family(one):
            return one
    return None


def _object_family(one: AbstractObject) -> str | None:
    if isinstance(one, LibraryObject):
        return find_trainer_family(one.name)
    if isinstance(one, InstanceValue):
        return next(
            (family for name in one.of.list_library_bases() if (family := find_trainer_family(name))), None
        )
    return None


def _model_marks(trainer: LibraryObject | InstanceValue) -> Marks:
    return m.select_models(collect_marks(trainer.attributes.get("model")))


def _join_arguments(trainer: LibraryObject | InstanceValue, *names: str) -> AbstractValue:
    return join_values(trainer.keywords[name] for name in names if name in trainer.keywords)


def _interpret_train(
    machine: AbstractInterpreter, call: LibraryCall, trainer: LibraryObject | InstanceValue
) -> AbstractValue:
    name = _object_family(trainer) or ""
    if call.last == "fit" or "lightning" in str(getattr(trainer, "name", "")):
        return _interpret_lightning_fit(machine, call)
    route = ROUTES[name]
    if route is None:
        return make_constant(None)
    kind = _classify_trainer(machine, trainer, route)
    places = [trainer.place] if isinstance(trainer, LibraryObject) and trainer.place else []
    if kind:
        marks = _model_marks(trainer) | (frozenset({m.WORLD}) if kind[0] == "online-rl" else m.NONE)
        _add_stage(machine, kind, marks, call)
        for place in places:
            machine.first.setdefault(f"trainer {place}", place)
    folder = model_calls.find_trainer_folder(make_value(trainer))
    if folder is not None and folder.text:
        machine.trace.save_weights(folder.text, _model_marks(trainer))
    return make_constant(None)


def _classify_trainer(
    machine: AbstractInterpreter, trainer: LibraryObject | InstanceValue, route: Route
) -> RouteGuess | None:
    rows = machine.read_element(_join_arguments(trainer, "train_dataset", "dataset"))
    collate = _join_arguments(trainer, "data_collator")
    marks = collect_marks(rows)
    own = isinstance(trainer, InstanceValue) and trainer.of.find_member("compute_loss") is not None
    if own or "compute_loss" in trainer.attributes:
        batch = machine.call_value(collate, [make_open_list(rows)], {}) if collate.things else rows
        method = machine.read_attribute(make_value(trainer), "compute_loss")
        loss = machine.call_value(method, [trainer.attributes["model"], batch], {})
        loss = (
            machine.read_item(loss, make_constant(0))
            if any(isinstance(one, ListValue) for one in loss.things)
            else loss
        )
        route_guess = array_calls.classify_loss(machine, collect_marks(loss))
        if route_guess and route_guess[0] != "unknown":
            return route_guess
    if route == "sft":
        return array_calls.classify_imitation(machine, marks, 0.95)
    if route != "policy-gradient":
        return route, 0.95, ()
    return _classify_rewards(machine, trainer)


def _classify_rewards(machine: AbstractInterpreter, trainer: LibraryObject | InstanceValue) -> RouteGuess:
    """Return online RL if the trainer is given an environment, or if rewards or rollouts use one."""
    given = _join_arguments(trainer, *ENVIRONMENT_ARGUMENTS)
    if given.things or given.marks:
        return "online-rl", 0.95, (m.WORLD,)
    said = AbstractValue(frozenset({m.SAID}))
    marks = m.NONE
    functions = _join_arguments(
        trainer, "reward_funcs", "reward_func", "reward_functions", "rollout_func", "tools"
    )
    inner = machine.read_element(functions) if not functions.things else functions
    for one in {
        id(each): each
        for value in (functions, inner, machine.read_element(functions))
        for each in value.things
    }.values():
        words = {
            "completions": make_open_list(said),
            "prompts": make_open_list(NOTHING),
            "**": make_open_list(AbstractValue(frozenset({m.DATA}))),
        }
        marks |= collect_marks(machine.call_value(make_value(one), [], words))
    return array_calls.classify_policy_gradient(marks & {m.WORLD}, 0.95)


def _interpret_lightning_fit(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """Interpret `fit` of Lightning: the module defines the training step."""
    module = call.get_argument("model", 0) or NOTHING
    loader = call.get_argument("train_dataloaders", 1)
    batch = machine.read_element(loader) if loader is not None else NOTHING
    if loader is None:
        data = machine.call_value(machine.read_attribute(module, "train_dataloader"), [], {})
        batch = machine.read_element(data)
    for one in module.things:
        if isinstance(one, InstanceValue) and one.of.find_member("training_step"):
            step_result = machine.call_value(
                machine.read_attribute(make_value(one), "training_step"), [batch, NOTHING], {}
            )
            loss = (
                machine.read_item(step_result, make_constant("loss")) if step_result.things else step_result
            )
            array_calls.record_training(
                machine,
                AbstractValue(collect_marks(loss) | m.select_models(collect_marks(make_value(one)))),
                call.place,
            )
    return make_constant(None)


def _add_named_route(machine: AbstractInterpreter, call: LibraryCall, route: Route) -> AbstractValue:
    marks = frozenset[str]().union(*map(collect_marks, call.all))
    kind: RouteGuess = (route, 0.9, ())
    if route == "sft":
        kind = array_calls.classify_imitation(machine, marks, 0.9)
    elif route == "policy-gradient":
        kind = array_calls.classify_policy_gradient(marks, 0.9)
    return _add_stage(machine, kind, marks, call)


def _add_stage(
    machine: AbstractInterpreter, kind: RouteGuess, marks: Marks, call: LibraryCall
) -> AbstractValue:
    array_calls.add_stage(machine, kind, marks, call.place)
    return AbstractValue(marks & m.select_models(marks), UNKNOWN)


def _interpret_own_recipe(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    """The training recipes and the miniature model of agent2rl, by their present and their former names."""
    marks = frozenset[str]().union(collect_marks(call.receiver), *map(collect_marks, call.all))
    given = call.positional[0] if call.positional else NOTHING
    match call.name:
        case "agent2rl.training.sft.sft" | "agent2rl.training.sft.imitate":
            rows = call.get_argument("pairs" if call.last == "sft" else "rows", IMITATING[call.name])
            kind = array_calls.classify_imitation(machine, collect_marks(rows), 0.95)
            return _add_stage(machine, kind, m.select_models(collect_marks(given)), call)
        # `improve` is the former name, which programs of earlier runs use.
        case (
            "agent2rl.training.grpo.grpo"
            | "agent2rl.training.grpo.train_on_rollouts"
            | "agent2rl.training.grpo.improve"
        ):
            return _add_stage(
                machine,
                array_calls.classify_policy_gradient(marks & {m.WORLD}, 0.95),
                m.select_models(collect_marks(given)),
                call,
            )
        case "agent2rl.training.rollouts.grpo_in_world":
            models = m.select_models(collect_marks(given)) | {m.WORLD}
            return _add_stage(machine, ("online-rl", 0.95, ()), models, call)
        case "agent2rl.training.sampling.right_answers" | "agent2rl.training.rejection.right_answers":
            own = frozenset({machine.record_mark(m.SAID), machine.record_mark(m.FILTERED)})
            return make_open_list(join_values([AbstractValue(own)]))
        case (
            "agent2rl.training.sampling.sample"
            | "agent2rl.training.sampling.PolicySampler.sample"
            | "agent2rl.training.sampling.Sampler.sample"
        ):
            return make_open_list(make_open_list(AbstractValue(frozenset({machine.record_mark(m.SAID)}))))
        case (
            "agent2rl.training.rollouts.encode_expert_games"
            | "agent2rl.training.rollouts.demonstrations"
            | "agent2rl.training.conversations.encode_demonstrations"
            | "agent2rl.training.demonstrations.read_demonstrations"
            | "agent2rl.training.demonstrations.demonstrations"
        ):
            return make_open_list(AbstractValue(frozenset({m.EXPERT})))
        case "agent2rl.training.conversations.build_chat":
            return make_open_list(join_values([call.get_argument("exchanges", 2) or NOTHING]))
        case "agent2rl.training.conversations.encode_conversations":
            return make_open_list(join_values([call.get_argument("chats", 2) or NOTHING]))
        case "agent2rl.training.models.load":
            model = model_calls.load_model(machine, given)
            return make_list([model, make_value(LibraryObject("tokenizer"))])
        case "agent2rl.training.models.save":
            return model_calls.save_model(
                machine, call.get_argument("directory", 2), m.select_models(collect_marks(given))
            )
        case "agent2rl.models.abacus.Abacus.load":
            model = model_calls.load_model(machine, given)
            return make_value(LibraryObject("agent2rl.models.abacus.Abacus"), model.marks)
        case "agent2rl.models.abacus.Abacus.fit":
            kind = array_calls.classify_imitation(
                machine, collect_marks(call.get_argument("answers", 1)), 0.95
            )
            return _add_stage(machine, kind, m.select_models(collect_marks(call.receiver)), call)
        case "agent2rl.models.abacus.Abacus.reinforce":
            return _add_stage(
                machine,
                array_calls.classify_policy_gradient(marks & {m.WORLD}, 0.95),
                m.select_models(collect_marks(call.receiver)),
                call,
            )
        case "agent2rl.models.abacus.Abacus.save":
            return model_calls.save_model(machine, given, m.select_models(collect_marks(call.receiver)))
        case "agent2rl.models.abacus.Abacus.answer":
            return AbstractValue(frozenset({machine.record_mark(m.SAID)}))
        case _:
            return None
