"""Interpret calls of array functions (torch, numpy, jax), and classify a loss by route."""

import re

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    CodeLocation,
    collect_marks,
    join_values,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, DetectedStage, LibraryCall
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.workspace_paths import HOLE

FROM = "from:"
"""Prefix of the mark of samples of one model."""
RouteGuess = tuple[Route, float, tuple[str, ...]]
"""A route, its confidence, and the marks that show it."""


def record_training(machine: AbstractInterpreter, loss: AbstractValue, place: CodeLocation) -> None:
    """Record a training step on this loss."""
    marks = collect_marks(loss)
    if kind := classify_loss(machine, marks):
        add_stage(machine, kind, marks, place)


def add_stage(machine: AbstractInterpreter, kind: RouteGuess, marks: Marks, place: CodeLocation) -> None:
    route, confidence, why = kind
    places = [place, *(machine.first[mark] for mark in why if mark in machine.first)]
    stage = DetectedStage(route, confidence, tuple(dict.fromkeys(places))[:4], m.WORLD in marks)
    machine.trace.add_stage(stage, m.select_models(marks))


def classify_loss(machine: AbstractInterpreter, marks: Marks) -> RouteGuess | None:
    """Return the route of a training on this loss; None if the policy is not trained."""
    scored = marks & (m.SCORES | {m.PICKED})
    if m.CRITIC in marks and not scored:
        return None
    pair = marks >= {m.CHOSEN, m.REJECTED} and scored
    if (m.PAIRWISE in marks or pair) and m.WEIGHTED not in marks:
        return "preference", 0.9 if m.PAIRWISE in marks else 0.75, (m.PAIRWISE, m.CHOSEN)
    if m.WEIGHTED in marks:
        return classify_policy_gradient(marks, 0.9)
    if m.JUDGED in marks:
        return classify_policy_gradient(marks, 0.6) if scored or m.PAIRWISE in marks else None
    if m.KL in marks and m.NLL not in marks:
        return "other", 0.7, (m.KL,)
    if m.NLL in marks or marks >= {m.LOGPROB, m.PICKED}:
        return classify_imitation(machine, marks, 0.9)
    if m.LOGPROB in marks:
        return (
            ("other", 0.6, (m.LOGPROB,))
            if len(m.select_models(marks)) > 1
            else ("unknown", 0.3, (m.LOGPROB,))
        )
    if marks & {m.LOGITS, m.FORWARD, m.PROBS} and m.select_models(marks):
        return ("other", 0.5, ()) if len(m.select_models(marks)) > 1 else ("unknown", 0.3, ())
    return "unknown", 0.2, ()


def classify_policy_gradient(marks: Marks, confidence: float) -> RouteGuess:
    route: Route = "online-rl" if m.WORLD in marks else "policy-gradient"
    return route, confidence, (m.WEIGHTED, m.JUDGED, m.WORLD)


def classify_imitation(machine: AbstractInterpreter, marks: Marks, confidence: float) -> RouteGuess:
    """Return the route of an imitation: of given answers, or of the model's own."""
    if not marks & m.OWN or m.EXPERT in marks:
        return "sft", confidence, (m.NLL, m.EXPERT)
    if m.TEACHER in marks or _is_from_teacher(machine, marks):
        return "sft", confidence * 0.75, (m.NLL,)
    if m.FILTERED in marks or machine.judging or m.JUDGED in marks:
        return "rejection", confidence * 0.95, (m.FILTERED, m.SAID, m.TOKENS)
    return "rejection", 0.45, (m.SAID, m.TOKENS)


def _is_from_teacher(machine: AbstractInterpreter, marks: Marks) -> bool:
    """Whether the samples come from another model, from outside of the workspace."""
    models = [machine.trace.models.get(mark.removeprefix(FROM)) for mark in marks if mark.startswith(FROM)]
    paths = [path for made in models if made for path in made.origins]
    own = [path for mark in m.select_models(marks) for path in machine.trace.models[mark].origins]
    return bool(paths) and all(
        HOLE not in path and not path.startswith(("output", "models/", "/")) and path not in own
        for path in paths
    )


