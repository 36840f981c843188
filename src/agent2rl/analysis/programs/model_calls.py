"""Interpret calls of language models and array functions, and classify a loss by route."""

import re

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    CodeLocation,
    InstanceValue,
    LibraryObject,
    collect_marks,
    join_values,
    make_constant,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, DetectedStage, LibraryCall
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.workspace_paths import HOLE

# Routes, by the marks of the loss.

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


# Array functions of torch, numpy, jax and similar libraries.

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
    kept = marks & {m.WORLD, m.TEACHER, m.EXPERT}
    return AbstractValue(
        kept | {machine.record_mark(mark)} | {f"{FROM}{each}" for each in m.select_models(marks)}
    )


def _interpret_product(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    values = [value for value in (call.receiver, *call.all) if value is not None and value.text is None]
    found = join_values(AbstractValue(collect_marks(value)) for value in values)
    for number, left in enumerate(values):
        if any(m.is_weighted(collect_marks(left), collect_marks(right)) for right in values[number + 1 :]):
            return found.with_marks(machine.record_mark(m.WEIGHTED))
    return AbstractValue(found.marks)


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


POLICY = re.compile(r"(?:^|[._])(?:model|policy|net|network|actor|student|lm|llm|agent|base)(?:_\w+)?$")
READER = re.compile(r"(?:^|[._])(?:tok|tokenizer|processor|enc|encoder|tk|processing_class)$")
CRITICS = re.compile(
    r"ForSequenceClassification|ForTokenClassification|RewardModel|ValueModel|CrossEncoder|Sentence"
)
READERS = re.compile(r"Tokenizer|Processor|get_tokenizer")
ENGINES = {"vllm.LLM", "transformers.pipeline", "sglang.Engine", "vllm.AsyncLLMEngine", "lmdeploy.pipeline"}
TENSORS = {
    "safetensors.torch.load_file", "safetensors.numpy.load_file", "safetensors.safe_open",
    "safetensors.flax.load_file", "mlx.core.load",
}  # fmt: skip
SAVERS = {
    "safetensors.torch.save_file", "safetensors.numpy.save_file", "safetensors.torch.save_model",
    "safetensors.flax.save_file",
}  # fmt: skip
DECODING = {"decode", "batch_decode", "convert_ids_to_tokens"}
ENCODING = {"encode", "apply_chat_template", "pad", "batch_encode_plus", "encode_plus", "encode_batch"}
SAYING = {"chat", "generate_text", "complete"}


def interpret_model_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    name, last = call.name, call.last
    marks = collect_marks(call.receiver).union(*map(collect_marks, call.all))
    if last == "from_pretrained":
        return _load_pretrained(machine, call)
    if name in ENGINES or name.endswith(".LLM"):
        return _load_engine(machine, call)
    if name in ("mlx_lm.load", "mlx_lm.utils.load"):
        return make_list(
            [
                load_model(machine, call.get_argument("path_or_hf_repo", 0)),
                make_value(LibraryObject("tokenizer")),
            ]
        )
    if name.startswith("mlx_lm") and last in ("save", "save_model"):
        return save_model(machine, call.get_argument("dst_path", 0), marks)
    if name in TENSORS:
        return _load_tensors(machine, call.get_argument("filename", 0))
    if name in SAVERS or (name == "torch.save" and (m.WEIGHTS in marks or m.select_models(marks))):
        return save_model(machine, call.get_argument("filename", 1), marks)
    if last in ("save_pretrained", "save_pretrained_merged", "save_model", "save_merged"):
        return _save_pretrained(machine, call, marks)
    if last in (
        "merge_and_unload",
        "get_peft_model",
        "prepare",
        "compile",
        "wrap",
        "deepcopy",
        "unwrap_model",
    ):
        return _keep_wrapped_model(call, marks)
    if last in ("parameters", "named_parameters", "state_dict") and m.select_models(marks):
        return make_value(LibraryObject("tensors"), m.select_models(marks) | {m.WEIGHTS})
    if last == "from_config" and call.receiver is None:
        return make_value(LibraryObject("model"), frozenset({machine.trace.load_weights(())}))
    if last == "generate" and (call.receiver is not None):
        return _generate_samples(machine, call, marks)
    if last in DECODING and (marks & m.OWN or call.receiver is not None):
        if m.TOKENS in marks:
            return AbstractValue((marks - {m.TOKENS}) | {machine.record_mark(m.SAID)})
        return AbstractValue(marks)
    reads = call.receiver is not None and (
        last in ENCODING or READER.search(name) or _is_named(call.receiver, "tokenizer")
    )
    if reads or READER.search(name):
        kept = marks
        if m.SAID in kept:
            kept = (kept - {m.SAID}) | {m.TOKENS}
        return AbstractValue(kept)
    if name.endswith(("completions.create", "messages.create", "responses.create", "generate_content")):
        return _ask_api(machine, call, marks)
    if last in SAYING and call.receiver is not None and m.select_models(collect_marks(call.receiver)):
        return mark_sampled(machine, marks, m.SAID)
    if POLICY.search(name) and call.receiver is not None and not call.receiver.things:
        return _mark_forward(marks)
    return None


def call_model_object(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    """Interpret a call of a model, tokenizer or engine object."""
    marks = collect_marks(call.receiver).union(*map(collect_marks, call.all))
    receiver = call.receiver or NOTHING
    if _is_named(receiver, "tokenizer"):
        return AbstractValue((marks - {m.SAID}) | {m.TOKENS}) if m.SAID in marks else AbstractValue(marks)
    if _is_named(receiver, "engine"):
        return mark_sampled(machine, marks, m.SAID)
    if _is_named(receiver, "critic"):
        return AbstractValue(marks | {m.CRITIC} | ({m.JUDGED} if marks & m.OWN else m.NONE))
    if _is_named(receiver, "model") or m.select_models(receiver.marks):
        return _mark_forward(marks)
    return None


def _mark_forward(marks: Marks) -> AbstractValue:
    return AbstractValue((marks - {m.JUDGED, m.WEIGHTED, m.WEIGHTS}) | {m.FORWARD})


def load_model(machine: AbstractInterpreter, path: AbstractValue | None) -> AbstractValue:
    """Load a model or an adapter from a path."""
    text = path.text if path is not None and path.text is not None else HOLE
    return make_value(LibraryObject("model"), frozenset({machine.trace.load_weights([text])}))


def save_model(machine: AbstractInterpreter, path: AbstractValue | None, marks: Marks) -> AbstractValue:
    stage = None
    text = path.text if path is not None else None
    if text and text.rpartition("/")[2].count(".") and HOLE not in text.rpartition("/")[2]:
        text = text.rpartition("/")[0] or "."  # a file in the model's folder
    if m.BLENDED in marks:
        made = [machine.trace.models[mark] for mark in m.select_models(marks) if mark in machine.trace.models]
        if not any(each.launch == machine.trace.launch for one in made for each in one.stages):
            places = (machine.place, *(machine.first[m.BLENDED],)) if m.BLENDED in machine.first else ()
            stage = DetectedStage("other", 0.8, places or (machine.place,))
    machine.trace.save_weights(text, m.select_models(marks), stage)
    return make_constant(None)


def _load_pretrained(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    name = call.name.removesuffix(".from_pretrained")
    path = (
        call.get_argument("pretrained_model_name_or_path", 0) or call.get_argument("model_name", 0) or NOTHING
    )
    if READERS.search(name):
        return make_value(LibraryObject("tokenizer"))
    if CRITICS.search(name):
        return make_value(LibraryObject("critic"), frozenset({m.CRITIC}))
    if "Config" in name:
        return make_value(LibraryObject("config"))
    if name.endswith("PeftModel"):
        base = call.get_argument("model", 0) or NOTHING
        adapter = load_model(machine, call.get_argument("model_id", 1))
        return AbstractValue(adapter.marks | m.select_models(collect_marks(base)), things=adapter.things)
    model = load_model(machine, path)
    if "Fast" in name.rpartition(".")[2]:
        return make_list([model, make_value(LibraryObject("tokenizer"))])
    return model


def _load_engine(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    path = call.get_argument("model", 1 if call.last == "pipeline" else 0) or call.get_argument("model_path")
    if path is not None and m.select_models(collect_marks(path)):
        return make_value(LibraryObject("engine"), m.select_models(collect_marks(path)))
    return make_value(LibraryObject("engine"), load_model(machine, path).marks)


def _load_tensors(machine: AbstractInterpreter, path: AbstractValue | None) -> AbstractValue:
    text = path.text if path is not None else None
    if text and "." in text.rpartition("/")[2]:
        text = text.rpartition("/")[0]
    return AbstractValue(
        frozenset({machine.trace.load_weights([text or HOLE]), m.WEIGHTS}), things=(LibraryObject("tensors"),)
    )


def _save_pretrained(machine: AbstractInterpreter, call: LibraryCall, marks: Marks) -> AbstractValue:
    if call.receiver is not None and _is_named(call.receiver, "tokenizer"):
        return make_constant(None)
    if READER.search(call.name.rpartition(".")[0]):
        return make_constant(None)
    path = call.get_argument("save_directory", 0) or call.get_argument("output_dir", 0)
    if call.last == "save_model":
        path = path or find_trainer_folder(call.receiver)
        marks |= collect_marks(find_trainer_model(call.receiver))
    return save_model(machine, path, marks)


def find_trainer_model(receiver: AbstractValue | None) -> AbstractValue:
    found = [
        one.attributes["model"]
        for one in (receiver or NOTHING).things
        if isinstance(one, LibraryObject | InstanceValue) and "model" in one.attributes
    ]
    return join_values(found)


def find_trainer_folder(receiver: AbstractValue | None) -> AbstractValue | None:
    """Return the `output_dir` of a trainer's configuration."""
    for one in (receiver or NOTHING).things:
        if isinstance(one, LibraryObject | InstanceValue):
            for given in [one.keywords.get("args"), one.keywords.get("config"), *one.positional[1:2]]:
                for each in (given or NOTHING).things:
                    if isinstance(each, LibraryObject) and (found := each.get_argument("output_dir", 0)):
                        return found
                    if isinstance(each, InstanceValue) and "output_dir" in each.attributes:
                        return each.attributes["output_dir"]
    return None


def _keep_wrapped_model(call: LibraryCall, marks: Marks) -> AbstractValue | None:
    """Return the same model, wrapped."""
    if call.last == "prepare":
        return make_list(call.positional) if len(call.positional) > 1 else (call.positional or [NOTHING])[0]
    models = m.select_models(marks)
    if not models:
        return call.positional[0] if call.positional else call.receiver
    given = next(
        (value for value in (call.receiver, *call.positional) if value and m.select_models(value.marks)),
        NOTHING,
    )
    kept = [one for one in given.things if isinstance(one, LibraryObject | InstanceValue)]
    return AbstractValue(models, things=tuple(kept) or (LibraryObject("model"),))


def _generate_samples(machine: AbstractInterpreter, call: LibraryCall, marks: Marks) -> AbstractValue:
    as_text = call.receiver is not None and _is_named(call.receiver, "engine")
    found = mark_sampled(machine, marks, m.SAID if as_text else m.TOKENS)
    return make_open_list(found) if as_text else found


def _ask_api(machine: AbstractInterpreter, call: LibraryCall, marks: Marks) -> AbstractValue:
    """Sample from a model behind an API: a local one, or an external teacher."""
    near = any("localhost" in text or "127.0.0.1" in text for text in _collect_texts(call.receiver))
    value = mark_sampled(machine, marks, m.SAID)
    judged = marks & {m.SAID}
    return value if near or judged else value.with_marks(m.TEACHER)


def _collect_texts(value: AbstractValue | None, depth: int = 6) -> list[str]:
    """Return the text constants that a value was constructed with."""
    found: list[str] = []
    for one in (value or NOTHING).things if depth else ():
        if isinstance(one, LibraryObject):
            given = [*one.positional, *one.keywords.values()]
            found += [each.text for each in given if each.text]
        receiver = getattr(one, "receiver", None)
        if receiver is not None:
            found += _collect_texts(receiver, depth - 1)
    return found


def _is_named(value: AbstractValue, name: str) -> bool:
    return any(isinstance(one, LibraryObject) and one.name == name for one in value.things)
