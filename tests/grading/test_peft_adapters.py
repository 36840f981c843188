"""Adapters that peft writes, merged by the grader and by peft: the same tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from agent2rl.core.errors import Refusal
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.checks import check_submission
from agent2rl.grading.freeze import select_files
from agent2rl.grading.lora_adapter import merge_adapter, read_adapter
from tests.helpers.tiny_models import make_tiny_tokenizer, resave_model, write_tiny_llama

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`"),
    # peft takes the biases of lora_bias for matrices that were not gathered.
    pytest.mark.filterwarnings("ignore:Adapter 'default'. 4 LoRA tensor"),
]

LINEAR = ["q_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {"target_modules": LINEAR},
    "rsLoRA": {"target_modules": LINEAR, "use_rslora": True},
    "DoRA": {"target_modules": LINEAR, "use_dora": True},
    "all linear layers": {"target_modules": "all-linear"},
    "a pattern of modules": {"target_modules": r".*layers\.1\..*_proj"},
    "ranks of their own": {
        "target_modules": LINEAR,
        "rank_pattern": {"q_proj": 3},
        "alpha_pattern": {"model.layers.1.mlp.down_proj": 5},
    },
    "embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
    "embeddings in a DoRA": {"target_modules": ["embed_tokens", "q_proj"], "use_dora": True},
    "the head": {"target_modules": ["lm_head"]},
    "a whole module": {"target_modules": LINEAR, "modules_to_save": ["lm_head"]},
    "another start": {"target_modules": LINEAR, "init_lora_weights": "gaussian"},
}


OTHER_KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "LoHa": (peft.LoHaConfig, {"target_modules": LINEAR, "r": 4, "alpha": 8}),
    "LoHa with ranks of their own": (
        peft.LoHaConfig,
        {"target_modules": LINEAR, "r": 4, "alpha": 8, "rank_pattern": {"q_proj": 2}},
    ),
    "IA3": (peft.IA3Config, {"target_modules": LINEAR, "feedforward_modules": ["down_proj"]}),
    "IA3 with a whole module": (
        peft.IA3Config,
        {"target_modules": ["v_proj"], "feedforward_modules": [], "modules_to_save": ["lm_head"]},
    ),
}


def train_adapter(model: Path, target: Path, seed: int = 0, **settings: Any) -> Path:
    """An adapter of the kind, with random values in place of trained ones, as peft saves it."""
    return train_any_adapter(model, target, peft.LoraConfig(r=4, lora_alpha=8, **settings), seed)


def train_any_adapter(model: Path, target: Path, config: Any, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config.task_type = "CAUSAL_LM"
    network = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    adapted = peft.get_peft_model(network, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad and "magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
            elif parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    adapted.save_pretrained(target)
    return target


def merge_with_peft(model: Path, adapter: Path, target: Path) -> dict[str, torch.Tensor]:
    network = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    merged = peft.PeftModel.from_pretrained(network, adapter).merge_and_unload()
    merged.save_pretrained(target)
    return load_file(target / "model.safetensors")


def merge_here(model: Path, adapter: Path, target: Path) -> dict[str, torch.Tensor]:
    base = read_base_model(model)
    names = {path.name for path in adapter.iterdir()}
    assert set(select_files(names).left_out) <= {"README.md"}
    check_submission(adapter, base, lambda: resave_model(model))
    merge_adapter(read_adapter(adapter, base), target)
    return load_file(target / "model.safetensors")


def require_same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], before: Path) -> None:
    untouched = load_file(before / "model.safetensors")
    assert mine.keys() == theirs.keys()
    changed = [name for name in mine if not torch.equal(mine[name], untouched[name])]
    assert changed
    for name in mine:
        assert mine[name].dtype == theirs[name].dtype
        if name in changed:
            torch.testing.assert_close(mine[name], theirs[name])
        else:
            assert torch.equal(mine[name], theirs[name])


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_merged_as_peft_merges_it(tmp_path: Path, kind: str) -> None:
    model = write_tiny_llama(tmp_path / "model")
    adapter = train_adapter(model, tmp_path / "adapter", **KINDS[kind])
    theirs = merge_with_peft(model, adapter, tmp_path / "theirs")
    require_same(merge_here(model, adapter, tmp_path / "mine"), theirs, model)


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_relatives_of_lora_are_merged_as_peft_merges_them(tmp_path: Path, kind: str) -> None:
    model = write_tiny_llama(tmp_path / "model")
    make_config, settings = OTHER_KINDS[kind]
    adapter = train_any_adapter(model, tmp_path / "adapter", make_config(**settings))
    theirs = merge_with_peft(model, adapter, tmp_path / "theirs")
    require_same(merge_here(model, adapter, tmp_path / "mine"), theirs, model)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["LoRA", "DoRA"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_base_of_16_bits_is_rounded_once_as_peft_rounds_it(
    tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    model = write_tiny_llama(tmp_path / "model")
    AutoModelForCausalLM.from_pretrained(model, dtype=dtype).save_pretrained(model)
    adapter = train_adapter(model, tmp_path / "adapter", **KINDS[kind])
    theirs = merge_with_peft(model, adapter, tmp_path / "theirs")
    mine = merge_here(model, adapter, tmp_path / "mine")
    require_same(mine, theirs, model)
    values = torch.cat([(mine[name] == theirs[name]).flatten() for name in mine])
    assert values.float().mean() > 0.999


@pytest.mark.parametrize("kind", ["LoRA", "DoRA", "LoRA with biases", "IA3", "IA3 of inputs"])
def test_matrices_that_are_stored_transposed_are_merged_with_their_biases(tmp_path: Path, kind: str) -> None:
    """As in GPT-2, whose square matrices do not tell which side is which."""
    tokenizer = make_tiny_tokenizer()
    shape = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=64)
    network = GPT2LMHeadModel(shape)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    network.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    settings: dict[str, Any] = {"fan_in_fan_out": True, "target_modules": ["c_proj"]}
    if kind.startswith("IA3"):
        settings["feedforward_modules"] = ["c_proj"] if "inputs" in kind else []
        config = peft.IA3Config(**settings)
    else:
        biases = {"lora_bias": True} if "biases" in kind else {"bias": "lora_only"}
        config = peft.LoraConfig(r=4, lora_alpha=8, use_dora=kind == "DoRA", **settings, **biases)
    adapter = train_any_adapter(tmp_path / "model", tmp_path / "adapter", config)
    theirs = merge_with_peft(tmp_path / "model", adapter, tmp_path / "theirs")
    require_same(merge_here(tmp_path / "model", adapter, tmp_path / "mine"), theirs, tmp_path / "model")


def test_a_start_that_changes_the_base_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    adapter = train_adapter(model, tmp_path / "adapter", target_modules=LINEAR, init_lora_weights="pissa")
    with pytest.raises(Refusal, match="path_initial_model_for_weight_conversion"):
        read_adapter(adapter, read_base_model(model))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "trains inputs"),
        (lambda: peft.LoKrConfig(task_type="CAUSAL_LM", target_modules=LINEAR), "peft_type is 'LOKR'"),
        (
            lambda: peft.LoraConfig(
                task_type="CAUSAL_LM", target_modules=LINEAR, trainable_token_indices=[1]
            ),
            "trainable_token_indices",
        ),
    ],
)
def test_other_kinds_of_peft_are_refused_with_the_reason(tmp_path: Path, config: Any, reason: str) -> None:
    model = write_tiny_llama(tmp_path / "model")
    network = AutoModelForCausalLM.from_pretrained(model)
    peft.get_peft_model(network, config()).save_pretrained(tmp_path / "adapter")
    with pytest.raises(Refusal, match=reason):
        read_adapter(tmp_path / "adapter", read_base_model(model))
