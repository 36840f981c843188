"""Fuses the small operations of a network on a GPU, with torch's compiler.

Besides its matrix products a layer has some forty operations, in norms, rotations and activations, and each
is a kernel of its own that reads and writes all activations. Norms, rotations and feed-forward blocks are
compiled as they are, in forward and backward passes. Whole layers are not: their attention depends on rows
and caches that the compiler cannot see. Compiling takes some seconds, which a training of minutes earns back.
"""

import logging
import sys
from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

ROTATION = "apply_rotary_pos_emb"
"""The function of the library's model files that rotates queries and keys."""


def fuse_small_operations(network: PreTrainedModel) -> None:
    """Compile the small parts of a network that is on a GPU; elsewhere nothing changes."""
    if network.device.type != "cuda" or not is_compiler_working():
        return
    for module in network.modules():
        if _is_norm(module) or _is_feed_forward(module):
            # The function of the class, so that it is compiled once and not for each layer.
            module.forward = MethodType(compile_function(type(module).forward), module)
        _compile_rotation(sys.modules[type(module).__module__])


@cache
def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for any sizes; where the compiler does not work, return the function itself."""
    return torch.compile(function, dynamic=True) if is_compiler_working() else function


@cache
def is_compiler_working() -> bool:
    """Check that torch can compile for this GPU: that takes Triton, a C compiler and a writable folder."""
    try:
        torch.compile(_add_one, dynamic=True)(torch.zeros(2, 3, device="cuda"))
    except Exception as error:
        logger.debug("torch cannot compile here: %s", error)
        return False
    return True


def _add_one(numbers: torch.Tensor) -> torch.Tensor:
    return numbers + 1


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    # A `forward` of the instance's own is one that was replaced before.
    return (
        type(module).__name__.endswith("RMSNorm")
        and isinstance(weight, nn.Parameter)
        and "forward" not in vars(module)
    )


def _is_feed_forward(module: nn.Module) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj")
    return all(isinstance(getattr(module, part, None), nn.Linear) for part in parts) and (
        "forward" not in vars(module)
    )


def _compile_rotation(home: Any) -> None:
    plain = getattr(home, ROTATION, None)
    if plain is None or hasattr(plain, "compiled"):
        return
    compiled = compile_function(plain)

    def rotate(query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        # Other models of this process may be on the CPU, and call the same function.
        return (compiled if query.is_cuda else plain)(query, *rest, **options)

    rotate.compiled = compiled  # type: ignore[attr-defined]
    setattr(home, ROTATION, rotate)
