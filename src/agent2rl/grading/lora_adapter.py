"""Read a submitted adapter, and merge it into the base model's tensors.

peft is the reference: tests compare the merged tensors with those of its merge_and_unload. peft itself is not
used, because it would open the submitted files with more code than this takes. An adapter is data: the strict
readers of `untrusted_model_files` read it, and NumPy multiplies (`adapter_updates`). The names of its tensors
say which modules it changes, adapter_config.json says how (`adapter_settings`), and the base model that it
names is never opened. The merged tensors are then checked and graded like those of any submission.
"""

import json
import os
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from agent2rl.core.errors import Refusal
from agent2rl.grading.adapter_settings import SAVE_ADAPTER, AdapterSettings, read_adapter_settings
from agent2rl.grading.adapter_updates import (
    BiasUpdate,
    FactorUpdate,
    HadamardUpdate,
    LowRankUpdate,
    TensorUpdate,
)
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.freeze import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agent2rl.grading.model_builder import NUMPY, decode_values, write_header
from agent2rl.grading.untrusted_model_files import (
    DTYPE_BYTES,
    INDEX,
    MIB,
    SINGLE,
    Tensor,
    format_value,
    format_values,
    read_chunks,
    read_object,
    read_tensor_file,
)

PREFIX = "base_model.model."
DOWN, UP, UP_BIAS = ".lora_A.weight", ".lora_B.weight", ".lora_B.bias"
EMBEDDING_DOWN, EMBEDDING_UP = ".lora_embedding_A", ".lora_embedding_B"
MAGNITUDE = ".lora_magnitude_vector"
HADAMARD = (".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b")
FACTORS = ".ia3_l"
PARTS = (DOWN, UP, UP_BIAS, EMBEDDING_DOWN, EMBEDDING_UP, MAGNITUDE, *HADAMARD, FACTORS)
FLOATS = {*NUMPY, "BF16"}
MERGE_BYTES = 1 << 30
"""Memory for the factors of the matrices that are merged at the same time. One matrix may need more."""


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter that fits the base model."""

    base: BaseModel
    updates: Mapping[str, TensorUpdate]
    """By the name of the base model's tensor."""
    replaced: Mapping[str, Tensor]
    """Whole tensors that the adapter holds, such as trained biases, by the name of the base model's."""

    @cached_property
    def outline(self) -> dict[str, Tensor]:
        """The merged model's tensors by name, dtype and shape. Updated ones have the values from before."""
        return {**self.base.tensors, **self.replaced}

    @property
    def merged_bytes(self) -> int:
        """The size of the merged tensors. A replaced tensor may have a wider precision than the base's."""
        return sum(tensor.parameters * DTYPE_BYTES[tensor.dtype] for tensor in self.outline.values())

    def merge_tensor(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of one merged tensor."""
        update, tensor = self.updates.get(name), self.outline[name]
        return read_chunks(tensor) if update is None else _merge_finite(name, tensor, update)


def is_adapter(submission: Path) -> bool:
    """Return whether a frozen submission is an adapter."""
    return (submission / ADAPTER_CONFIG).is_file()


def read_adapter(submission: Path, base: BaseModel) -> LoraAdapter:
    """Read an adapter of the base model, or refuse it with everything that does not fit."""
    settings = read_adapter_settings(read_object(submission / ADAPTER_CONFIG, MIB))
    modules: dict[str, dict[str, Tensor]] = {}
    replaced: dict[str, Tensor] = {}
    repeated: set[str] = set()
    for name, tensor in read_tensor_file(submission / ADAPTER_WEIGHTS).items():
        module, part = _split_name(name)
        places, place = (modules.setdefault(module, {}), part) if part else (replaced, module)
        if place in places:
            repeated.add(f"{module}{part}")
        places[place] = tensor
    _refuse_faults({"given twice": repeated})
    # The rest looks at modules of the base model alone, whose names and number are not the agent's.
    changed = {
        *replaced,
        *(f"{module}.weight" for module in modules),
        *(f"{module}.bias" for module, parts in modules.items() if UP_BIAS in parts),
    }
    _refuse_faults({"not of the base model": changed - base.tensors.keys()})
    whole = {**base.tensors, **replaced}
    updates = {module: _read_updates(module, parts, whole, settings) for module, parts in modules.items()}
    parts_by_name = {f"{module}{part}": each for module in modules for part, each in modules[module].items()}
    _refuse_faults(
        {
            "not of a module in target_modules": {name for name in modules if not settings.has_target(name)},
            "not floating-point numbers": {
                name for name, each in (replaced | parts_by_name).items() if each.dtype not in FLOATS
            },
            "incomplete or of a wrong shape": {
                _describe_parts(module, modules[module], whole[f"{module}.weight"])
                for module, changes in updates.items()
                if changes is None
            },
        }
    )
    _require_finite(parts_by_name)
    changes_by_name = {
        name: each for changes in updates.values() if changes for name, each in changes.items()
    }
    return LoraAdapter(base, changes_by_name, replaced)


def merge_adapter(adapter: LoraAdapter, directory: Path) -> dict[str, Tensor]:
    """Write the merged model's tensors to `directory`, in as many files as the base model's; return them."""
    directory.mkdir(parents=True)
    directory.chmod(0o755)  # despite the umask, like the files: the grading child may be another user
    sources = sorted({tensor.file for tensor in adapter.base.tensors.values()})
    merged: dict[str, Tensor] = {}
    for number, source in enumerate(sources, start=1):
        file = SINGLE if len(sources) == 1 else f"model-{number:05}-of-{len(sources):05}.safetensors"
        names = [name for name, tensor in adapter.base.tensors.items() if tensor.file == source]
        merged |= write_header(directory / file, {name: adapter.outline[name] for name in names})
    if len(sources) > 1:
        weight_map = {name: tensor.file.name for name, tensor in sorted(merged.items())}
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    def write_tensor(name: str) -> None:
        # Each tensor has its place in the file, so threads can write without waiting for each
        # other.
        with merged[name].file.open("r+b") as target:
            target.seek(merged[name].offsets[0])
            target.writelines(adapter.merge_tensor(name))

    # With threads of its own for each product, BLAS takes four times the CPU time.
    largest = max((update.factor_bytes for update in adapter.updates.values()), default=1)
    workers = max(1, min(len(os.sched_getaffinity(0)), MERGE_BYTES // largest))
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(workers) as pool:
        list(pool.map(write_tensor, merged))
    return merged


def _split_name(name: str) -> tuple[str, str]:
    """Split a tensor's name into module and part; a whole tensor has its own name and no part."""
    inner = name.removeprefix(PREFIX)
    for part in PARTS:
        if inner.endswith(part):
            return inner.removesuffix(part), part
    # What peft calls the weights of a layer that it wraps, and of one that is trained whole.
    return inner.replace(".base_layer.", ".").replace(".modules_to_save.", "."), ""


def _read_updates(
    module: str, parts: Mapping[str, Tensor], whole: Mapping[str, Tensor], settings: AdapterSettings
) -> Mapping[str, TensorUpdate] | None:
    """Return the changes of a module's tensors, or None if parts are missing or have another shape."""
    weight, bias = f"{module}.weight", f"{module}.bias"
    matrix = whole[weight]
    if len(matrix.shape) != 2 or matrix.dtype not in FLOATS:
        return None
    embedding = EMBEDDING_DOWN in parts
    transposed = embedding or settings.transposed
    outputs, inputs = reversed(matrix.shape) if transposed else matrix.shape
    shapes = {part: tensor.shape for part, tensor in parts.items()}
    has_bias = bias in whole and whole[bias].shape == (outputs,) and whole[bias].dtype in FLOATS
    rank, scaling = settings.rank_of(module), settings.scaling_of(module)
    match settings.kind:
        case "LORA":
            down, up = (EMBEDDING_DOWN, EMBEDDING_UP) if embedding else (DOWN, UP)
            expected: dict[str, tuple[int, ...]] = {down: (rank, inputs), up: (outputs, rank)}
            expected |= {MAGNITUDE: (outputs,)} if settings.decomposed else {}
            expected |= {UP_BIAS: (outputs,)} if settings.biased else {}
            if shapes != expected or (settings.biased and not has_bias):
                return None
            changes: dict[str, TensorUpdate] = {
                weight: LowRankUpdate(parts[down], parts[up], scaling, transposed, parts.get(MAGNITUDE))
            }
            return changes | ({bias: BiasUpdate(parts[UP_BIAS], scaling)} if settings.biased else {})
        case "LOHA":
            if shapes != dict(zip(HADAMARD, 2 * ((outputs, rank), (rank, inputs)), strict=True)):
                return None
            left, right, other_left, other_right = (parts[name] for name in HADAMARD)
            return {weight: HadamardUpdate((left, right), (other_left, other_right), scaling)}
        case "IA3":
            of_outputs = shapes == {FACTORS: (outputs, 1)}
            if not (of_outputs or shapes == {FACTORS: (1, inputs)}) or (bias in whole and not has_bias):
                return None
            update_of_matrix = FactorUpdate(parts[FACTORS], by_row=of_outputs != transposed)
            scaled_bias = {bias: FactorUpdate(parts[FACTORS], by_row=True)} if of_outputs and has_bias else {}
            return {weight: update_of_matrix, **scaled_bias}


def _describe_parts(module: str, parts: Mapping[str, Tensor], matrix: Tensor) -> str:
    shapes = ", ".join(f"{part[1:]} {list(tensor.shape)}" for part, tensor in sorted(parts.items()))
    return f"{module} {list(matrix.shape)}: {shapes}"


def _refuse_faults(faults: Mapping[str, Set[str]]) -> None:
    if any(faults.values()):
        text = "; ".join(
            f"{fault}: {format_values(sorted(names))}" for fault, names in faults.items() if names
        )
        raise Refusal(f"The adapter does not fit the base model. Its tensors are {text}.", SAVE_ADAPTER)


def _require_finite(tensors: Mapping[str, Tensor]) -> None:
    broken = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if broken:
        raise Refusal(
            f"The adapter has NaN or infinity in {format_values(broken)}.",
            "Lower the learning rate, and train again.",
        )


def _merge_finite(name: str, tensor: Tensor, update: TensorUpdate) -> Iterator[bytes]:
    """Merge a tensor; refuse a scaling that is too large for it, or a DoRA of an output that is 0."""
    for chunk in update.merge(tensor):
        if not _has_finite_values(chunk, tensor.dtype):
            raise Refusal(
                f"Merging the adapter makes NaN or infinity in {format_value(name)}.",
                "Lower the learning rate or lora_alpha, and train again.",
            )
        yield chunk


def _is_finite(tensor: Tensor) -> bool:
    """Read a few megabytes at a time: the tensor has not been compared with the base model's yet."""
    return all(_has_finite_values(chunk, tensor.dtype) for chunk in read_chunks(tensor))


def _has_finite_values(chunk: bytes, dtype: str) -> bool:
    with np.errstate(over="ignore"):  # a value that is too large for the merge becomes infinite
        return bool(np.isfinite(decode_values(chunk, dtype)).all())
