"""Build the model directory that an engine opens. The only files from the agent are checked tensors.

    config.json       the base model's, with the few changes that the checks allow
    tokenizer files   the base model's, with added special tokens
    chat format       the base model's template, or a declared format, which is data
    weights           the submitted safetensors files, renamed; or the base model's with an adapter merged in

A built model maps file names to files of the host. An engine's sandbox mounts each of them at its name, so
that weights of any size are neither copied nor linked. `ablate_training` builds the base model's own tensors
with a submission's other files and its rows for added tokens: the score of that does not come from training.
"""

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent2rl.core.engine import CHAT_FORMAT_FILE, USUAL_FORMATS, ChatFormat
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.config_and_tokenizer import (
    VOCABULARY,
    AddedToken,
    ConfigChanges,
    config_value,
    extend_tokenizer,
)
from agent2rl.grading.freeze import CONFIG, PICKLED_MODELS, TOKENIZER, matches_name
from agent2rl.grading.untrusted_model_files import DTYPE_BYTES, INDEX, SINGLE, Tensor, read_chunks

logger = logging.getLogger(__name__)

# The base model's weights with a submission's rows for added tokens.

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
TokenRows = Mapping[str, Mapping[int, bytes]]
"""By tensor and row."""


def read_row(tensor: Tensor, row: int, dtype: str) -> bytes:
    """Return one row of a tensor in the given dtype."""
    size = row_bytes(tensor)
    with tensor.file.open("rb") as file:
        file.seek(tensor.offsets[0] + row * size)
        raw = file.read(size)
    return raw if tensor.dtype == dtype else encode_values(decode_values(raw, tensor.dtype), dtype)


def row_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:]) * DTYPE_BYTES[tensor.dtype]


def write_rows(path: Path, base: Mapping[str, Tensor], rows: TokenRows) -> dict[str, Tensor]:
    """Write a safetensors file of the base model's tensors with replaced or added rows."""
    grown: dict[str, Tensor] = {}
    for name, tensor in base.items():
        count = max([*(row + 1 for row in rows.get(name, ())), *tensor.shape[:1]], default=0)
        shape = (count, *tensor.shape[1:]) if tensor.shape else ()
        grown[name] = replace(tensor, shape=shape)
    written = write_header(path, grown)
    with path.open("r+b") as file:
        for name, tensor in base.items():
            file.seek(written[name].offsets[0])
            file.writelines(read_chunks(tensor))
            for row, data in rows.get(name, {}).items():
                file.seek(written[name].offsets[0] + row * row_bytes(tensor))
                file.write(data)
    return written


