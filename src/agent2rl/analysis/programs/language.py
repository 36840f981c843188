"""Language models: loaded, asked, passed through, saved."""

import re

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.arrays import sampled
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.trace import Stage
from agent2rl.analysis.programs.values import (
    HOLE,
    NOTHING,
    Foreign,
    Instance,
    Value,
    constant,
    deep,
    join,
    several,
    some,
    thing,
)

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


def known(machine: Core, call: Call) -> Value | None:
    name, last = call.name, call.last
    marks = deep(call.receiver).union(*map(deep, call.all))
    if last == "from_pretrained":
        return _loaded(machine, call)
    if name in ENGINES or name.endswith(".LLM"):
        return _engine(machine, call)
    if name in ("mlx_lm.load", "mlx_lm.utils.load"):
        return several([load(machine, call.argument("path_or_hf_repo", 0)), thing(Foreign("tokenizer"))])
    if name.startswith("mlx_lm") and last in ("save", "save_model"):
        return save(machine, call.argument("dst_path", 0), marks)
    if name in TENSORS:
        return _tensors(machine, call.argument("filename", 0))
    if name in SAVERS or (name == "torch.save" and (m.WEIGHTS in marks or m.models(marks))):
        position = 1
        return save(machine, call.argument("filename", position), marks)
    if last in ("save_pretrained", "save_pretrained_merged", "save_model", "save_merged"):
        return _saved(machine, call, marks)
    if last in (
        "merge_and_unload",
        "get_peft_model",
        "prepare",
        "compile",
        "wrap",
        "deepcopy",
        "unwrap_model",
    ):
        return _same(call, marks)
    if last in ("parameters", "named_parameters", "state_dict") and m.models(marks):
        return thing(Foreign("tensors"), m.models(marks) | {m.WEIGHTS})
    if last == "from_config" and call.receiver is None:
        return thing(Foreign("model"), frozenset({machine.trace.load(())}))
    if last == "generate" and (call.receiver is not None):
        return _generated(machine, call, marks)
    if last in DECODING and (marks & m.OWN or call.receiver is not None):
        if m.TOKENS in marks:
            return Value((marks - {m.TOKENS}) | {machine.made(m.SAID)})
        return Value(marks)
    reads = call.receiver is not None and (
        last in ENCODING or READER.search(name) or _is(call.receiver, "tokenizer")
    )
    if reads or READER.search(name):
        kept = marks
        if m.SAID in kept:
            kept = (kept - {m.SAID}) | {m.TOKENS}
        return Value(kept)
    if name.endswith(("completions.create", "messages.create", "responses.create", "generate_content")):
        return _asked(machine, call, marks)
    if last in SAYING and call.receiver is not None and m.models(deep(call.receiver)):
        return sampled(machine, marks, m.SAID)
    if POLICY.search(name) and call.receiver is not None and not call.receiver.things:
        return forward(machine, marks)
    return None


def called(machine: Core, call: Call) -> Value | None:
    """A model, a tokenizer or an engine is called itself."""
    marks = deep(call.receiver).union(*map(deep, call.all))
    receiver = call.receiver or NOTHING
    if _is(receiver, "tokenizer"):
        return Value((marks - {m.SAID}) | {m.TOKENS}) if m.SAID in marks else Value(marks)
    if _is(receiver, "engine"):
        return sampled(machine, marks, m.SAID)
    if _is(receiver, "critic"):
        return Value(marks | {m.CRITIC} | ({m.JUDGED} if marks & m.OWN else m.NONE))
    if _is(receiver, "model") or m.models(receiver.marks):
        return forward(machine, marks)
    return None


def forward(machine: Core, marks: Marks) -> Value:  # noqa: ARG001
    kept = marks - {m.JUDGED, m.WEIGHTED, m.WEIGHTS}
    return Value(kept | {m.FORWARD})


def load(machine: Core, path: Value | None) -> Value:
    """A model from a path, which may be of an adapter."""
    text = path.text if path is not None and path.text is not None else HOLE
    return thing(Foreign("model"), frozenset({machine.trace.load([text])}))


def save(machine: Core, path: Value | None, marks: Marks) -> Value:
    stage = None
    text = path.text if path is not None else None
    if text and text.rpartition("/")[2].count(".") and HOLE not in text.rpartition("/")[2]:
        text = text.rpartition("/")[0] or "."  # a file in the folder of the model
    if m.BLENDED in marks:
        made = [machine.trace.models[mark] for mark in m.models(marks) if mark in machine.trace.models]
        if not any(each.launch == machine.trace.launch for one in made for each in one.stages):
            places = (machine.place, *(machine.first[m.BLENDED],)) if m.BLENDED in machine.first else ()
            stage = Stage("other", 0.8, places or (machine.place,))
    machine.trace.save(text, m.models(marks), stage)
    return constant(None)


