"""A LoRA adapter of the base model is merged as peft merges it; what cannot be merged is refused with the
reason."""

import json
import os
import re
import shutil
import tracemalloc
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from agent2rl.core.errors import Refusal
from agent2rl.grading import lora_adapter
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.checks import ResavedBase, check_submission
from agent2rl.grading.lineage import trace_lineage
from agent2rl.grading.lora_adapter import is_adapter, merge_adapter, read_adapter
from agent2rl.grading.untrusted_model_files import read_tensors

Layers = dict[str, npt.NDArray[Any]]
PREFIX = "base_model.model."
QUERY, OUTPUT, EMBEDDINGS = "model.layers.0.q_proj", "model.layers.0.o_proj", "model.embed_tokens"
ROWS, WIDTH, RANK, ALPHA = 48, 32, 4, 16
SETTINGS = {
    "alpha_pattern": {},
    "base_model_name_or_path": "/etc/passwd",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "lora_alpha": ALPHA,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": RANK,
    "rank_pattern": {},
    "target_modules": ["q_proj", "o_proj"],
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_rslora": False,
}


def draw(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    directory = tmp_path / "base"
    directory.mkdir()
    config = {"model_type": "llama", "vocab_size": ROWS, "hidden_size": WIDTH, "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(config))
    layers: Layers = {
        f"{EMBEDDINGS}.weight": draw(ROWS, WIDTH),
        f"{QUERY}.weight": draw(WIDTH, WIDTH),
        f"{QUERY}.bias": draw(WIDTH),
        f"{OUTPUT}.weight": draw(WIDTH, 2 * WIDTH),
        "model.norm.weight": draw(WIDTH),
    }
    save_file(layers, directory / "model.safetensors")
    return read_base_model(directory)


def lora(module: str, outputs: int, inputs: int, rank: int = RANK) -> Layers:
    return {
        f"{PREFIX}{module}.lora_A.weight": draw(rank, inputs, seed=1),
        f"{PREFIX}{module}.lora_B.weight": draw(outputs, rank, seed=2),
    }


USUAL = {**lora(QUERY, WIDTH, WIDTH), **lora(OUTPUT, WIDTH, 2 * WIDTH)}


def write_adapter(directory: Path, layers: Layers = USUAL, **settings: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**SETTINGS, **settings}))
    save_file(layers, directory / "adapter_model.safetensors")
    return directory


def merge(adapter: Path, base: BaseModel) -> Layers:
    """The merged tensors, from the file that a grading opens."""
    assert is_adapter(adapter)
    check_submission(adapter, base, ResavedBase)
    target = adapter.parent / "merged"
    shutil.rmtree(target, ignore_errors=True)
    merged = merge_adapter(read_adapter(adapter, base), target)
    assert merged == read_tensors(target)
    return load_file(target / "model.safetensors")


def refusal(adapter: Path, base: BaseModel) -> str:
    with pytest.raises(Refusal) as caught:
        check_submission(adapter, base, ResavedBase)
    assert caught.value.hint
    return str(caught.value)


# What is merged


def test_each_adapted_matrix_gets_the_scaled_product_and_all_else_stays(
    tmp_path: Path, base: BaseModel
) -> None:
    merged, before = (
        merge(write_adapter(tmp_path / "adapter"), base),
        load_file(base.directory / "model.safetensors"),
    )
    assert merged.keys() == before.keys()
    for module in (QUERY, OUTPUT):
        down, up = (USUAL[f"{PREFIX}{module}.lora_{part}.weight"] for part in "AB")
        np.testing.assert_allclose(
            merged[f"{module}.weight"],
            before[f"{module}.weight"] + ALPHA / RANK * up @ down,
            rtol=1e-5,
            atol=1e-5,
        )
    for name in (f"{EMBEDDINGS}.weight", f"{QUERY}.bias", "model.norm.weight"):
        assert (merged[name] == before[name]).all()


