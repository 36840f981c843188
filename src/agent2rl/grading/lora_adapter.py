"""Read a submitted LoRA adapter, and merge it into the base model's tensors.

    LoRA      W + s B A, where s is alpha / rank
    rsLoRA    the same, where s is alpha / sqrt(rank)
    DoRA      V = W + s B A, with each output scaled to a trained length: V m / |V|

peft is the reference: tests compare the merged tensors with those of its merge_and_unload. peft itself is not
used, because it would open the submitted files with more code than this takes. An adapter is data: the strict
readers of `untrusted_model_files` read it, and NumPy multiplies. The names of its tensors say which modules
it changes. The base model that adapter_config.json names is never opened, and patterns in it are never run as
regular expressions. The merged tensors are then checked and graded like those of any submission.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from agent2rl.core.errors import Refusal
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.freeze import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agent2rl.grading.model_builder import NUMPY, decode_values, encode_values, row_bytes, write_header
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

Floats = npt.NDArray[np.float32]

# adapter_config.json, read as data.

MAX_RANK = 1024
MAX_ALPHA = 1e6
MODULE_NAME = re.compile(r"[A-Za-z0-9_.]{1,200}")
INPUT_KINDS = {
    *("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT", "ADAPTION_PROMPT"),
}
"""Kinds that train inputs of the model, which no merge turns into weights."""
INITIALIZATIONS = {"gaussian", "eva", "orthogonal"}
"""Those that leave the base model's weights as they are, beside true and false."""
USED = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "fan_in_fan_out", "init_lora_weights"),
    *("rank_pattern", "alpha_pattern", "target_modules"),
}
WITHOUT_EFFECT = {
    # who wrote the file, and for which base model
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "peft_version", "inference_mode"),
    # of training
    *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
    # which modules were trained: the names of the tensors say that
    *("exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save", "bias"),
    # defaults of features that other keys turn on
    *("megatron_core", "qalora_group_size"),
}
MERGE = """Merge it into the base model and submit the result:
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"], dtype="auto")
    model = PeftModel.from_pretrained(model, ADAPTER_DIRECTORY).merge_and_unload()
    model.save_pretrained(MERGED_DIRECTORY, safe_serialization=True)"""
SAVE_ADAPTER = "Save the adapter again with peft's model.save_pretrained(path)."


@dataclass(frozen=True)
class AdapterSettings:
    """What of adapter_config.json takes effect."""

    rank: int
    alpha: float
    rank_stabilized: bool
    decomposed: bool
    """Whether it is a DoRA."""
    transposed: bool
    """Whether the base model stores its matrices as inputs times outputs."""
    ranks: "ModuleValues"
    alphas: "ModuleValues"
    """Of modules with another rank or alpha."""
    targets: "ModuleValues | None"
    """The modules; None if the file has a pattern, which is not run."""

    def rank_of(self, module: str) -> int:
        return int(self.ranks.find(module) or self.rank)

    def scaling_of(self, module: str) -> float:
        rank = self.rank_of(module)
        return (self.alphas.find(module) or self.alpha) / (sqrt(rank) if self.rank_stabilized else rank)

    def has_target(self, module: str) -> bool:
        return self.targets is None or self.targets.find(module) is not None


