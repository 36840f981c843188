"""Are these the base model's tensors, by name, shape and kind? Only the vocabulary may grow, a little.

Works from safetensors headers alone, for any architecture.
"""

from collections.abc import Mapping
from math import prod

from agent2rl.core.errors import Refusal
from agent2rl.grading.model_config import VOCABULARY, Config, config_value
from agent2rl.grading.strict_json import format_values
from agent2rl.grading.weights import MEND, Tensor, tensor_sha256

PARAMETER_GROWTH = 1.05
FLOATS = {"F64", "F32", "F16", "BF16"}
HEAD = "lm_head.weight"
"""The one tensor that may be stored or not: where embeddings are tied, it is a copy of them."""


def check_tensors(
    found: Mapping[str, Tensor], base: Mapping[str, Tensor], config: Config, base_config: Config
) -> None:
    """Refuse tensors that are not the base model's by name, shape and kind. The configuration was checked."""
    size, rows = config_value(config, VOCABULARY), config_value(base_config, VOCABULARY)
    grown = {name: _grow_shape(tensor.shape, rows, size) for name, tensor in base.items()}
    if HEAD in found and HEAD not in base:
        found = {name: tensor for name, tensor in found.items() if name != HEAD} | _keep_untied_head(found)
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
        text = "; ".join(f"{fault}: {format_values(names)}" for fault, names in faults.items() if names)
        raise Refusal(f"The tensors are not the base model's. They are {text}.", f"Unwrap the model. {MEND}")


def _grow_shape(shape: tuple[int, ...], rows: int | None, size: int | None) -> tuple[int, ...]:
    """The shape with the submission's vocabulary, where its rows are the vocabulary."""
    return (size, *shape[1:]) if size is not None and shape and shape[0] == rows else shape


def _keep_untied_head(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