def test_ranks_and_alphas_of_single_modules_count_by_the_end_of_their_names(
    tmp_path: Path, base: BaseModel
) -> None:
    layers = {**lora(QUERY, WIDTH, WIDTH, rank=2), **lora(OUTPUT, WIDTH, 2 * WIDTH)}
    adapter = write_adapter(
        tmp_path / "adapter", layers, rank_pattern={"q_proj": 2}, alpha_pattern={"layers.0.q_proj": 6}
    )
    change = (
        merge(adapter, base)[f"{QUERY}.weight"]
        - load_file(base.directory / "model.safetensors")[f"{QUERY}.weight"]
    )
    down, up = (layers[f"{PREFIX}{QUERY}.lora_{part}.weight"] for part in "AB")
    np.testing.assert_allclose(change, 6 / 2 * up @ down, rtol=1e-4, atol=1e-4)


def test_whole_tensors_beside_the_matrices_replace_the_bases(tmp_path: Path, base: BaseModel) -> None:
    layers = {
        **USUAL,
        f"{PREFIX}{QUERY}.base_layer.bias": draw(WIDTH, seed=3),
        f"{PREFIX}model.norm.modules_to_save.weight": draw(WIDTH, seed=4),
        f"{PREFIX}{EMBEDDINGS}.weight": draw(ROWS, WIDTH, seed=5),
    }
    merged = merge(
        write_adapter(tmp_path / "adapter", layers, bias="lora_only", modules_to_save=["norm"]), base
    )
    assert (merged[f"{QUERY}.bias"] == draw(WIDTH, seed=3)).all()
    assert (merged["model.norm.weight"] == draw(WIDTH, seed=4)).all()
    assert (merged[f"{EMBEDDINGS}.weight"] == draw(ROWS, WIDTH, seed=5)).all()


def test_embeddings_may_grow_for_added_tokens(tmp_path: Path, base: BaseModel) -> None:
    layers = {**USUAL, f"{PREFIX}{EMBEDDINGS}.weight": draw(ROWS + 8, WIDTH)}
    adapter = write_adapter(tmp_path / "adapter", layers)
    assert check_submission(adapter, base, ResavedBase).config.vocabulary == ROWS + 8
    assert merge(adapter, base)[f"{EMBEDDINGS}.weight"].shape == (ROWS + 8, WIDTH)


