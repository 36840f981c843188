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

from agent2rl.core.engine import ChatFormat
from agent2rl.core.errors import Refusal, UserError
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.checks import ResavedBase, check_submission
from agent2rl.grading.freeze import FreezeLimits, compute_manifest, freeze_submission
from agent2rl.grading.model_builder import ModelParts
from agent2rl.grading.untrusted_model_files import weights_sha256

Layers = dict[str, npt.NDArray[Any]]
HIDDEN, ROWS = 8, 40
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
ODD_TEMPLATE = "{{ some_setting_of_the_base_alone }}"
MARKER = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
FORMAT = {
    "begin": "",
    "system": {"prefix": "<|system|>", "suffix": "\n"},
    "user": {"prefix": "<|user|>", "suffix": "\n"},
    "assistant": {"prefix": "<|assistant|>", "suffix": "\n"},
    "generation_prompt": "<|assistant|>",
}


def check(directory: Path, base: BaseModel, resaved: ResavedBase | None = None) -> ModelParts:
    return check_submission(directory, base, lambda: resaved or ResavedBase())


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
    vocabulary = {f"t{number}": number for number in range(ROWS - 2)}
    tokenizer = {
        "normalizer": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "added_tokens": [{"id": ROWS - 2, "content": "</s>", **MARKER}],
    }
    write(directory, "tokenizer.json", tokenizer)
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
    return read_base_model(llama(tmp_path / "base"))


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
    assert caught.value.hint
    text = str(caught.value)
    text.encode()
    return text


def test_a_trained_model_passes(model: Path, base: BaseModel) -> None:
    check(model, base)


def test_the_base_model_itself_passes(base: BaseModel) -> None:
    check(base.directory, base)


def test_a_base_model_without_a_tokenizer_takes_submissions_without_one(tmp_path: Path) -> None:
    check(abacus(tmp_path / "model"), read_base_model(abacus(tmp_path / "base")))


def test_a_base_model_is_described_by_its_content(base: BaseModel) -> None:
    assert base.parameters == ROWS * HIDDEN + HIDDEN * HIDDEN + 16 * HIDDEN + HIDDEN
    assert base.bytes == sum(file.stat().st_size for file in base.directory.iterdir())
    assert base.weights_sha256 == weights_sha256(base.directory)
    assert base.manifest == compute_manifest(base.directory)
    assert base.config["hidden_size"] == HIDDEN


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_broken_base_model_is_the_users_fault(tmp_path: Path, broken: str) -> None:
    directory = llama(tmp_path / "base")
    (directory / broken).write_text("{")
    with pytest.raises(UserError, match="cannot be used"):
        read_base_model(directory)