class ModuleValues:
    """Values of modules, by their names or the ends of their names. The first that fits a module counts."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = {name: (place, value) for place, (name, value) in enumerate(values.items())}

    def find(self, module: str) -> float | None:
        """Look up each end of a name, because an agent decides how many values there are."""
        parts = module.split(".")
        ends = (".".join(parts[first:]) for first in range(len(parts)))
        return min((self._values[end] for end in ends if end in self._values), default=(0, None))[1]


def read_adapter_settings(config: Mapping[str, Any]) -> AdapterSettings:
    """Return what of adapter_config.json takes effect, or refuse a kind that cannot be merged here."""
    _check_kind(config)
    targets = config.get("target_modules")
    if not (targets is None or isinstance(targets, str) or _is_text_list(targets)):
        raise _setting_refusal("target_modules", targets, "a list of names")
    return AdapterSettings(
        rank=_read_rank("r", config.get("r")),
        alpha=_read_alpha("lora_alpha", config.get("lora_alpha")),
        rank_stabilized=_read_flag(config, "use_rslora"),
        decomposed=_read_flag(config, "use_dora"),
        transposed=_read_flag(config, "fan_in_fan_out"),
        ranks=_read_pattern(config, "rank_pattern", _read_rank),
        alphas=_read_pattern(config, "alpha_pattern", _read_alpha),
        targets=ModuleValues(dict.fromkeys(targets, 1)) if isinstance(targets, list) else None,
    )


def _check_kind(config: Mapping[str, Any]) -> None:
    kind, initialization = config.get("peft_type"), config.get("init_lora_weights", True)
    if isinstance(kind, str) and kind in INPUT_KINDS:
        raise Refusal(
            f"This is an adapter of the kind {kind}: it trains inputs of the model and not its weights, so "
            "it cannot be merged.",
            "Train a LoRA adapter or the model's own weights.",
        )
    if kind != "LORA":
        raise Refusal(
            f"{ADAPTER_CONFIG}: peft_type is {format_value(kind)}. The grader merges LORA, also with "
            "use_rslora or use_dora.",
            MERGE,
        )
    if not isinstance(initialization, bool) and str(initialization) not in INITIALIZATIONS:
        raise Refusal(
            f"{ADAPTER_CONFIG}: init_lora_weights is {format_value(initialization)}, which also changes the "
            "base model's own weights, and the adapter does not hold that change.",
            "Save it with path_initial_model_for_weight_conversion, or submit the merged model.",
        )
    others = sorted(key for key, value in config.items() if key not in USED | WITHOUT_EFFECT and value)
    if others:
        raise Refusal(
            f"{ADAPTER_CONFIG} uses {format_values(others)}, which the grader does not merge.", MERGE
        )


def _read_rank(key: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise _setting_refusal(key, value, f"a rank from 1 to {MAX_RANK}")
    return value


def _read_alpha(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_ALPHA:
        raise _setting_refusal(key, value, f"a number above 0 and up to {MAX_ALPHA:g}")
    return float(value)


def _read_flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise _setting_refusal(key, value, "true or false")
    return bool(value)


def _read_pattern(config: Mapping[str, Any], key: str, read: Callable[[str, object], float]) -> ModuleValues:
    pattern = config.get(key) or {}
    if not isinstance(pattern, dict) or not all(MODULE_NAME.fullmatch(name) for name in pattern):
        raise _setting_refusal(key, pattern, "a mapping of module names; regular expressions are not run")
    return ModuleValues({name: read(key, value) for name, value in pattern.items()})


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _setting_refusal(key: str, value: object, expected: str) -> Refusal:
    return Refusal(f"{ADAPTER_CONFIG}: {key} is {format_value(value)}, not {expected}.", SAVE_ADAPTER)


# The adapter's tensors, and the base model's tensors that they change.

PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
EMBEDDING_DOWN, EMBEDDING_UP = ".lora_embedding_A", ".lora_embedding_B"
MAGNITUDE = ".lora_magnitude_vector"
PARTS = (DOWN, UP, EMBEDDING_DOWN, EMBEDDING_UP, MAGNITUDE)
FLOATS = {*NUMPY, "BF16"}
CHUNK_VALUES = 1 << 19
"""Values of a matrix that one thread has in memory at a time."""
MERGE_BYTES = 1 << 30
"""Memory for the factors of the matrices that are merged at the same time. One matrix may need more."""


@dataclass(frozen=True)
class LowRankUpdate:
    """The change of one matrix."""

    down: Tensor
    up: Tensor
    scaling: float
    transposed: bool
    """Whether the matrix has its inputs as rows, as embeddings have."""
    magnitude: Tensor | None = None
    """The length of each output, in a DoRA."""

    @property
    def factor_bytes(self) -> int:
        """Memory for both factors while they are read: as stored, and as 32-bit floats."""
        stored = (each.parameters * (DTYPE_BYTES[each.dtype] + 4) for each in (self.down, self.up))
        return sum(stored)

    def merge(self, matrix: Tensor) -> Iterator[bytes]:
        """Yield the bytes of the merged matrix, a few rows at a time."""
        with np.errstate(all="ignore"):
            factors = self._compute_factors(matrix)
            for first, rows in self._add_rows(matrix):
                if factors is not None:
                    rows *= factors if self.transposed else factors[first : first + len(rows), None]
                yield encode_values(rows, matrix.dtype)

    def _compute_factors(self, matrix: Tensor) -> Floats | None:
        """Return the factor of each output: its trained length by the one that it has; None without DoRA."""
        if self.magnitude is None:
            return None
        axis = 0 if self.transposed else 1
        squares = [np.square(rows).sum(axis=axis) for _, rows in self._add_rows(matrix)]
        lengths = np.sqrt(np.sum(squares, axis=0) if self.transposed else np.concatenate(squares))
        factors: Floats = _read_values(self.magnitude) / lengths
        return factors

    def _add_rows(self, matrix: Tensor) -> Iterator[tuple[int, Floats]]:
        """Yield rows of the matrix with the scaled product added, and the number of the first of them."""
        down, up = _read_values(self.down), _read_values(self.up)
        left, right = (down.T, up.T) if self.transposed else (up, down)
        count, columns = matrix.shape
        step = max(1, CHUNK_VALUES // max(1, columns))
        for first in range(0, count, step):
            rows = _read_rows(matrix, first, min(step, count - first))
            yield first, rows + (left[first : first + len(rows)] @ right) * np.float32(self.scaling)


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter that fits the base model."""

    base: BaseModel
    updates: Mapping[str, LowRankUpdate]
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
    changed = {*replaced, *(f"{module}.weight" for module in modules)}
    _refuse_faults({"not of the base model": changed - base.tensors.keys()})
    whole = {**base.tensors, **replaced}
    updates = {
        module: _read_update(module, parts, whole[f"{module}.weight"], settings)
        for module, parts in modules.items()
    }
    parts_by_name = {f"{module}{part}": each for module in modules for part, each in modules[module].items()}
    _refuse_faults(
        {
            "not of a module in target_modules": {name for name in modules if not settings.has_target(name)},
            "not floating-point numbers": {
                name for name, each in (replaced | parts_by_name).items() if each.dtype not in FLOATS
            },
            "incomplete or of a wrong shape": {
                _describe_parts(module, modules[module], whole[f"{module}.weight"])
                for module, update in updates.items()
                if update is None
            },
        }
    )
    _require_finite(parts_by_name)
    return LoraAdapter(
        base, {f"{module}.weight": update for module, update in updates.items() if update}, replaced
    )


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
    return inner.replace(".base_layer.", ".").replace(".modules_to_save.", "."), ""


