"""Trainers of libraries: what each of them trains by, when it is told to train."""

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import language, losses
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.losses import Kind
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.values import (
    NOTHING,
    UNKNOWN,
    Foreign,
    Instance,
    Several,
    Thing,
    Value,
    constant,
    deep,
    join,
    several,
    some,
    thing,
)

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
"""And which of their arguments is imitated."""
WORLDLY = ("environment_factory", "env", "environment", "envs", "env_factory")
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


def family(name: str) -> str | None:
    """The trainer that a class is, by its own name; the libraries that wrap others keep them."""
    last = name.rpartition(".")[2]
    return last if last in ROUTES else None


def known(machine: Core, call: Call) -> Value | None:
    name, last = call.name, call.last
    if call.receiver is None and family(name):
        made = Foreign(name, tuple(call.positional), dict(call.keywords), place=call.place)
        made.attributes["model"] = _model(machine, call.argument("model", 0))
        return thing(made)
    if last == "backward":
        return _backward(machine, call)
    trainer = _trainer(call.receiver) if call.receiver is not None else None
    if last == "step" and len(call.positional) >= 3 and trainer and _family(trainer) == "PPOTrainer":
        marks = frozenset[str]().union(*map(deep, call.positional))
        return _add(machine, losses.gradient(marks, 0.95), marks | _models(trainer), call)
    if trainer and last in STARTS:
        return _train(machine, call, trainer)
    if last == "forward_backward" and (given := call.argument("loss_fn", 1)) and given.text in LOSSES:
        return _by_name(machine, call, LOSSES[given.text])
    if last in ("run_exp", "train_model") and call.all:
        stage = machine.attribute(call.all[0], "stage").text
        return _by_name(machine, call, STAGES[stage]) if stage in STAGES else None
    if call.name == "torch.autograd.grad" and call.positional:
        losses.trained(machine, call.positional[0], call.place)
        return some(Value(deep(call.positional[0])))
    return _ours(machine, call)


def constructed(machine: Core, made: Instance) -> None:
    """An object of the agent's own class, which may be a trainer."""
    if any(family(name) for name in made.of.ancestors()) and "model" not in made.attributes:
        given = made.keywords.get("model") or (made.positional[0] if made.positional else NOTHING)
        made.attributes["model"] = _model(machine, given)


def _model(machine: Core, given: Value | None) -> Value:
    if given is not None and given.text is not None:
        return language.load(machine, given)
    return given if given is not None and (given.marks or given.things) else language.load(machine, None)


def _backward(machine: Core, call: Call) -> Value:
    loss = call.positional[0] if call.positional and m.models(deep(call.positional[0])) else call.receiver
    if call.positional and not deep(loss):
        loss = call.positional[0]
    losses.trained(machine, loss or NOTHING, call.place)
    return constant(None)


def _trainer(receiver: Value) -> Foreign | Instance | None:
    for one in receiver.things:
        if isinstance(one, Foreign | Instance) and _family(one):
            return one
    return None


def _family(one: Thing) -> str | None:
    if isinstance(one, Foreign):
        return family(one.name)
    if isinstance(one, Instance):
        return next((found for name in one.of.ancestors() if (found := family(name))), None)
    return None


def _models(trainer: Foreign | Instance) -> Marks:
    return m.models(deep(trainer.attributes.get("model")))


def _given(trainer: Foreign | Instance, *names: str) -> Value:
    return join(trainer.keywords[name] for name in names if name in trainer.keywords)


def _train(machine: Core, call: Call, trainer: Foreign | Instance) -> Value:
    name = _family(trainer) or ""
    if call.last == "fit" or "lightning" in str(getattr(trainer, "name", "")):
        return _fitted(machine, call)
    route = ROUTES[name]
    if route is None:
        return constant(None)
    kind = _kind(machine, trainer, route)
    places = [trainer.place] if isinstance(trainer, Foreign) and trainer.place else []
    if kind:
        marks = _models(trainer) | (frozenset({m.WORLD}) if kind[0] == "online-rl" else m.NONE)
        _add(machine, kind, marks, call)
        for place in places:
            machine.first.setdefault(f"trainer {place}", place)
    folder = language.trainer_folder(thing(trainer))
    if folder is not None and folder.text:
        machine.trace.save(folder.text, _models(trainer))
    return constant(None)


def _kind(machine: Core, trainer: Foreign | Instance, route: Route) -> Kind | None:
    rows = machine.element(_given(trainer, "train_dataset", "dataset"))
    collate = _given(trainer, "data_collator")
    marks = deep(rows)
    own = isinstance(trainer, Instance) and trainer.of.find("compute_loss") is not None
    if own or "compute_loss" in trainer.attributes:
        batch = machine.call(collate, [some(rows)], {}) if collate.things else rows
        method = machine.attribute(thing(trainer), "compute_loss")
        loss = machine.call(method, [trainer.attributes["model"], batch], {})
        loss = (
            machine.item(loss, constant(0)) if any(isinstance(one, Several) for one in loss.things) else loss
        )
        found = losses.classified(machine, deep(loss))
        if found and found[0] != "unknown":
            return found
    if route == "sft":
        return losses.imitation(machine, marks, 0.95)
    if route != "policy-gradient":
        return route, 0.95, ()
    return _rewarded(machine, trainer)