def test_a_base_model_that_is_not_there_is_the_users_fault(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        read_base_model(tmp_path / "none")


def test_every_fault_is_named_in_one_refusal(model: Path, base: BaseModel) -> None:
    configure(model, model_type="other")
    write(model, "tokenizer.json", "[]")
    write(model, "chat_template.jinja", "{{ x }}")
    retrain(model, lambda layers: {name: layer for name, layer in layers.items() if "norm" not in name})
    text = refusal(model, base)
    for part in ("model_type", "tokenizer.json", "chat template", "model.norm.weight"):
        assert part in text


# Configuration


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["Qwen2ForCausalLM"]},
            "architectures is ['Qwen2ForCausalLM'], not ['LlamaForCausalLM']",
        ),
        ({"model_type": 7}, "model_type is 7, not 'llama'"),
        ({"hidden_size": 16}, "hidden_size is 16, not 8"),
        ({"hidden_size": "8"}, "hidden_size is '8', not 8"),
        ({"hidden_size": 8.0}, "hidden_size is 8.0, not 8"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, not 1"),
        ({"max_position_embeddings": 4096}, "max_position_embeddings is 4096, not 128"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling.factor is 4.0, not 2.0"),
        ({"rope_scaling": None}, "rope_scaling is None"),
        ({"text_config": {"head_dim": 5}}, "text_config.head_dim is 5, not 4"),
        ({"vocab_size": ROWS - 1}, "vocab_size is 39; 40 to 296 are accepted"),
        ({"vocab_size": ROWS + 257}, "vocab_size is 297"),
        ({"vocab_size": "40"}, "vocab_size is '40'"),
        ({"auto_map": {"AutoConfig": "code.Config"}}, "'auto_map' is not a key"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config' is not a key"),
        ({"transformers_weights": "README.md"}, "'transformers_weights' is not a key"),
        ({"head_dim": 4}, "'head_dim' is not a key"),
        ({"eos_token_id": ROWS}, "eos_token_id is 40, not a few tokens"),
        ({"eos_token_id": [1, True]}, "eos_token_id is [1, True]"),
        ({"eos_token_id": list(range(17))}, "not a few tokens"),
        ({"tie_word_embeddings": 0}, "tie_word_embeddings is 0, not true or false"),
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
        {"use_cache": False},
        {"dtype": "bfloat16"},
        {"torch_dtype": "float32"},
        {"transformers_version": "9.9"},
        {"pad_token_id": 3},
        {"hidden_size": "gone", "rope_scaling": "gone", "architectures": "gone"},
    ],
    ids=str,
)
def test_a_configuration_may_differ_in_bookkeeping_which_takes_no_effect(
    model: Path, base: BaseModel, changes: dict[str, object]
) -> None:
    configure(model, **changes)
    assert not check(model, base).differs_beside_weights


def test_keys_that_the_library_adds_when_it_saves_the_base_model_again_are_accepted(
    model: Path, base: BaseModel
) -> None:
    configure(model, rope_parameters={"rope_theta": 10000.0}, rope_scaling=None)
    saved = {**base.config, "rope_parameters": {"rope_theta": 10000.0}, "rope_scaling": None}
    assert not check(model, base, ResavedBase(config=saved)).differs_beside_weights
    configure(model, rope_parameters={"rope_theta": 20000.0})
    with pytest.raises(Refusal, match=r"rope_parameters.rope_theta is 20000.0, not 10000.0"):
        check(model, base, ResavedBase(config=saved))


def test_special_tokens_may_end_a_reply_and_ordinary_ones_may_not(model: Path, base: BaseModel) -> None:
    configure(model, eos_token_id=[38])
    parts = check(model, base)
    assert parts.config.apply(base.config)["eos_token_id"] == [38]
    assert parts.differs_beside_weights
    configure(model, eos_token_id=[5, 38, 39])
    assert "names [5, 39], which are not special tokens" in refusal(model, base)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not an object"),
        (b"{", "not valid JSON"),
        (b"{} {}", "Extra data"),
        (b"\xff{}", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a": "\\ud800"}', "not UTF-8"),
        (b'{"a": 1, "a": 1}', "'a' occurs more than once"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "out of range"),
        (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", "deep"),
        (b'{"a": ' + b'{"a":' * 200_000, "deep"),
        (b'{"a": "' + b"x" * 2**26 + b'"}', "the limit is "),
    ],
    ids=lambda value: str(value[:20]),
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_json_that_is_not_plain_json_is_refused(
    model: Path, base: BaseModel, name: str, text: bytes, reason: str
) -> None:
    (model / name).write_bytes(text)
    found = refusal(model, base)
    assert name in found
    assert reason in found


def test_json_of_very_many_values_is_refused_before_it_fills_the_memory(model: Path, base: BaseModel) -> None:
    (model / "tokenizer.json").write_bytes(b'{"a":[' + b"[]," * 4_000_000 + b"[]]}")
    assert "more than 4,000,000 values" in refusal(model, base)


def test_a_submission_of_weights_alone_is_whole(model: Path, base: BaseModel) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    assert not check(model, base).differs_beside_weights
    retrain(model, lambda layers: grow(layers, ROWS + 3))
    assert check(model, base).config.vocabulary == ROWS + 3


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
    configure(model, vocab_size=ROWS + 256)
    retrain(model, lambda layers: grow(layers, ROWS + 256))
    check(model, base)


def test_rows_beyond_the_configured_vocabulary_are_refused(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: grow(layers, ROWS + 1))
    assert "model.embed_tokens.weight [41, 8], not [40, 8]" in refusal(model, base)


def test_a_head_that_copies_tied_embeddings_is_accepted(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {**layers, "lm_head.weight": layers["model.embed_tokens.weight"]})
    check(model, base)


def test_a_tied_model_stays_tied_whatever_its_configuration_says(model: Path, base: BaseModel) -> None:
    configure(model, tie_word_embeddings=False)
    retrain(model, lambda layers: {**layers, "lm_head.weight": layers["model.embed_tokens.weight"]})
    assert not check(model, base).differs_beside_weights


def test_a_head_of_its_own_on_a_tied_model_is_refused(model: Path, base: BaseModel) -> None:
    retrain(model, lambda layers: {**layers, "lm_head.weight": zeros(ROWS, HIDDEN)})
    assert "parameters" in refusal(model, base)


def test_a_head_that_the_base_stores_may_be_left_out_only_where_it_is_tied(
    tmp_path: Path, model: Path
) -> None:
    directory = llama(tmp_path / "stored")
    retrain(directory, lambda layers: {**layers, "lm_head.weight": zeros(ROWS, HIDDEN)})
    stored = read_base_model(directory)
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
    assert "not a valid safetensors file" in refusal(model, base)


# Tokenizer and chat format


def tokenize(directory: Path, **changes: object) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    write(directory, "tokenizer.json", {**tokenizer, **changes})


def add_tokens(directory: Path, *tokens: dict[str, object]) -> None:
    known = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    tokenize(directory, added_tokens=[*known, *tokens])


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Replace", "pattern": {"String": "Ben"}, "content": "#### 5"}),
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("post_processor", {"type": "TemplateProcessing"}),
        ("decoder", {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}),
        ("model", {"type": "BPE", "vocab": {"t1": 0}, "merges": []}),
        ("model", None),
    ],
)
def test_every_part_of_the_tokenizer_is_the_base_models(
    model: Path, base: BaseModel, part: str, value: object
) -> None:
    tokenize(model, **{part: value})
    assert f"the {part} is not the base model's" in refusal(model, base)


