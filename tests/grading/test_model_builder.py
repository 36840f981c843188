"""The built model: the base model's files, checked tensors, and nothing else that the agent wrote."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from agent2rl.core.engine import USUAL_FORMATS, ChatFormat, ChatMessage, RoleFormat
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.checks import ResavedBase, check_submission
from agent2rl.grading.config_and_tokenizer import FLAGS
from agent2rl.grading.model_builder import ModelParts, ablate_training, build_model

Numbers = npt.NDArray[Any]
ROWS, SPARE = 12, 10
"""The vocabulary has two rows that no token uses, as many real ones have."""


def write_model(directory: Path, embeddings: Numbers, tokens: tuple[str, ...] = ()) -> Path:
    directory.mkdir()
    config = {"model_type": "llama", "vocab_size": len(embeddings), "rope_theta": 10000.0}
    added = [{"id": SPARE + number, "content": text, **FLAGS} for number, text in enumerate(tokens)]
    vocabulary = {f"t{number}": number for number in range(SPARE)}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": added}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    layers = {"model.embed_tokens.weight": embeddings, "model.norm.weight": np.ones(4, np.float32)}
    save_file(layers, directory / "model.safetensors")
    return directory


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    directory = write_model(tmp_path / "base", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    (directory / "generation_config.json").write_text("{}")
    (directory / "modeling.py").write_text("")
    (directory / "pytorch_model.bin").write_bytes(b"")
    return read_base_model(directory)


def submit(tmp_path: Path, base: BaseModel, embeddings: Numbers, *tokens: str) -> ModelParts:
    return check_submission(write_model(tmp_path / "model", embeddings, tokens), base, ResavedBase)


def test_a_built_model_is_the_bases_files_and_the_submitted_tensors(tmp_path: Path, base: BaseModel) -> None:
    parts = submit(tmp_path, base, np.zeros((ROWS, 4), np.float32))
    files = build_model(parts, base, tmp_path / "built")
    assert files.keys() == {"config.json", "tokenizer.json", "model.safetensors"}
    assert json.loads(files["config.json"].read_text()) == base.config
    assert files["tokenizer.json"] == base.directory / "tokenizer.json"
    assert files["model.safetensors"] == tmp_path / "model" / "model.safetensors"


def test_shards_get_names_of_the_graders_own(tmp_path: Path, base: BaseModel) -> None:
    model = write_model(tmp_path / "model", np.zeros((ROWS, 4), np.float32))
    layers = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    weight_map = {name: f"part-{name}.safetensors" for name in layers}
    for name, layer in layers.items():
        save_file({name: layer}, model / weight_map[name])
    index = {"metadata": {"anything": 1}, "weight_map": weight_map}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    files = build_model(check_submission(model, base, ResavedBase), base, tmp_path / "built")
    names = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    assert names | {"model.safetensors.index.json"} < files.keys()
    assert not any(name.startswith("part-") for name in files)
    written = json.loads(files["model.safetensors.index.json"].read_text())
    assert {*written["weight_map"].values()} == names
    assert written["metadata"] == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_an_ablation_has_the_bases_tensors_and_the_rows_of_added_tokens_alone(
    tmp_path: Path, base: BaseModel, dtype: type
) -> None:
    """Of one in a spare row, of two beyond them."""
    embeddings: Numbers = np.full((ROWS + 1, 4), -1, dtype)
    parts = submit(tmp_path, base, embeddings, "<|a|>", "<|b|>", "<|c|>")
    files = ablate_training(parts, base, tmp_path / "ablated")
    ablated = load_file(files["model.safetensors"])
    grown, untouched = ablated["model.embed_tokens.weight"], load_file(base.directory / "model.safetensors")
    assert grown.dtype == np.float32
    assert (grown[:SPARE] == untouched["model.embed_tokens.weight"][:SPARE]).all()
    assert (grown[SPARE:] == -1).all()
    assert len(grown) == ROWS + 1
    assert (ablated["model.norm.weight"] == 1).all()
    assert json.loads(files["config.json"].read_text())["vocab_size"] == ROWS + 1
    contents = [token["content"] for token in json.loads(files["tokenizer.json"].read_text())["added_tokens"]]
    assert contents == ["<|a|>", "<|b|>", "<|c|>"]


def test_ablations_are_told_apart_by_everything_but_trained_tensors(tmp_path: Path, base: BaseModel) -> None:
    zeros, ones = (np.full((ROWS, 4), value, np.float32) for value in (0, 1))
    keys = set()
    for number, embeddings in enumerate((zeros, ones)):
        for tokens in ((), ("<a>",)):
            place = tmp_path / f"{number}-{len(tokens)}"
            place.mkdir()
            keys.add(submit(place, base, embeddings, *tokens).ablation_key(base))
    assert len(keys) == 3  # without tokens, the trained tensors alone differ


def test_a_format_is_ablated_alone_and_beside_usual_ones(tmp_path: Path, base: BaseModel) -> None:
    model = write_model(tmp_path / "model", np.zeros((ROWS, 4), np.float32), ("<a>",))
    chat_format = USUAL_FORMATS[0].model_copy(update={"generation_prompt": "<a>"})
    (model / "chat_format.json").write_text(chat_format.model_dump_json())
    parts = check_submission(model, base, ResavedBase)
    formats = [(each.chat_format, bool(each.added_tokens)) for each in parts.ablations()]
    assert formats == [(chat_format, True), (chat_format, False), *((each, False) for each in USUAL_FORMATS)]


def test_a_chat_format_puts_constant_text_around_verbatim_messages() -> None:
    chat_format = ChatFormat(
        begin="<s>",
        system=RoleFormat(prefix="S:", suffix="\n"),
        user=RoleFormat(prefix="U:", suffix="\n"),
        assistant=RoleFormat(prefix="A:", suffix="</s>\n"),
        generation_prompt="A:",
    )
    chat = (
        ChatMessage("system", "{{ 1 + 1 }}"),
        ChatMessage("user", "{prefix}"),
        ChatMessage("assistant", "ok"),
        ChatMessage("user", ""),
    )
    assert chat_format.render_chat(chat) == "<s>S:{{ 1 + 1 }}\nU:{prefix}\nA:ok</s>\nU:\nA:"