def _loaded(machine: Core, call: Call) -> Value:
    name = call.name.removesuffix(".from_pretrained")
    path = call.argument("pretrained_model_name_or_path", 0) or call.argument("model_name", 0) or NOTHING
    if READERS.search(name):
        return thing(Foreign("tokenizer"))
    if CRITICS.search(name):
        return thing(Foreign("critic"), frozenset({m.CRITIC}))
    if "Config" in name:
        return thing(Foreign("config"))
    if name.endswith("PeftModel"):
        base = call.argument("model", 0) or NOTHING
        adapter = load(machine, call.argument("model_id", 1))
        return Value(adapter.marks | m.models(deep(base)), things=adapter.things)
    model = load(machine, path)
    if "Fast" in name.rpartition(".")[2]:
        return several([model, thing(Foreign("tokenizer"))])
    return model


def _engine(machine: Core, call: Call) -> Value:
    path = call.argument("model", 1 if call.last == "pipeline" else 0) or call.argument("model_path")
    if path is not None and m.models(deep(path)):
        return thing(Foreign("engine"), m.models(deep(path)))
    return thing(Foreign("engine"), load(machine, path).marks)


def _tensors(machine: Core, path: Value | None) -> Value:
    text = path.text if path is not None else None
    if text and "." in text.rpartition("/")[2]:
        text = text.rpartition("/")[0]
    return Value(frozenset({machine.trace.load([text or HOLE]), m.WEIGHTS}), things=(Foreign("tensors"),))


def _saved(machine: Core, call: Call, marks: Marks) -> Value:
    if call.receiver is not None and _is(call.receiver, "tokenizer"):
        return constant(None)
    if READER.search(call.name.rpartition(".")[0]):
        return constant(None)
    path = call.argument("save_directory", 0) or call.argument("output_dir", 0)
    if call.last == "save_model":
        path = path or trainer_folder(call.receiver)
        marks |= deep(trainer_model(call.receiver))
    return save(machine, path, marks)


def trainer_model(receiver: Value | None) -> Value:
    found = [
        one.attributes["model"]
        for one in (receiver or NOTHING).things
        if isinstance(one, Foreign | Instance) and "model" in one.attributes
    ]
    return join(found)


def trainer_folder(receiver: Value | None) -> Value | None:
    """The `output_dir` of a trainer's configuration."""
    for one in (receiver or NOTHING).things:
        if isinstance(one, Foreign | Instance):
            for given in [one.keywords.get("args"), one.keywords.get("config"), *one.positional[1:2]]:
                for each in (given or NOTHING).things:
                    if isinstance(each, Foreign) and (found := each.argument("output_dir", 0)):
                        return found
                    if isinstance(each, Instance) and "output_dir" in each.attributes:
                        return each.attributes["output_dir"]
    return None


def _same(call: Call, marks: Marks) -> Value | None:
    """Still the same model, wrapped."""
    if call.last == "prepare":
        return several(call.positional) if len(call.positional) > 1 else (call.positional or [NOTHING])[0]
    models = m.models(marks)
    if not models:
        return call.positional[0] if call.positional else call.receiver
    given = next(
        (value for value in (call.receiver, *call.positional) if value and m.models(value.marks)), NOTHING
    )
    kept = [one for one in given.things if isinstance(one, Foreign | Instance)]
    return Value(models, things=tuple(kept) or (Foreign("model"),))


def _generated(machine: Core, call: Call, marks: Marks) -> Value:
    as_text = call.receiver is not None and _is(call.receiver, "engine")
    found = sampled(machine, marks, m.SAID if as_text else m.TOKENS)
    return some(found) if as_text else found


def _asked(machine: Core, call: Call, marks: Marks) -> Value:
    """A model behind an interface: of this machine, or somebody else's."""
    near = any("localhost" in text or "127.0.0.1" in text for text in _texts(call.receiver))
    value = sampled(machine, marks, m.SAID)
    judged = marks & {m.SAID}
    return value if near or judged else value.marked(m.TEACHER)


def _texts(value: Value | None, depth: int = 6) -> list[str]:
    """The constants that something was made with."""
    found: list[str] = []
    for one in (value or NOTHING).things if depth else ():
        if isinstance(one, Foreign):
            given = [*one.positional, *one.keywords.values()]
            found += [each.text for each in given if each.text]
        receiver = getattr(one, "receiver", None)
        if receiver is not None:
            found += _texts(receiver, depth - 1)
    return found


def _is(value: Value, name: str) -> bool:
    return any(isinstance(one, Foreign) and one.name == name for one in value.things)
