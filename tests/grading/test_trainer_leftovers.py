"""What training programs leave beside a model: left out of the frozen copy, named, and never opened.

Only a model in pickle form is refused. Trainer, TRL and peft run here. Unsloth and torchtune do not, so lists
name what they write.
"""

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from agent2rl.core.errors import Refusal
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.checks import check_submission
from agent2rl.grading.freeze import FreezeLimits, FrozenSubmission, freeze_submission, select_files
from agent2rl.grading.model_builder import ModelParts
from tests.helpers.tiny_models import resave_model, write_tiny_llama

CHAT = [{"role": "user", "content": "Ada has 12 apples."}, {"role": "assistant", "content": "#### 7"}]
SETTINGS: dict[str, Any] = {
    "max_steps": 1,
    "per_device_train_batch_size": 2,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "save_steps": 1,
}
STATES = {"optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json", "training_args.bin"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def frozen(workspace: Path, name: str, model: Path) -> tuple[FrozenSubmission, ModelParts]:
    """The frozen copy of what lies in a workspace, and what the checks make of it."""
    target = workspace.parent / f"frozen-{name.replace('/', '-')}"
    copy = freeze_submission(workspace, PurePosixPath(name), target, FreezeLimits())
    return copy, check_submission(target, read_base_model(model), lambda: resave_model(model))


def names_of(copy: FrozenSubmission) -> set[str]:
    return {file.path for file in copy.manifest.files}


def test_a_trainers_output_and_its_checkpoints_are_models(tmp_path: Path, model: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    workspace = tmp_path / "workspace"
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 2
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(model),
        TrainingArguments(output_dir=str(workspace / "out"), **SETTINGS),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    trainer.save_model()
    for name, expected in (("out", {"training_args.bin", "checkpoint-1"}), ("out/checkpoint-1", STATES)):
        copy, _ = frozen(workspace, name, model)
        assert names_of(copy) == {"config.json", "model.safetensors"}
        assert set(copy.left_out) == expected


@pytest.mark.thorough
def test_an_adapter_that_trl_trained_is_taken_with_its_tokenizer_alone(tmp_path: Path, model: Path) -> None:
    peft = pytest.importorskip("peft")
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

    workspace = tmp_path / "workspace"
    trainer = SFTTrainer(
        model=str(model),
        args=SFTConfig(output_dir=str(workspace / "out"), **SETTINGS),
        train_dataset=Dataset.from_list([{"messages": CHAT}] * 2),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model()
    expected = {"README.md", "training_args.bin"}
    for name, left_out in (("out", expected | {"checkpoint-1"}), ("out/checkpoint-1", expected | STATES)):
        copy, parts = frozen(workspace, name, model)
        assert {"adapter_config.json", "adapter_model.safetensors"} < names_of(copy)
        assert set(copy.left_out) == left_out
        assert not parts.differs_beside_weights


TORCHTUNE_EPOCH = {
    *("adapter_config.json", "adapter_model.pt", "adapter_model.safetensors", "LICENSE", "README.md"),
    *("USE_POLICY.md", "original", "torchtune_config.yaml", "original_repo_id.json"),
}
UNSLOTH_MERGED = {".cache", ".gitattributes", "README.md", "unsloth_compiled_cache", "unsloth.Q8_0.gguf"}
ACCELERATE_STATE = {"optimizer.bin", "scheduler.bin", "sampler.bin", "random_states_0.pkl", "scaler.pt"}
DEEPSPEED = {"global_step1", "latest", "zero_to_fp32.py", "rng_state_0.pth", "trainer_state.json"}


@pytest.mark.parametrize("beside", [TORCHTUNE_EPOCH, UNSLOTH_MERGED, ACCELERATE_STATE, DEEPSPEED])
def test_files_beside_a_model_in_shards_are_left_out_and_named(
    tmp_path: Path, model: Path, beside: set[str]
) -> None:
    workspace = tmp_path / "workspace"
    out = workspace / "epoch_0"
    shutil.copytree(model, out)
    layers = load_file(out / "model.safetensors")
    (out / "model.safetensors").unlink()
    weight_map = {
        name: f"ft-model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(layers)
    }
    for shard in set(weight_map.values()):
        save_file({name: layers[name] for name in layers if weight_map[name] == shard}, out / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in beside:
        (out / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    copy, _ = frozen(workspace, "epoch_0", model)
    assert set(copy.left_out) == beside
    assert not names_of(copy) & beside


UNSLOTH_ADAPTER = {"README.md", "unsloth_compiled_cache", ".cache", "training_args.bin", "checkpoint-60"}
TORCHTUNE_ADAPTER = {"adapter_model.pt", "torchtune_config.yaml", "README.md"}


@pytest.mark.parametrize("beside", [UNSLOTH_ADAPTER, TORCHTUNE_ADAPTER])
def test_files_beside_an_adapter_are_left_out_and_named(beside: set[str]) -> None:
    adapter = {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    selected = select_files(adapter | beside | {"special_tokens_map.json", "added_tokens.json"})
    assert set(selected.taken) == adapter
    assert set(selected.left_out) == beside


def test_weights_of_another_kind_beside_an_adapter_are_left_out() -> None:
    names = {"adapter_config.json", "adapter_model.safetensors", "reward_head.safetensors"}
    assert select_files(names).left_out == ("reward_head.safetensors",)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ({"adapter_config.json", "adapter_model.bin"}, "adapter_model.safetensors"),
        ({"adapter_config.json"}, "adapter_model.safetensors"),
        ({"adapter_model.safetensors"}, "adapter_config.json"),
    ],
)
def test_an_adapter_in_pickle_form_or_without_a_part_is_refused(names: set[str], missing: str) -> None:
    with pytest.raises(Refusal, match=f"LoRA adapter, but there is no {missing}"):
        select_files(names)