def write_header(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write the header of a safetensors file with room for tensors of these shapes; return their places."""
    ends = list(accumulate(tensor.parameters * DTYPE_BYTES[tensor.dtype] for tensor in tensors.values()))
    offsets = dict(zip(tensors, pairwise([0, *ends]), strict=True))
    entries = {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets[name]}
        for name, tensor in tensors.items()
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    header += b" " * (-len(header) % 8)  # aligned, as the library writes it
    start = 8 + len(header)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(start + (ends[-1] if ends else 0))
    path.chmod(0o644)  # despite the umask: the grading child may be another user
    return {
        name: Tensor(tensor.dtype, tensor.shape, path, (start + offsets[name][0], start + offsets[name][1]))
        for name, tensor in tensors.items()
    }


def decode_values(raw: bytes, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        halves = np.zeros(len(raw), "<u2")  # much faster than a shift, with the same result
        halves[1::2] = np.frombuffer(raw, "<u2")
        return halves.view(np.float32)
    return np.frombuffer(raw, NUMPY[dtype]).astype(np.float32)


def encode_values(values: npt.NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "BF16":
        bits = values.view(np.uint32)
        rounded = bits >> np.uint32(16)  # round to nearest, ties to even
        rounded &= np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += bits
        return rounded.view("<u2")[..., 1::2].tobytes()
    return values.astype(NUMPY[dtype]).tobytes()


BuiltFiles = Mapping[str, Path]
"""Files of a model directory, by the names that an engine sees."""
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
"""Files of the base model that are left out: weights in any format, code, and generation_config.json, because
the task decides how replies are sampled."""


@dataclass(frozen=True)
class ModelParts:
    """The checked parts of a submission that take effect."""

    tensors: Mapping[str, Tensor]
    config: ConfigChanges = field(default_factory=ConfigChanges)
    added_tokens: tuple[AddedToken, ...] = ()
    tokenizer: Mapping[str, Any] | None = None
    """The tokenizer that the added tokens extend, if there are any."""
    chat_format: ChatFormat | None = None
    """None: the base model's own."""

    @property
    def directory(self) -> Path:
        """The directory of its weights: the frozen copy, or the place where an adapter was merged."""
        return next(iter(self.tensors.values())).file.parent

    @property
    def differs_beside_weights(self) -> bool:
        return bool(self.added_tokens or self.chat_format) or self.config != ConfigChanges()

    def ablations(self) -> tuple["ModelParts", ...]:
        """Return the variants for the base model's own tensors: all changes, and only the chat format.

        A format can be designed to fail with the base model and to work with a few edited values. So the base
        model is also graded with a few common formats.
        """
        if self.chat_format is None:
            return (self,)
        alone = (self.chat_format, *USUAL_FORMATS)
        return (self, *(ModelParts(self.tensors, chat_format=each) for each in alone))

    def ablation_key(self, base: BaseModel) -> str:
        """Return a hash of everything that differs from the base model except its own tensors."""
        rows = {
            f"{name} {row}": hashlib.sha256(data).hexdigest()
            for name, changed in _token_rows(self, base).items()
            for row, data in changed.items()
        }
        what = {
            "config": [self.config.vocabulary, self.config.tied, self.config.end_tokens],
            "added_tokens": [token.model_dump() for token in self.added_tokens],
            "chat_format": self.chat_format.model_dump() if self.chat_format else None,
            "rows": rows,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def build_model(parts: ModelParts, base: BaseModel, directory: Path) -> BuiltFiles:
    """Build the submission for grading; new files are written to `directory`."""
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
    logger.debug("Built a model of %d tensors from %s", len(parts.tensors), parts.directory)
    return {**files, **_place_weights(parts.tensors, directory)}


def ablate_training(parts: ModelParts, base: BaseModel, directory: Path) -> BuiltFiles:
    """Build the base model's own tensors with the submission's other files and rows for added tokens."""
    rows = _token_rows(parts, base)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = dict(base.tensors)
    if rows:
        tensors = write_rows(directory / "ablated.safetensors", base.tensors, rows)
    return build_model(replace(parts, tensors=tensors), base, directory)


def base_files(base: BaseModel) -> dict[str, Path]:
    """Return the base model's files for an engine, without weights, pickles and code."""
    names = [file.path for file in base.manifest.files if "/" not in file.path]
    return {name: base.directory / name for name in names if not matches_name(name, NOT_BUILT)}


def _token_rows(parts: ModelParts, base: BaseModel) -> dict[str, dict[int, bytes]]:
    """Return a submission's rows for added tokens, by tensor and row: new rows, or spare ones of the base."""
    vocabulary = config_value(base.config, VOCABULARY)
    rows_by_tensor: dict[str, dict[int, bytes]] = {}
    for name, tensor in sorted(parts.tensors.items()):
        theirs = base.tensors.get(name)
        if theirs is None or theirs.shape[:1] != (vocabulary,):
            continue
        grown = range(theirs.shape[0], tensor.shape[0]) if parts.config.vocabulary else ()
        spare = [token.id for token in parts.added_tokens if token.id < theirs.shape[0]]
        if rows := [*spare, *grown]:
            rows_by_tensor[name] = {row: read_row(tensor, row, theirs.dtype) for row in rows}
    return rows_by_tensor


def _place_weights(tensors: Mapping[str, Tensor], directory: Path) -> dict[str, Path]:
    """Return the weight files under standard names."""
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
    path.chmod(0o644)  # despite the umask: the grading child may be another user
    return path