def test_a_merged_model_has_as_many_files_as_the_base(tmp_path: Path, base: BaseModel) -> None:
    layers = load_file(base.directory / "model.safetensors")
    (base.directory / "model.safetensors").unlink()
    weight_map = {name: f"part{number % 2}.safetensors" for number, name in enumerate(layers)}
    for file in set(weight_map.values()):
        save_file({name: layers[name] for name in layers if weight_map[name] == file}, base.directory / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (base.directory / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = read_base_model(base.directory)
    merged = merge_adapter(read_adapter(write_adapter(tmp_path / "adapter"), sharded), tmp_path / "merged")
    assert merged == read_tensors(tmp_path / "merged")
    assert len({tensor.file for tensor in merged.values()}) == 2


def test_an_adapter_is_derived_from_the_base(tmp_path: Path, base: BaseModel) -> None:
    small = {name: 0.02 * layer for name, layer in USUAL.items()}
    merge(write_adapter(tmp_path / "adapter", small), base)
    assert trace_lineage(tmp_path / "merged", base).verdict == "derived"


def test_the_files_of_torchtune_have_fewer_keys_and_are_merged_all_the_same(
    tmp_path: Path, base: BaseModel
) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    few = {"r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "o_proj"], "peft_type": "LORA"}
    (adapter / "adapter_config.json").write_text(json.dumps(few))
    assert merge(adapter, base)


BIASED = {**lora(QUERY, WIDTH, WIDTH), f"{PREFIX}{QUERY}.lora_B.bias": draw(WIDTH, seed=3)}


HADAMARD = {
    f"{PREFIX}{QUERY}.hada_{name}": draw(*shape)
    for name, shape in {
        "w1_a": (WIDTH, RANK),
        "w1_b": (RANK, WIDTH),
        "w2_a": (WIDTH, RANK),
        "w2_b": (RANK, WIDTH),
    }.items()
}


def write_other_kind(directory: Path, kind: str, layers: Layers, **settings: object) -> Path:
    adapter = write_adapter(directory, layers)
    config = {"peft_type": kind, "target_modules": ["q_proj"], "modules_to_save": None, **settings}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    return adapter


def test_the_bias_of_a_lora_is_added_scaled(tmp_path: Path, base: BaseModel) -> None:
    merged = merge(write_adapter(tmp_path / "adapter", BIASED, lora_bias=True), base)
    expected = draw(WIDTH) + ALPHA / RANK * draw(WIDTH, seed=3)
    np.testing.assert_allclose(merged[f"{QUERY}.bias"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "layers", "settings"),
    [
        ("LOHA", HADAMARD, {"r": RANK, "alpha": 8}),
        ("IA3", {f"{PREFIX}{QUERY}.ia3_l": draw(WIDTH, 1)}, {"feedforward_modules": []}),
        ("IA3", {f"{PREFIX}{QUERY}.ia3_l": draw(1, WIDTH)}, {"feedforward_modules": ["q_proj"]}),
    ],
)
def test_relatives_of_lora_are_merged_if_they_fit_and_refused_by_name_otherwise(
    tmp_path: Path, base: BaseModel, kind: str, layers: Layers, settings: dict[str, Any]
) -> None:
    assert merge(write_other_kind(tmp_path / "adapter", kind, layers, **settings), base)
    longer = {name: np.concatenate([layer, layer]) for name, layer in layers.items()}
    text = refusal(write_other_kind(tmp_path / "longer", kind, longer, **settings), base)
    assert "incomplete or of a wrong shape" in text
    infinite = {name: np.full_like(layer, np.inf) for name, layer in layers.items()}
    assert "NaN or infinity" in refusal(
        write_other_kind(tmp_path / "infinite", kind, infinite, **settings), base
    )
    beyond = {**layers, f"{PREFIX}{QUERY}.lora_A.weight": draw(RANK, WIDTH)}
    assert "incomplete" in refusal(write_other_kind(tmp_path / "beyond", kind, beyond, **settings), base)


# What is refused


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"peft_type": "PROMPT_TUNING"},
            "trains inputs of the model and not its weights, so it cannot be merged",
        ),
        ({"peft_type": "LOKR"}, "peft_type is 'LOKR'. The grader merges LORA"),
        (
            {"peft_type": "IA3"},
            "uses 'init_lora_weights', 'lora_alpha', 'r'",
        ),
        ({"peft_type": "LOHA"}, "uses 'init_lora_weights', 'lora_alpha', which the grader does not merge"),
        ({"peft_type": None}, "peft_type is None"),
        ({"peft_type": ["LORA"]}, "peft_type is ['LORA']"),
        ({"r": 0}, "r is 0, not a rank from 1 to 1024"),
        ({"r": True}, "r is True, not a rank"),
        ({"r": 10**9}, "r is 1000000000, not a rank"),
        ({"lora_alpha": "16"}, "lora_alpha is '16', not a number"),
        ({"lora_alpha": 0}, "lora_alpha is 0, not a number"),
        ({"use_dora": "yes"}, "use_dora is 'yes', not true or false"),
        ({"use_dora": True}, "incomplete or of a wrong shape"),
        ({"r": 8}, "incomplete or of a wrong shape"),
        ({"init_lora_weights": "pissa_niter_4"}, "also changes the base model's own weights"),
        ({"init_lora_weights": {"a": 1}}, "also changes the base model's own weights"),
        ({"rank_pattern": {"(a+)+$": 8}}, "regular expressions are not run"),
        ({"alpha_pattern": [1]}, "regular expressions are not run"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern is 0, not a rank"),
        ({"target_modules": ["v_proj"]}, "not of a module in target_modules"),
        ({"target_modules": [1]}, "target_modules is [1], not a list of names"),
        ({"trainable_token_indices": [1]}, "uses 'trainable_token_indices'"),
        ({"layer_replication": [[0, 1]]}, "uses 'layer_replication'"),
        ({"lora_bias": True}, "incomplete or of a wrong shape"),
        ({"lora_bias": True, "use_dora": True}, "lora_bias with use_dora"),
        ({"a_later_option": 3}, "uses 'a_later_option'"),
    ],
)
def test_settings_that_cannot_be_merged_are_refused_with_the_reason(
    tmp_path: Path, base: BaseModel, settings: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(write_adapter(tmp_path / "adapter", **settings), base)


def without(part: str) -> Layers:
    return {name: layer for name, layer in USUAL.items() if not name.endswith(part)}


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (
            lora("model.layers.7.q_proj", WIDTH, WIDTH),
            "not of the base model: 'model.layers.7.q_proj.weight'",
        ),
        (lora("lm_head", ROWS, WIDTH), "not of the base model: 'lm_head.weight'"),
        ({f"{PREFIX}{QUERY}.lora_A.default.weight": draw(RANK, WIDTH)}, "lora_A.default.weight"),
        (lora(QUERY, WIDTH, WIDTH + 1), "incomplete or of a wrong shape"),
        (lora(QUERY, WIDTH, WIDTH, rank=5), "lora_A.weight [5, 32], lora_B.weight [32, 5]"),
        (lora("model.norm", WIDTH, WIDTH), "incomplete or of a wrong shape"),
        (without("lora_B.weight"), "incomplete or of a wrong shape"),
        ({**USUAL, f"{PREFIX}{QUERY}.lora_magnitude_vector": draw(WIDTH)}, "incomplete or of a wrong shape"),
        ({**USUAL, f"{PREFIX}{QUERY}.lora_B.bias": draw(WIDTH)}, "incomplete or of a wrong shape"),
        ({**USUAL, f"{PREFIX}{OUTPUT}.lora_B.bias": draw(WIDTH)}, f"not of the base model: '{OUTPUT}.bias'"),
        ({f"{PREFIX}{QUERY}.ia3_l": draw(WIDTH, 1)}, "incomplete or of a wrong shape"),
        ({**USUAL, f"{PREFIX}{QUERY}.bias": draw(WIDTH + 1)}, "of another shape"),
        ({**USUAL, f"{PREFIX}{QUERY}.bias": np.ones(WIDTH, np.int64)}, "not floating-point numbers"),
        ({name: layer * np.float32("nan") for name, layer in USUAL.items()}, "NaN or infinity"),
        ({**USUAL, f"{PREFIX}{EMBEDDINGS}.weight": draw(ROWS + 1000, WIDTH)}, "vocab_size is 1048"),
    ],
)
def test_tensors_that_do_not_fit_the_base_are_refused_by_name(
    tmp_path: Path, base: BaseModel, layers: Layers, reason: str
) -> None:
    settings = {"target_modules": "all-linear"}
    assert reason in refusal(write_adapter(tmp_path / "adapter", layers, **settings), base)