# Array functions.

LOG_PROBABILITIES = re.compile(
    r"log_?prob|logps?$|_logps|log_?likelihood|selective_log_softmax|nll_per|seq_lp"
)
LIKELIHOOD = {
    "cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "softmax_cross_entropy_with_integer_labels",
    "softmax_cross_entropy", "sparse_categorical_crossentropy", "fixed_cross_entropy", "LabelSmoother",
    "ForCausalLMLoss", "LigerCrossEntropyLoss", "sparse_softmax_cross_entropy_with_logits",
    "CEWithChunkedOutputLoss", "linear_cross_entropy", "LigerFusedLinearCrossEntropyLoss",
}  # fmt: skip
PICKING = {"gather", "take_along_axis", "take_along_dim", "index_select", "gather_nd"}
SIGMOIDS = {"logsigmoid", "log_sigmoid", "LogSigmoid", "softplus"}
HINGES = {"relu", "hinge_embedding_loss", "margin_ranking_loss"}
SAMPLING = {"multinomial", "categorical", "sample", "rsample", "choice", "choices"}
NOISES = {"randn", "randn_like", "normal", "standard_normal", "normal_", "rand_like"}
PLAIN = {
    "len", "range", "isinstance", "hasattr", "id", "arange", "zeros", "ones", "zeros_like", "ones_like",
    "eye", "empty", "linspace", "full", "print", "size", "dim", "numel", "manual_seed", "seed", "time",
    "perf_counter", "monotonic", "sleep", "info", "debug", "warning", "log", "exists", "is_file", "is_dir",
    "makedirs", "mkdir", "default_rng", "Generator", "RandomState", "type", "is_available",
    "get_device_name", "dump_metrics",
}  # fmt: skip
"""Functions with results that carry no marks."""
IN_PLACE = {"add_", "mul_", "copy_", "lerp_", "sub_", "load_state_dict", "add_weighted_adapter"}
LOSSY = re.compile(r"loss|policy|grpo|ppo|surrogate|reinforce|objective")
PLACED = {
    "to", "cuda", "cpu", "float", "half", "bfloat16", "eval", "detach", "requires_grad_", "item", "clone",
    "unsqueeze", "squeeze", "view", "reshape", "contiguous", "train", "double", "numpy",
}  # fmt: skip