def test_truncation_and_padding_of_training_take_no_effect(model: Path, base: BaseModel) -> None:
    tokenize(model, truncation={"max_length": 8}, padding={"pad_id": 1}, version="2.0")
    assert not check(model, base).differs_beside_weights


def test_a_tokenizer_in_the_form_that_the_library_writes_is_accepted(model: Path, base: BaseModel) -> None:
    tokenize(model, model={"type": "BPE", "vocab": {}, "merges": [], "fuse_unk": False})
    saved = json.loads((model / "tokenizer.json").read_text())
    assert not check(model, base, ResavedBase(tokenizer=saved)).differs_beside_weights
    assert "the model is not" in refusal(model, base)


def test_role_markers_may_be_added_as_special_tokens(model: Path, base: BaseModel) -> None:
    configure(model, vocab_size=ROWS + 8)
    retrain(model, lambda layers: grow(layers, ROWS + 8))
    add_tokens(
        model, {"id": 39, "content": "<|im_start|>", **MARKER}, {"id": 40, "content": "[PAD]", **MARKER}
    )
    parts = check(model, base)
    assert [(token.id, token.content) for token in parts.added_tokens] == [
        (39, "<|im_start|>"),
        (40, "[PAD]"),
    ]
    assert parts.differs_beside_weights


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ({"content": "Natalia sold"}, "adds the token 'Natalia sold'"),
        ({"content": "Natalia"}, "an added token is a marker"),
        ({"content": "<a b>"}, "an added token is a marker"),
        ({"content": "<><>"}, "an added token is a marker"),
        ({"content": "<" + "a" * 31 + ">"}, "an added token is a marker"),
        ({"content": "<ä>"}, "an added token is a marker"),
        ({"content": "</s>"}, "'</s>' twice"),
        ({"id": 38}, "changes the token 38"),
        ({"id": 3}, "changes the token 3"),
        ({"id": 40}, "must start at 39"),
        ({"id": -1}, "must start at 39"),
        ({"special": False}, "special"),
        ({"normalized": True}, "normalized"),
        ({"lstrip": True, "rstrip": True}, "lstrip, rstrip"),
        ({"id": "39"}, "added_tokens is not a list of tokens"),
    ],
    ids=str,
)
def test_other_added_tokens_are_refused(
    model: Path, base: BaseModel, token: dict[str, object], reason: str
) -> None:
    add_tokens(model, {"id": 39, "content": "<x>", **MARKER, **token})
    assert reason in refusal(model, base)