def _rewarded(machine: Core, trainer: Foreign | Instance) -> Kind:
    """Online where the trainer is given a world, or where rewards or rollouts come from it."""
    given = _given(trainer, *WORLDLY)
    if given.things or given.marks:
        return "online-rl", 0.95, (m.WORLD,)
    said = Value(frozenset({m.SAID}))
    marks = m.NONE
    functions = _given(trainer, "reward_funcs", "reward_func", "reward_functions", "rollout_func", "tools")
    inner = machine.element(functions) if not functions.things else functions
    for one in {
        id(each): each for value in (functions, inner, machine.element(functions)) for each in value.things
    }.values():
        words = {"completions": some(said), "prompts": some(NOTHING), "**": some(Value(frozenset({m.DATA})))}
        marks |= deep(machine.call(thing(one), [], words))
    return losses.gradient(marks & {m.WORLD}, 0.95)


def _fitted(machine: Core, call: Call) -> Value:
    """Lightning: the module says what a step is."""
    module = call.argument("model", 0) or NOTHING
    loader = call.argument("train_dataloaders", 1)
    batch = machine.element(loader) if loader is not None else NOTHING
    if loader is None:
        data = machine.call(machine.attribute(module, "train_dataloader"), [], {})
        batch = machine.element(data)
    for one in module.things:
        if isinstance(one, Instance) and one.of.find("training_step"):
            found = machine.call(machine.attribute(thing(one), "training_step"), [batch, NOTHING], {})
            loss = machine.item(found, constant("loss")) if found.things else found
            losses.trained(machine, Value(deep(loss) | m.models(deep(thing(one)))), call.place)
    return constant(None)


def _by_name(machine: Core, call: Call, route: Route) -> Value:
    marks = frozenset[str]().union(*map(deep, call.all))
    kind: Kind = (route, 0.9, ())
    if route == "sft":
        kind = losses.imitation(machine, marks, 0.9)
    elif route == "policy-gradient":
        kind = losses.gradient(marks, 0.9)
    return _add(machine, kind, marks, call)


def _add(machine: Core, kind: Kind, marks: Marks, call: Call) -> Value:
    losses.add(machine, kind, marks, call.place)
    return Value(marks & m.models(marks), UNKNOWN)


def _ours(machine: Core, call: Call) -> Value | None:
    """The recipes and the miniature model that come with the harness."""
    marks = frozenset[str]().union(deep(call.receiver), *map(deep, call.all))
    given = call.positional[0] if call.positional else NOTHING
    match call.name:
        case "agent2rl.training.sft.sft" | "agent2rl.training.sft.imitate":
            rows = call.argument("pairs" if call.last == "sft" else "rows", IMITATING[call.name])
            kind = losses.imitation(machine, deep(rows), 0.95)
            return _add(machine, kind, m.models(deep(given)), call)
        case "agent2rl.training.grpo.grpo" | "agent2rl.training.grpo.improve":
            return _add(machine, losses.gradient(marks & {m.WORLD}, 0.95), m.models(deep(given)), call)
        case "agent2rl.training.rollouts.grpo_in_world":
            models = m.models(deep(given)) | {m.WORLD}
            return _add(machine, ("online-rl", 0.95, ()), models, call)
        case "agent2rl.training.rejection.right_answers":
            own = frozenset({machine.made(m.SAID), machine.made(m.FILTERED)})
            return some(join([Value(own)]))
        case "agent2rl.training.sampling.sample":
            return some(some(Value(frozenset({machine.made(m.SAID)}))))
        case "agent2rl.training.demonstrations.demonstrations":
            return some(Value(frozenset({m.EXPERT})))
        case "agent2rl.training.models.load":
            model = language.load(machine, given)
            return several([model, thing(Foreign("tokenizer"))])
        case "agent2rl.training.models.save":
            return language.save(machine, call.argument("directory", 2), m.models(deep(given)))
        case "agent2rl.models.abacus.Abacus.load":
            model = language.load(machine, given)
            return thing(Foreign("agent2rl.models.abacus.Abacus"), model.marks)
        case "agent2rl.models.abacus.Abacus.fit":
            kind = losses.imitation(machine, deep(call.argument("answers", 1)), 0.95)
            return _add(machine, kind, m.models(deep(call.receiver)), call)
        case "agent2rl.models.abacus.Abacus.reinforce":
            return _add(
                machine, losses.gradient(marks & {m.WORLD}, 0.95), m.models(deep(call.receiver)), call
            )
        case "agent2rl.models.abacus.Abacus.save":
            return language.save(machine, given, m.models(deep(call.receiver)))
        case "agent2rl.models.abacus.Abacus.answer":
            return Value(frozenset({machine.made(m.SAID)}))
        case _:
            return None
