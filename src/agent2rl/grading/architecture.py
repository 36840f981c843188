"""Is this the base model's architecture at the base model's size? Only the vocabulary may grow, a little.

Works from configurations and safetensors headers alone, for any architecture: a key that decides a shape is
known by its name, so the shapes themselves are compared too.
"""

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from agent2rl.core.errors import Refusal
from agent2rl.grading.untrusted import keys, listed, shown
from agent2rl.grading.weights import MEND, Tensor, tensor_sha256

Config = Mapping[str, Any]

STRUCTURE = re.compile(r"num_.*|n_(layer|head|embd|inner)|d_(model|ff|kv)|.*_(size|layers|heads|dim)")
"""Keys whose integers decide the shape of a model: hidden_size, num_hidden_layers, head_dim, n_embd …"""
FREE = re.compile(r"vocab_size|num_beams|num_beam_groups|num_return_sequences|.*no_repeat_ngram_size")
"""Keys that only look so: sampling, and the vocabulary, which has a rule of its own."""
VOCABULARY_GROWTH = 1024
PARAMETER_GROWTH = 1.05
FLOATS = {"F64", "F32", "F16", "BF16"}
HEAD = "lm_head.weight"
"""The one tensor that may be stored or not: where embeddings are tied, it is a copy of them."""


def check_config(config: Config, base: Config) -> None:
    """Refuse a configuration that makes it another model than the base, or one that asks for code."""
    faults = [
        f"{key} is {shown(config.get(key))}, not {shown(base.get(key))}"
        for key in ("architectures", "model_type")
        if config.get(key) != base.get(key)
    ]
    faults += _differences(config, base)
    if "auto_map" in keys(config):
        faults.append("auto_map asks for custom code, which is never run")
    if config.get("quantization_config") and not base.get("quantization_config"):
        faults.append("quantization_config is set, and the base model is not quantized")
    size, rows = _vocabulary(config), _vocabulary(base)
    if rows is not None and (size is None or not rows <= size <= rows + VOCABULARY_GROWTH):
        faults.append(f"vocab_size is {size}; {rows} to {rows + VOCABULARY_GROWTH} are accepted")
    if faults:
        raise Refusal(
            f"config.json does not fit the base model: {'; '.join(faults)}.",
            "Train the base model itself and save it with model.save_pretrained(path).",
        )


def check_tensors(
    found: Mapping[str, Tensor], base: Mapping[str, Tensor], config: Config, base_config: Config
) -> None:
    """Refuse tensors that are not the base model's by name, shape and kind. The configuration was checked."""
    size, rows = _vocabulary(config), _vocabulary(base_config)
    grown = {name: _grown(tensor.shape, rows, size) for name, tensor in base.items()}
    if HEAD in found and HEAD not in base:
        found = {name: tensor for name, tensor in found.items() if name != HEAD} | _untied(found)
    _check_count(found, base, grown)
    tied = config.get("tie_word_embeddings", base_config.get("tie_word_embeddings", True)) is not False
    common = sorted(found.keys() & base.keys())
    faults = {
        "missing": sorted(base.keys() - found.keys() - ({HEAD} if tied else set())),
        "not in the base model": sorted(found.keys() - base.keys()),
        "of another shape": [
            f"{name} {list(found[name].shape)}, not {list(base[name].shape)}"
            for name in common
            if found[name].shape not in (base[name].shape, grown[name])
        ],
        "not floating-point numbers": [
            f"{name} {found[name].dtype}"
            for name in common
            if found[name].dtype not in FLOATS | {base[name].dtype}
        ],
    }
    if any(faults.values()):
        text = "; ".join(f"{fault}: {listed(names)}" for fault, names in faults.items() if names)
        raise Refusal(f"The tensors are not the base model's. They are {text}.", f"Unwrap the model. {MEND}")


def _differences(config: Config, base: Config, within: str = "") -> Iterator[str]:
    """Sizes in which two configurations differ, also in configurations inside them."""
    for key in sorted(config.keys() & base.keys()):
        mine, theirs = config[key], base[key]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            yield from _differences(mine, theirs, f"{within}{key}.")
        elif (
            type(theirs) is int
            and STRUCTURE.fullmatch(key)
            and not FREE.fullmatch(key)
            and (type(mine) is not int or mine != theirs)
        ):
            yield f"{within}{key} is {shown(mine)}, not {theirs}"


def _vocabulary(config: Config) -> int | None:
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping) and type(part.get("vocab_size")) is int:
            return int(part["vocab_size"])
    return None


def _grown(shape: tuple[int, ...], rows: int | None, size: int | None) -> tuple[int, ...]:
    """The shape with the submission's vocabulary, where its rows are the vocabulary."""
    return (size, *shape[1:]) if size is not None and shape and shape[0] == rows else shape


def _untied(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head, unless it is a copy of another tensor: then it is no tensor of its own."""
    head = found[HEAD]
    alike = [
        tensor
        for name, tensor in found.items()
        if name != HEAD and (tensor.dtype, tensor.shape) == (head.dtype, head.shape)
    ]
    digest = tensor_sha256(head)
    return {} if any(tensor_sha256(tensor) == digest for tensor in alike) else {HEAD: head}


def _check_count(
    found: Mapping[str, Tensor], base: Mapping[str, Tensor], grown: Mapping[str, tuple[int, ...]]
) -> None:
    """A bigger model differs in every tensor: better to say that it is bigger."""
    parameters = sum(tensor.parameters for tensor in found.values())
    allowed = sum(tensor.parameters for tensor in base.values())
    added = sum(prod(shape) for shape in grown.values()) - allowed
    if parameters > allowed * PARAMETER_GROWTH + added:
        raise Refusal(
            f"The model has {parameters:,} parameters; the base model has {allowed:,}.",
            "Train the base model itself. Where its embeddings are tied, keep them so.",
        )
