"""Loads a model directory: safetensors weights and a tokenizer, without running code from it.

The grader has built the directory from the base model's files and checked tensors. A fault in it is a
GradingError that describes it. A generation_config.json is ignored: the evaluator decides how to decode.
"""

import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from agent2rl.core.engine import ChatFormat
from agent2rl.core.errors import GradingError
from agent2rl.engines.prompts import build_loading_error, find_end_tokens, load_chat_format, load_tokenizer
from agent2rl.engines.transformers.attention import use_packed_attention

SUPPORTED_ATTENTIONS = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model and its properties."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    depth: int
    vocabulary: int
    context: int
    """Maximum tokens, prompt and reply together."""
    ends: frozenset[int]
    """Tokens that end a reply."""
    token_bytes: int
    """Memory of one token's keys and values."""
    chat_format: ChatFormat | None = None
    """If set, it replaces the tokenizer's chat template."""


def load_model(directory: Path) -> LoadedModel:
    disable_onednn_on_arm()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = describe_model(_load_network(directory, device), load_tokenizer(directory))
    return replace(model, chat_format=load_chat_format(directory))


def disable_onednn_on_arm() -> None:
    """On ARM, use OpenBLAS for matrix products in this process.

    There torch uses oneDNN for linear layers, which has an overhead of 0.6 ms per product (torch 2.13): seven
    times as long as a small product takes. Large ones take the same time either way.
    """
    if platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def describe_model(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """Return a loaded model from its parts, which are already on their device."""
    use_packed_attention(network)
    config = network.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds - SUPPORTED_ATTENTIONS:
        raise GradingError(
            f"This engine does not run models with {', '.join(sorted(kinds - SUPPORTED_ATTENTIONS))}."
        )
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    depth: int = config.num_hidden_layers
    return LoadedModel(
        network=network.eval(),  # type: ignore[no-untyped-call]
        tokenizer=tokenizer,
        device=network.device,
        depth=depth,
        vocabulary=cast(Tensor, network.get_input_embeddings().weight).shape[0],
        context=getattr(config, "max_position_embeddings", None) or 1 << 30,
        ends=find_end_tokens(config, tokenizer),
        token_bytes=2 * depth * heads * size * network.dtype.itemsize,
    )


def _load_network(directory: Path, device: torch.device) -> PreTrainedModel:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        network, info = _read_weights(directory, device)
    except Exception as error:  # the library raises many kinds of errors for broken files
        raise build_loading_error("The weights cannot be loaded", error) from error
    if missing := sorted(info["missing_keys"]):
        others = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise GradingError(
            f"The weights lack {', '.join(missing[:3])}{others}.",
            "Save the whole model with model.save_pretrained(path).",
        )
    return network


def _read_weights(directory: Path, device: torch.device) -> tuple[PreTrainedModel, dict[str, Any]]:
    options: dict[str, Any] = {
        "dtype": torch.float32 if device.type == "cpu" else torch.bfloat16,
        "local_files_only": True,
        "trust_remote_code": False,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    try:
        # Set explicitly, because the library would download and run one that config.json names.
        loaded: Any = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="sdpa", **options)
    except ValueError as error:
        # The library has this kind of attention for most architectures, but not for all.
        if "scaled_dot_product_attention" not in str(error):
            raise
        loaded = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", **options)
    network, info = loaded
    return network.to(device), info
