"""Checks: a trained base model passes; everything else is refused, all at once, with what to do about it."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from agent2rl.core.errors import Refusal, UserError
from agent2rl.grading.checks import BaseModel, base_model, check
from agent2rl.grading.freeze import FreezeLimits, freeze, manifest_of
from agent2rl.grading.weights import weights_sha256

Layers = dict[str, npt.NDArray[Any]]
HIDDEN, ROWS = 8, 40
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
ODD_TEMPLATE = "{{ some_setting_of_the_base_alone }}"


def abacus(directory: Path) -> Path:
    directory.mkdir(parents=True)
    write(
        directory,
        "config.json",
        {"architectures": ["AbacusForWordProblems"], "model_type": "abacus", "features": 6},
    )
    save_file({"head.weight": zeros(4, 6), "head.bias": zeros(4)}, directory / "model.safetensors")
    return directory


def llama(directory: Path) -> Path:
    directory.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "vocab_size": ROWS,
        "tie_word_embeddings": True,
        "max_position_embeddings": 128,
        "rope_scaling": {"factor": 2.0},
        "text_config": {"head_dim": 4},
    }
    write(directory, "config.json", config)
    write(directory, "tokenizer.json", {"model": {"type": "BPE", "vocab": {"auto_map": 0}, "merges": []}})
    write(directory, "tokenizer_config.json", {"model_max_length": 10**30, "chat_template": ODD_TEMPLATE})
    layers: Layers = {
        "model.embed_tokens.weight": zeros(ROWS, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": zeros(HIDDEN, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": zeros(16, HIDDEN),
        "model.norm.weight": zeros(HIDDEN),
    }
    save_file(layers, directory / "model.safetensors")
    return directory


def zeros(*shape: int) -> npt.NDArray[Any]:
    return np.zeros(shape, dtype=np.float32)


def write(directory: Path, name: str, value: object) -> None:
    (directory / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    return base_model(llama(tmp_path / "base"))


@pytest.fixture
def model(tmp_path: Path, base: BaseModel) -> Path:
    """A submission: the base model with other numbers."""
    shutil.copytree(base.directory, tmp_path / "model")
    retrain(tmp_path / "model", lambda layers: {name: layer + 1 for name, layer in layers.items()})
    return tmp_path / "model"


def retrain(directory: Path, change: Callable[[Layers], Layers]) -> None:
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path)


def configure(directory: Path, **changes: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    write(
        directory,
        "config.json",
        {key: value for key, value in {**config, **changes}.items() if value != "gone"},
    )


def refusal(directory: Path, base: BaseModel) -> str:
    with pytest.raises(Refusal) as caught:
        check(directory, base)
    assert caught.value.mend
    text = str(caught.value)
    text.encode()
    return text


def test_a_trained_model_passes(model: Path, base: BaseModel) -> None:
    check(model, base)


def test_the_base_model_itself_passes(base: BaseModel) -> None:
    check(base.directory, base)


def test_a_base_model_without_a_tokenizer_takes_submissions_without_one(tmp_path: Path) -> None:
    check(abacus(tmp_path / "model"), base_model(abacus(tmp_path / "base")))


def test_a_base_model_is_described_by_its_content(base: BaseModel) -> None:
    assert base.parameters == ROWS * HIDDEN + HIDDEN * HIDDEN + 16 * HIDDEN + HIDDEN
    assert base.bytes == sum(file.stat().st_size for file in base.directory.iterdir())
    assert base.weights_sha256 == weights_sha256(base.directory)
    assert base.manifest == manifest_of(base.directory)
    assert base.config["hidden_size"] == HIDDEN


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_broken_base_model_is_the_users_fault(tmp_path: Path, broken: str) -> None:
    directory = llama(tmp_path / "base")
    (directory / broken).write_text("{")
    with pytest.raises(UserError, match="cannot be used"):
        base_model(directory)


def test_a_base_model_that_is_not_there_is_the_users_fault(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        base_model(tmp_path / "none")


# Files


def test_files_that_come_with_models_are_accepted(model: Path, base: BaseModel) -> None:
    for name in (
        "README.md",
        "LICENSE",
        "LICENSE.txt",
        "notes.md",
        "vocab.txt",
        "merges.txt",
        ".gitattributes",
    ):
        (model / name).write_text("text")
    for name in ("generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"):
        (model / name).write_text("{}")
    (model / "trainer_state.json").write_text('{"loss": NaN}')
    (model / "tokenizer.model").write_bytes(b"\x00\xff")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    write(model, "chat_template.json", {"chat_template": TEMPLATE})
    check(model, base)


def test_pickles_are_refused_all_at_once_with_the_recipe(model: Path, base: BaseModel) -> None:
    names = [
        "model.ckpt",
        "model.pkl",
        "optimizer.pt",
        "pytorch_model.bin",
        "rng_state.pth",
        "training_args.bin",
    ]
    for name in names:
        (model / name).write_bytes(b"")
    text = refusal(model, base)
    assert "model.save_pretrained(path, safe_serialization=True)" in text
    assert f"rm -- {' '.join(names)}" in text


def test_what_a_trainer_leaves_behind_only_has_to_be_removed(model: Path, base: BaseModel) -> None:
    for name in ("optimizer.pt", "training_args.bin", "scheduler.pt"):
        (model / name).write_bytes(b"")
    text = refusal(model, base)
    assert "rm -- optimizer.pt scheduler.pt training_args.bin" in text
    assert "save_pretrained" not in text


@pytest.mark.parametrize(
    "name", ["modeling_llama.py", "LICENSE.py", "kernel.so", "kernel.so.1", "x.pyc", "setup.sh"]
)
def test_code_is_refused(model: Path, base: BaseModel, name: str) -> None:
    (model / name).write_text("")
    assert f"No custom code is ever run: {name}. rm -- {name}" in refusal(model, base)


def test_other_files_are_refused_with_a_line_that_removes_them(model: Path, base: BaseModel) -> None:
    for name in ("model.gguf", "a b; echo", "CONFIG.JSON"):
        (model / name).write_text("")
    assert "rm -- CONFIG.JSON 'a b; echo' model.gguf" in refusal(model, base)


def test_sub_directories_are_refused_with_the_checkpoint_hint(model: Path, base: BaseModel) -> None:
    (model / "checkpoint-100").mkdir()
    (model / "config.d").mkdir()
    text = refusal(model, base)
    assert "rm -r -- checkpoint-100 config.d" in text
    assert "checkpoint directory itself" in text


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_is_refused_with_the_merge_recipe_alone(
    tmp_path: Path, base: BaseModel, name: str
) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / name).write_text("")
    text = refusal(tmp_path / "adapter", base)
    assert "PeftModel.from_pretrained" in text
    assert "merge_and_unload()" in text
    assert "config.json." not in text


def test_every_fault_is_named_in_one_refusal(model: Path, base: BaseModel) -> None:
    (model / "train.py").write_text("")
    (model / "optimizer.pt").write_text("")
    (model / "notes.doc").write_text("")
    (model / "checkpoint-1").mkdir()
    configure(model, model_type="other")
    write(model, "tokenizer.json", "[]")
    write(model, "chat_template.jinja", "{{ x }}")
    (model / "merges.txt").write_bytes(b"\xff")
    text = refusal(model, base)
    for part in ("train.py", "optimizer.pt", "notes.doc", "checkpoint-1", "model_type", "tokenizer.json"):
        assert part in text
    assert "chat template" in text
    assert "merges.txt is not UTF-8" in text


# Configuration


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["Qwen2ForCausalLM"]},
            "architectures is ['Qwen2ForCausalLM'], not ['LlamaForCausalLM']",
        ),
        ({"architectures": "gone"}, "architectures is None"),
        ({"model_type": 7}, "model_type is 7, not 'llama'"),
        ({"hidden_size": 16}, "hidden_size is 16, not 8"),
        ({"hidden_size": "8"}, "hidden_size is '8', not 8"),
        ({"hidden_size": 8.0}, "hidden_size is 8.0, not 8"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, not 1"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, not 1"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"text_config": {"head_dim": 5}}, "text_config.head_dim is 5, not 4"),
        ({"vocab_size": ROWS - 1}, "vocab_size is 39; 40 to 1064 are accepted"),
        ({"vocab_size": ROWS + 1025}, "vocab_size is 1065"),
        ({"vocab_size": "40"}, "vocab_size is None"),
        ({"auto_map": {"AutoConfig": "code.Config"}}, "auto_map"),
        ({"rope_scaling": [{"inner": {"auto_map": 1}}]}, "auto_map"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
    ids=str,
)
def test_a_configuration_of_another_model_is_refused(
    model: Path, base: BaseModel, changes: dict[str, object], reason: str
) -> None:
    configure(model, **changes)
    assert reason in refusal(model, base)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_position_embeddings": 4096},
        {"rope_scaling": None},
        {"rope_scaling": "gone"},
        {"use_cache": False},
        {"head_dim": 4},
        {"quantization_config": None},
        {"num_beams": 4},
    ],
    ids=str,
)
def test_a_configuration_may_differ_in_what_is_no_size(
    model: Path, base: BaseModel, changes: dict[str, object]
) -> None:
    configure(model, **changes)
    check(model, base)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not the JSON"),
        (b"[]", "not an object"),
        (b"{", "not the JSON"),
        (b"{} {}", "Extra data"),
        (b"\xff{}", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not the JSON"),
        (b'{"a": "\\ud800"}', "not UTF-8"),
        (b'{"a": 1, "a": 1}', "'a' is there more than once"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "out of range"),
        (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", "deep"),
        (b'{"a": ' + b'{"a":' * 200_000, "deep"),
        (b'{"a": "' + b"x" * 2**20 + b'"}', "the limit is 1,048,576"),
    ],
    ids=lambda value: str(value[:20]),
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "special_tokens_map.json"])
def test_json_that_is_not_plain_json_is_refused(
    model: Path, base: BaseModel, name: str, text: bytes, reason: str
) -> None:
    (model / name).write_bytes(text)
    found = refusal(model, base)
    assert name in found
    assert reason in found


def test_json_of_very_many_values_is_refused_before_it_fills_the_memory(model: Path, base: BaseModel) -> None:
    (model / "vocab.json").write_bytes(b'{"a":[' + b"[]," * 4_000_000 + b"[]]}")
    assert "more than 4,000,000 values" in refusal(model, base)


def test_a_missing_configuration_is_refused(model: Path, base: BaseModel) -> None:
    (model / "config.json").unlink()
    assert "There is no config.json" in refusal(model, base)


# Weights


def test_missing_tensors_are_named(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {name: layer for name, layer in layers.items() if "norm" not in name})
    assert "missing: 'model.norm.weight'" in refusal(model, base)


def test_wrapped_names_are_refused(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {f"module.{name}": layer for name, layer in layers.items()})
    text = refusal(model, base)
    assert "not in the base model: 'module.model.embed_tokens.weight'" in text
    assert "Unwrap the model" in text


def test_another_shape_is_refused(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {**layers, "model.norm.weight": zeros(2, 4)})
    assert "model.norm.weight [2, 4], not [8]" in refusal(model, base)


def test_a_bigger_model_is_refused_by_its_size(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {**layers, "model.layers.1.mlp.up_proj.weight": zeros(16, HIDDEN)})
    assert f"has {base.parameters + 128:,} parameters; the base model has {base.parameters:,}" in refusal(
        model, base
    )


def test_weights_in_another_float_are_accepted_and_integers_are_not(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {name: layer.astype(np.float16) for name, layer in layers.items()})
    check(model, base)
    retrain(model, lambda layers: {name: layer.astype(np.int8) for name, layer in layers.items()})
    assert "not floating-point numbers: 'model.embed_tokens.weight I8'" in refusal(model, base)


def grow(layers: Layers, rows: int) -> Layers:
    return {**layers, "model.embed_tokens.weight": zeros(rows, HIDDEN)}


def test_the_vocabulary_may_grow_in_configuration_and_weights_together(model: Path, base: BaseModel) -> None:
    configure(model, vocab_size=ROWS + 1024)
    retrain(model, lambda layers: grow(layers, ROWS + 1024))
    check(model, base)


def test_rows_beyond_the_configured_vocabulary_are_refused(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: grow(layers, ROWS + 1))
    assert "model.embed_tokens.weight [41, 8], not [40, 8]" in refusal(model, base)


def test_a_head_that_copies_tied_embeddings_is_accepted(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {**layers, "lm_head.weight": layers["model.embed_tokens.weight"]})
    check(model, base)


def test_a_head_of_its_own_on_a_tied_model_is_refused(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {**layers, "lm_head.weight": zeros(ROWS, HIDDEN)})
    assert "parameters" in refusal(model, base)


def test_a_head_that_the_base_stores_may_be_left_out_only_where_it_is_tied(
    tmp_path: Path, model: Path
) -> None:
    directory = llama(tmp_path / "stored")
    retrain(directory, lambda layers: {**layers, "lm_head.weight": zeros(ROWS, HIDDEN)})
    stored = base_model(directory)
    check(model, stored)
    configure(model, tie_word_embeddings=False)
    assert "missing: 'lm_head.weight'" in refusal(model, stored)


def test_weights_that_no_index_names_are_refused(model: Path, base: BaseModel) -> None:
    shutil.copy(model / "model.safetensors", model / "consolidated.safetensors")
    assert "rm -- consolidated.safetensors" in refusal(model, base)


def test_sharded_weights_pass(model: Path, base: BaseModel) -> None:
    layers = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    placed = {}
    for number, (name, layer) in enumerate(layers.items()):
        placed[name] = f"model-{number}.safetensors"
        save_file({name: layer}, model / placed[name])
    write(model, "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": placed})
    check(model, base)


def test_unsound_weights_are_refused(model: Path, base: BaseModel) -> None:
    (model / "model.safetensors").write_bytes(b"")
    assert "not a sound safetensors file" in refusal(model, base)


# Tokenizer and templates


def test_a_missing_tokenizer_is_refused_where_the_base_has_one(model: Path, base: BaseModel) -> None:
    (model / "tokenizer.json").unlink()
    assert "There is no tokenizer" in refusal(model, base)


@pytest.mark.parametrize("value", [{}, {"model": []}, {"model": None}])
def test_a_tokenizer_without_a_model_is_refused(model: Path, base: BaseModel, value: object) -> None:
    write(model, "tokenizer.json", value)
    assert "tokenizer.json has no model" in refusal(model, base)


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "generation_config.json", "special_tokens_map.json"]
)
def test_an_auto_map_is_refused_wherever_it_hides(model: Path, base: BaseModel, name: str) -> None:
    write(model, name, {"a": [{"b": {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}}]})
    assert f"{name} has an auto_map" in refusal(model, base)


BAD_TEMPLATE = "{{ ''.__class__ }}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"chat_template": BAD_TEMPLATE}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": BAD_TEMPLATE}]}),
        ("chat_template.json", {"chat_template": BAD_TEMPLATE}),
        ("chat_template.jinja", BAD_TEMPLATE),
    ],
)
def test_a_chat_template_is_checked_wherever_it_lies(
    model: Path, base: BaseModel, name: str, content: object
) -> None:
    write(model, name, content)
    assert "'__class__' is not accepted" in refusal(model, base)


@pytest.mark.parametrize(
    "template", [7, {"default": TEMPLATE}, [TEMPLATE], [{"name": "a"}], [{"template": 1}], True]
)
def test_a_chat_template_of_another_kind_is_refused(model: Path, base: BaseModel, template: object) -> None:
    write(model, "tokenizer_config.json", {"chat_template": template})
    assert "neither text nor a list" in refusal(model, base)


def test_named_templates_pass(model: Path, base: BaseModel) -> None:
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tools", "template": TEMPLATE}]
    write(model, "tokenizer_config.json", {"chat_template": named})
    check(model, base)


def test_the_base_models_own_template_passes_whatever_it_holds(model: Path, base: BaseModel) -> None:
    write(model, "chat_template.jinja", ODD_TEMPLATE)
    check(model, base)
    write(model, "chat_template.jinja", ODD_TEMPLATE + " ")
    assert "some_setting_of_the_base_alone" in refusal(model, base)


# Whatever comes

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CONFIG_KEYS = st.sampled_from(
    [
        "architectures",
        "model_type",
        "hidden_size",
        "vocab_size",
        "text_config",
        "chat_template",
        "model",
        "weight_map",
    ]
)
FILES = st.sampled_from(
    [
        *("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.json", "vocab.json"),
        *("model.safetensors", "model.safetensors.index.json", "chat_template.jinja", "merges.txt"),
        *("adapter_config.json", "x/y"),
    ]
)
SOUND = save({"model.norm.weight": zeros(HIDDEN)})
CONTENTS = st.one_of(
    st.binary(max_size=60),
    JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(CONFIG_KEYS, JSON_VALUES, max_size=4).map(lambda value: json.dumps(value).encode()),
    st.integers(0, len(SOUND)).map(lambda end: SOUND[:end]),
    st.tuples(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=2)).map(
        lambda change: SOUND[: change[0]] + change[1] + SOUND[change[0] + len(change[1]) :]
    ),
    st.just("link"),
)
CANARY = b"held-out answers"


@pytest.fixture(scope="module")
def shared_base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return base_model(llama(tmp_path_factory.mktemp("shared") / "base"))


@settings(max_examples=200, deadline=None)
@given(
    files=st.dictionaries(FILES, CONTENTS, max_size=4),
    config=st.dictionaries(CONFIG_KEYS, JSON_VALUES, max_size=2),
)
def test_whatever_is_submitted_is_accepted_or_refused(
    shared_base: BaseModel, files: dict[str, bytes | str], config: dict[str, object]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        model, secret = Path(name, "workspace", "model"), Path(name, "secret")
        secret.write_bytes(CANARY)
        shutil.copytree(shared_base.directory, model)
        write(model, "config.json", {**shared_base.config, **config})
        for file, content in files.items():
            (model / file).parent.mkdir(exist_ok=True)
            (model / file).unlink(missing_ok=True)
            if isinstance(content, bytes):
                (model / file).write_bytes(content)
            else:
                (model / file).symlink_to(secret)
        try:
            freeze(model.parent, PurePosixPath("model"), Path(name, "frozen"), FreezeLimits())
            check(Path(name, "frozen"), shared_base)
        except Refusal as error:
            str(error).encode()
        if Path(name, "frozen").exists():
            assert not any(CANARY in file.read_bytes() for file in Path(name, "frozen").glob("*.*"))