def test_only_so_many_tokens_may_be_added_and_each_needs_its_row(model: Path, base: BaseModel) -> None:
    configure(model, vocab_size=ROWS + 100)
    retrain(model, lambda layers: grow(layers, ROWS + 100))
    tokens = [{"id": 39 + number, "content": f"<t{number}>", **MARKER} for number in range(65)]
    add_tokens(model, *tokens)
    assert "adds 65 tokens; at most 64" in refusal(model, base)
    shutil.copy(base.directory / "tokenizer.json", model)
    add_tokens(model, *tokens[:64])
    check(model, base)
    shutil.copy(base.directory / "config.json", model)
    shutil.copy(base.directory / "model.safetensors", model)
    assert "token id 102 is outside the model's vocabulary of 40" in refusal(model, base)


def test_other_files_of_the_vocabulary_are_the_base_models_where_it_has_them(
    tmp_path: Path, model: Path, base: BaseModel
) -> None:
    (model / "merges.txt").write_text("a b")
    check(model, base)
    directory = llama(tmp_path / "with_merges")
    (directory / "merges.txt").write_text("a c")
    assert "merges.txt is not the base model's" in refusal(model, read_base_model(directory))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"chat_template": TEMPLATE}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": TEMPLATE}]}),
        ("chat_template.json", {"chat_template": TEMPLATE}),
        ("chat_template.jinja", TEMPLATE),
    ],
)
def test_a_template_of_the_agents_own_is_refused_wherever_it_lies(
    model: Path, base: BaseModel, name: str, content: object
) -> None:
    write(model, name, content)
    text = refusal(model, base)
    assert "Submitted templates are never run" in text
    assert "chat_format.json" in text


@pytest.mark.parametrize(
    "template", [7, {"default": TEMPLATE}, [TEMPLATE], [{"name": "a"}], [{"template": 1}], True]
)
def test_a_chat_template_of_another_kind_is_refused(model: Path, base: BaseModel, template: object) -> None:
    write(model, "tokenizer_config.json", {"chat_template": template})
    assert "neither text nor a list" in refusal(model, base)


def test_the_base_models_own_template_passes_whatever_it_holds(model: Path, base: BaseModel) -> None:
    write(model, "chat_template.jinja", ODD_TEMPLATE)
    assert not check(model, base).differs_beside_weights


def test_a_declared_chat_format_takes_the_place_of_any_template(model: Path, base: BaseModel) -> None:
    write(model, "chat_template.jinja", TEMPLATE)
    write(model, "chat_format.json", FORMAT)
    parts = check(model, base)
    assert parts.chat_format == ChatFormat.model_validate(FORMAT)
    assert parts.differs_beside_weights


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"user": None}, "user"),
        ({"user": "{{ content }}"}, "user"),
        ({"tool": {"prefix": ""}}, "tool"),
        ({"generation_prompt": "a" * 201}, "at most 200 characters"),
        ({"user": {"prefix": 1}}, "user.prefix"),
    ],
    ids=str,
)
def test_a_chat_format_that_is_none_is_refused_with_an_example(
    model: Path, base: BaseModel, changes: dict[str, object], reason: str
) -> None:
    write(model, "chat_format.json", {**FORMAT, **changes})
    text = refusal(model, base)
    assert reason in text
    assert '"generation_prompt": "<|assistant|>"' in text


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
        *("chat_format.json", "training_args.bin", "x/y"),
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
    return read_base_model(llama(tmp_path_factory.mktemp("shared") / "base"))


@settings(max_examples=100, deadline=None)
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
            freeze_submission(model.parent, PurePosixPath("model"), Path(name, "frozen"), FreezeLimits())
            check(Path(name, "frozen"), shared_base)
        except Refusal as error:
            str(error).encode()
        if Path(name, "frozen").exists():
            assert not any(CANARY in file.read_bytes() for file in Path(name, "frozen").glob("*.*"))