def test_a_fault_of_an_adapter_is_told_once(tmp_path: Path, base: BaseModel) -> None:
    text = refusal(write_adapter(tmp_path / "adapter", peft_type="OFT"), base)
    assert len(re.findall("peft_type", text)) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"r": 1, "r": 2}', b'{"r": NaN}', b"\xff"])
def test_a_malformed_configuration_is_refused(tmp_path: Path, base: BaseModel, content: bytes) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    (adapter / "adapter_config.json").write_bytes(content)
    assert "adapter_config.json is not valid JSON" in refusal(adapter, base)


def test_a_malformed_tensor_file_is_refused(tmp_path: Path, base: BaseModel) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    (adapter / "adapter_model.safetensors").write_bytes(b"\x80\x04pickle")
    assert "adapter_model.safetensors is not a valid safetensors file" in refusal(adapter, base)


def test_other_files_beside_an_adapter_are_checked_as_beside_a_model(tmp_path: Path, base: BaseModel) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    (adapter / "chat_template.jinja").write_text("{{ 1 + 1 }}")
    assert "Submitted templates are never run" in refusal(adapter, base)


def test_the_base_model_that_an_adapter_names_is_never_opened(tmp_path: Path, base: BaseModel) -> None:
    os.mkfifo(tmp_path / "trap")  # whoever opens it waits forever
    assert merge(write_adapter(tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "trap")), base)


def test_hostile_numbers_of_names_cost_no_time(tmp_path: Path, base: BaseModel) -> None:
    names = [f"m{number}" for number in range(60_000)]
    dots = {f"{'a.' * 500_000}{number}.lora_A.weight": np.ones(1, np.float32) for number in range(4)}
    adapter = write_adapter(tmp_path / "adapter", {**USUAL, **dots}, target_modules=names)
    assert "not of the base model" in refusal(adapter, base)
    assert "not of a module in target_modules" in refusal(
        write_adapter(tmp_path / "adapter", target_modules=names), base
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((f"{PREFIX}{QUERY}.lora_A.weight", f"{QUERY}.lora_A.weight"), f"{QUERY}.lora_A.weight"),
        ((f"{PREFIX}{QUERY}.bias", f"{PREFIX}{QUERY}.base_layer.bias"), f"{QUERY}.bias"),
        (("model.norm.weight", "model.norm.modules_to_save.weight"), "model.norm.weight"),
    ],
)
def test_two_tensors_for_one_place_are_refused(
    tmp_path: Path, base: BaseModel, names: tuple[str, str], said: str
) -> None:
    """Otherwise the order in the file decides which of them is graded."""
    shape = (RANK, WIDTH) if "lora_A" in said else (WIDTH,)
    layers = {**USUAL, **{name: draw(*shape, seed=seed) for seed, name in enumerate(names)}}
    text = refusal(write_adapter(tmp_path / "adapter", layers), base)
    assert "given twice" in text
    assert said in text