def _read_update(
    module: str, parts: Mapping[str, Tensor], matrix: Tensor, settings: AdapterSettings
) -> LowRankUpdate | None:
    """Return the change of a module's matrix, or None if parts are missing or have another shape."""
    embedding = EMBEDDING_DOWN in parts
    names = (EMBEDDING_DOWN, EMBEDDING_UP) if embedding else (DOWN, UP)
    if parts.keys() != {*names, *([MAGNITUDE] if settings.decomposed else [])}:
        return None
    if len(matrix.shape) != 2 or matrix.dtype not in FLOATS:
        return None
    down, up, magnitude = parts[names[0]], parts[names[1]], parts.get(MAGNITUDE)
    transposed = embedding or settings.transposed
    outputs, inputs = reversed(matrix.shape) if transposed else matrix.shape
    rank = settings.rank_of(module)
    if down.shape != (rank, inputs) or up.shape != (outputs, rank):
        return None
    if magnitude is not None and magnitude.shape != (outputs,):
        return None
    return LowRankUpdate(down, up, settings.scaling_of(module), transposed, magnitude)


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


def _merge_finite(name: str, tensor: Tensor, update: LowRankUpdate) -> Iterator[bytes]:
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


def _read_values(tensor: Tensor) -> Floats:
    return decode_values(b"".join(read_chunks(tensor)), tensor.dtype).reshape(tensor.shape)


def _read_rows(tensor: Tensor, first: int, count: int) -> Floats:
    size = row_bytes(tensor)
    begin = tensor.offsets[0] + first * size
    return _read_values(
        replace(tensor, shape=(count, *tensor.shape[1:]), offsets=(begin, begin + count * size))
    )