def interpret_array_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    name, marks = call.last, _call_marks(call)
    if name in PLAIN and not (name == "log" and marks & {m.PROBS, m.LOGPROB, m.LOGITS}):
        return NOTHING
    if name in LIKELIHOOD:
        if not call.all or (name[0].isupper() and call.receiver is None):
            return None  # a loss object, to be called later
        return AbstractValue(
            (marks - {m.LOGITS, m.FORWARD, m.JUDGED, m.PROBS}) | {machine.record_mark(m.NLL)}
        )
    if name == "log_softmax" or (name == "log" and marks & {m.PROBS}):
        return AbstractValue((marks - {m.LOGITS, m.PROBS}) | {machine.record_mark(m.LOGPROB)})
    if name == "logsumexp" and marks & {m.LOGITS}:
        return AbstractValue(marks | {machine.record_mark(m.LOGPROB)})
    if name == "log_prob":
        return AbstractValue(marks | {machine.record_mark(m.LOGPROB), m.PICKED})
    if name == "softmax":
        return AbstractValue((marks - {m.LOGITS}) | {m.PROBS})
    if name in PICKING and marks & {m.LOGPROB, m.PROBS}:
        return AbstractValue(marks | {m.PICKED})
    if name == "one_hot":
        return AbstractValue(marks | {m.PICKED})
    if name in SIGMOIDS and marks & m.SCORES:
        return AbstractValue(marks | {machine.record_mark(m.PAIRWISE)})
    if name == "log" and marks & m.SCORES and "sigmoid" in marks:
        return AbstractValue(marks | {machine.record_mark(m.PAIRWISE)})
    if name == "sigmoid" and marks & m.SCORES:
        return AbstractValue(marks | {"sigmoid"})
    if name in HINGES and marks & m.SCORES and marks >= {m.CHOSEN, m.REJECTED}:
        return AbstractValue(marks | {machine.record_mark(m.PAIRWISE)})
    if name in ("kl_div", "KLDivLoss", "kl_divergence") and marks & (m.SCORES | {m.PROBS, m.LOGITS}):
        return AbstractValue(marks | {machine.record_mark(m.KL)})
    if name in SAMPLING and marks & {m.PROBS, m.LOGITS, m.LOGPROB, m.WEIGHTS, m.FORWARD}:
        return mark_sampled(machine, marks, m.TOKENS)
    if name in ("argmax", "topk", "argsort") and marks & {m.LOGITS, m.PROBS, m.LOGPROB}:
        return mark_sampled(machine, marks, m.TOKENS)
    if name in NOISES:
        return AbstractValue(marks | {m.NOISE})
    if name in ("mul", "dot", "einsum", "matmul", "multiply", "bmm", "inner", "vdot", "mm"):
        return _interpret_product(machine, call)
    if name in IN_PLACE and m.WEIGHTS in marks:
        return _interpret_in_place(machine, call)
    if LOG_PROBABILITIES.search(name) and call.receiver is None:
        return AbstractValue((marks - {m.LOGITS, m.FORWARD}) | {machine.record_mark(m.LOGPROB), m.PICKED})
    if LOSSY.search(name.lower()) and m.JUDGED in marks and marks & m.SCORES:
        return AbstractValue(marks | {machine.record_mark(m.WEIGHTED)})
    if name in PLACED and call.receiver is not None:
        return call.receiver
    if name == "where" and len(call.positional) == 3:
        return _interpret_where(machine, call)
    return None


def _call_marks(call: LibraryCall) -> Marks:
    return collect_marks(call.receiver).union(*map(collect_marks, call.all))


def mark_sampled(machine: AbstractInterpreter, marks: Marks, mark: str) -> AbstractValue:
    """Mark a sample from a model. It remembers the model but is not part of it."""
    source_marks = marks & {m.WORLD, m.TEACHER, m.EXPERT}
    return AbstractValue(
        source_marks | {machine.record_mark(mark)} | {f"{FROM}{each}" for each in m.select_models(marks)}
    )


def _interpret_product(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    values = [value for value in (call.receiver, *call.all) if value is not None and value.text is None]
    product = join_values(AbstractValue(collect_marks(value)) for value in values)
    for number, left in enumerate(values):
        if any(m.is_weighted(collect_marks(left), collect_marks(right)) for right in values[number + 1 :]):
            return product.with_marks(machine.record_mark(m.WEIGHTED))
    return AbstractValue(product.marks)


def _interpret_in_place(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """Interpret an in-place change of weights without a gradient."""
    before, change = collect_marks(call.receiver), frozenset[str]().union(*map(collect_marks, call.all))
    if (
        m.is_blended(before | {m.WEIGHTS}, change)
        or m.BLENDED in change
        or call.last == "add_weighted_adapter"
    ):
        record_blend(machine, m.select_models(before) or m.select_models(change), change | before)
    return AbstractValue(before | change)


def record_blend(machine: AbstractInterpreter, models: Marks, marks: Marks) -> None:
    made = [machine.trace.models[mark] for mark in models if mark in machine.trace.models]
    here = [stage for one in made for stage in one.stages if stage.launch == machine.trace.launch]
    if not here:
        add_stage(
            machine, ("other", 0.75, (m.BLENDED,)), models | (marks - m.select_models(marks)), machine.place
        )


def _interpret_where(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    test, *rest = call.positional
    marks = frozenset[str]().union(*map(collect_marks, rest))
    if m.JUDGED in collect_marks(test) and marks & m.SCORES:
        marks |= {machine.record_mark(m.WEIGHTED)}
    elif m.JUDGED in collect_marks(test) and not marks & m.OWN:
        marks |= {m.JUDGED}
    return AbstractValue(marks)
