"""Interpret calls that load, save, wrap and sample language models."""

import re

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    InstanceValue,
    LibraryObject,
    collect_marks,
    join_values,
    make_constant,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.array_calls import mark_sampled
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, DetectedStage, LibraryCall
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.workspace_paths import HOLE

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
        encoded = marks
        if m.SAID in encoded:
            encoded = (encoded - {m.SAID}) | {m.TOKENS}
        return AbstractValue(encoded)
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
    models = [
        one.attributes["model"]
        for one in (receiver or NOTHING).things
        if isinstance(one, LibraryObject | InstanceValue) and "model" in one.attributes
    ]
    return join_values(models)


def find_trainer_folder(receiver: AbstractValue | None) -> AbstractValue | None:
    """Return the `output_dir` of a trainer's configuration."""
    for one in (receiver or NOTHING).things:
        if isinstance(one, LibraryObject | InstanceValue):
            for given in [one.keywords.get("args"), one.keywords.get("config"), *one.positional[1:2]]:
                for each in (given or NOTHING).things:
                    if isinstance(each, LibraryObject) and (folder := each.get_argument("output_dir", 0)):
                        return folder
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
    wrapped = [one for one in given.things if isinstance(one, LibraryObject | InstanceValue)]
    return AbstractValue(models, things=tuple(wrapped) or (LibraryObject("model"),))


def _generate_samples(machine: AbstractInterpreter, call: LibraryCall, marks: Marks) -> AbstractValue:
    as_text = call.receiver is not None and _is_named(call.receiver, "engine")
    sample = mark_sampled(machine, marks, m.SAID if as_text else m.TOKENS)
    return make_open_list(sample) if as_text else sample


def _ask_api(machine: AbstractInterpreter, call: LibraryCall, marks: Marks) -> AbstractValue:
    """Sample from a model behind an API: a local one, or an external teacher."""
    near = any("localhost" in text or "127.0.0.1" in text for text in _collect_texts(call.receiver))
    value = mark_sampled(machine, marks, m.SAID)
    judged = marks & {m.SAID}
    return value if near or judged else value.with_marks(m.TEACHER)


def _collect_texts(value: AbstractValue | None, depth: int = 6) -> list[str]:
    """Return the text constants that a value was constructed with."""
    texts: list[str] = []
    for one in (value or NOTHING).things if depth else ():
        if isinstance(one, LibraryObject):
            given = [*one.positional, *one.keywords.values()]
            texts += [each.text for each in given if each.text]
        receiver = getattr(one, "receiver", None)
        if receiver is not None:
            texts += _collect_texts(receiver, depth - 1)
    return texts


def _is_named(value: AbstractValue, name: str) -> bool:
    return any(isinstance(one, LibraryObject) and one.name == name for one in value.things)
