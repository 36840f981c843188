"""Builds the model directory that an engine opens. Nothing that the agent wrote is in it but checked tensors.

    config.json       the base model's, with the few changes that the checks allow
    tokenizer files   the base model's, with added special tokens
    chat format       the base model's template, or a declared format, which is data
    weights           the submitted safetensors files under names that are given here

A built model is a mapping from file names to files of the host: an engine's sandbox shows each of them at its
name, so that weights of any size are neither copied nor linked.

`ablate_training` builds the base model's own tensors under a submission's other files. What that scores does
not come from training.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent2rl.core.chat_format import CHAT_FORMAT_FILE, ChatFormat
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.grown_weights import read_added_rows, write_grown_model
from agent2rl.grading.model_config import ConfigChanges
from agent2rl.grading.submission_files import CONFIG, PICKLED_MODELS, TOKENIZER, matches_name
from agent2rl.grading.tokenizer_check import AddedToken, extend_tokenizer
from agent2rl.grading.weights import INDEX, SINGLE, Tensor, tensor_sha256

BuiltFiles = Mapping[str, Path]
"""Files of a model directory by the names that an engine sees."""
NOT_BUILT = (
    *(
        "*.safetensors",
        INDEX,
        *PICKLED_MODELS,
        "*.bin",
        "*.pt",
        "*.pth",
        "*.gguf",
        "*.onnx",
        "*.h5",
        "*.msgpack",
    ),
    *("*.py", "*.so", "generation_config.json"),
)
"""Of the base model: its weights, its weights in other forms, and code. How replies are sampled is the task's
affair, so no generation_config.json either."""


@dataclass(frozen=True)
class ModelParts:
    """What of a submission takes effect, once it is checked."""

    tensors: Mapping[str, Tensor]
    config: ConfigChanges = field(default_factory=ConfigChanges)
    added_tokens: tuple[AddedToken, ...] = ()
    tokenizer: Mapping[str, Any] | None = None
    """What the added tokens extend, where there are any."""
    chat_format: ChatFormat | None = None
    """None: as the base model is asked."""

    @property
    def differs_beside_weights(self) -> bool:
        return bool(self.added_tokens or self.chat_format) or self.config != ConfigChanges()

    def ablation_key(self, base: BaseModel) -> str:
        """Names everything that differs from the base model but its own tensors."""
        rows = {name: tensor_sha256(tensor) for name, tensor in _grown_tensors(self, base).items()}
        what = {
            "config": [self.config.vocabulary, self.config.tied, self.config.end_tokens],
            "added_tokens": [token.model_dump() for token in self.added_tokens],
            "chat_format": self.chat_format.model_dump() if self.chat_format else None,
            "rows": rows,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def build_model(parts: ModelParts, base: BaseModel, directory: Path) -> BuiltFiles:
    """The submission as it is graded; what has to be written is written to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    files = base_files(base)
    files[CONFIG] = _write_json(directory / CONFIG, parts.config.apply(base.config))
    if parts.added_tokens:
        assert parts.tokenizer is not None
        extended = extend_tokenizer(parts.tokenizer, parts.added_tokens)
        files[TOKENIZER] = _write_json(directory / TOKENIZER, extended)
    if parts.chat_format:
        files[CHAT_FORMAT_FILE] = _write_json(directory / CHAT_FORMAT_FILE, parts.chat_format.model_dump())
    return {**files, **_place_weights(parts.tensors, directory)}


def ablate_training(parts: ModelParts, base: BaseModel, directory: Path) -> BuiltFiles:
    """The base model's own tensors under the submission's other files, with its rows for added tokens."""
    grown = _grown_tensors(parts, base)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = dict(base.tensors)
    if grown:
        rows = {name: read_added_rows(base.tensors[name], tensor) for name, tensor in grown.items()}
        tensors = write_grown_model(directory / "ablated.safetensors", base.tensors, rows)
    return build_model(replace(parts, tensors=tensors), base, directory)


def base_files(base: BaseModel) -> dict[str, Path]:
    """What an engine may need of the base model beside its weights; hubs keep pickles and code there too."""
    names = [file.path for file in base.manifest.files if "/" not in file.path]
    return {name: base.directory / name for name in names if not matches_name(name, NOT_BUILT)}


def _grown_tensors(parts: ModelParts, base: BaseModel) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in sorted(parts.tensors.items())
        if name in base.tensors and tensor.shape != base.tensors[name].shape
    }


def _place_weights(tensors: Mapping[str, Tensor], directory: Path) -> dict[str, Path]:
    """The files that hold the tensors, under names of our own."""
    sources = sorted({tensor.file for tensor in tensors.values()})
    if len(sources) == 1:
        return {SINGLE: sources[0]}
    names = {
        source: f"model-{number:05}-of-{len(sources):05}.safetensors"
        for number, source in enumerate(sources, start=1)
    }
    weight_map = {name: names[tensor.file] for name, tensor in sorted(tensors.items())}
    index = _write_json(directory / INDEX, {"metadata": {}, "weight_map": weight_map})
    return {INDEX: index, **{name: source for source, name in names.items()}}


def _write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    path.chmod(0o644)  # whatever the umask: the grading child may be another user
    return path