def test_values_beyond_the_range_of_the_merge_are_refused(tmp_path: Path, base: BaseModel) -> None:
    large = {name: np.full(layer.shape, 1e300) for name, layer in USUAL.items()}
    assert "NaN or infinity" in refusal(write_adapter(tmp_path / "adapter", large), base)


@pytest.mark.parametrize("cause", ["a scaling that is too large", "an output that is zero"])
def test_a_merge_that_makes_no_numbers_is_refused(tmp_path: Path, base: BaseModel, cause: str) -> None:
    layers: dict[str, Any] = {name: layer * 1e17 for name, layer in USUAL.items()}
    settings: dict[str, object] = {"lora_alpha": 1e6}
    if cause == "an output that is zero":
        layers = {**lora(QUERY, WIDTH, WIDTH), f"{PREFIX}{QUERY}.lora_magnitude_vector": draw(WIDTH)}
        layers[f"{PREFIX}{QUERY}.lora_B.weight"] *= 0
        layers[f"{PREFIX}{QUERY}.weight"] = np.zeros((WIDTH, WIDTH), np.float32)
        settings = {"use_dora": True}
    with pytest.raises(Refusal, match=f"NaN or infinity in .*{QUERY if 'zero' in cause else 'proj'}"):
        merge(write_adapter(tmp_path / "adapter", layers, **settings), base)


def test_a_tensor_of_any_size_is_refused_in_little_memory(tmp_path: Path, base: BaseModel) -> None:
    """A replaced vector as a matrix of one row, so that its lora_A may be as long as the file."""
    adapter, columns = write_adapter(tmp_path / "adapter", r=1, target_modules="all-linear"), 1 << 24
    shapes = {"model.norm.weight": [1, columns], "model.norm.lora_A.weight": [1, columns]}
    shapes["model.norm.lora_B.weight"] = [1, 1]
    header, end = dict[str, object](), 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (adapter / "adapter_model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    tracemalloc.start()
    try:
        assert "of another shape" in refusal(adapter, base) or "parameters" in refusal(adapter, base)
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_many_cores_do_not_multiply_the_memory_of_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter of the highest rank, whose factors are larger than the matrices."""
    modules, rank, outputs = [f"model.layers.{number}.q_proj" for number in range(8)], 1024, 1024
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    layers = {f"{module}.weight": draw(outputs, WIDTH) for module in modules}
    save_file(layers, tmp_path / "base" / "model.safetensors")
    factors: Layers = {}
    for module in modules:
        factors |= lora(module, outputs, WIDTH, rank)
    path = write_adapter(tmp_path / "adapter", factors, r=rank)
    adapter = read_adapter(path, read_base_model(tmp_path / "base"))
    size = max(update.factor_bytes for update in adapter.updates.values())
    monkeypatch.setattr(lora_adapter, "MERGE_BYTES", 2 * size)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    tracemalloc.start()
    try:
        merge_adapter(adapter, tmp_path / "merged")
        assert size < tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()


def test_the_room_for_a_merge_counts_replaced_tensors_in_their_own_precision(
    tmp_path: Path, base: BaseModel
) -> None:
    wide = {**USUAL, f"{PREFIX}{EMBEDDINGS}.weight": draw(ROWS, WIDTH).astype(np.float64)}
    adapter = read_adapter(write_adapter(tmp_path / "adapter", wide), base)
    merge_adapter(adapter, tmp_path / "merged")
    written = (tmp_path / "merged" / "model.safetensors").stat().st_size
    assert 0 <= written - adapter.merged_bytes < 4096
