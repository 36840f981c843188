"""Load a model for training, and save it as a complete submission in safetensors with its tokenizer.

Weights are trained in float32, because bfloat16 loses small steps. A GPU multiplies them in bfloat16
(`policy`). Code that comes with a model is never executed.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from agent2rl.core.errors import UserError
from agent2rl.engines.transformers.attention import use_packed_attention
from agent2rl.engines.transformers.loading import disable_onednn_on_arm

logger = logging.getLogger(__name__)


def load(directory: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model in float32 (on the GPU if there is one) and its tokenizer. Dropout is and stays off."""
    if not directory.is_dir():
        raise UserError(f"There is no model directory {str(directory)!r}.")
    disable_progress_bar()  # type: ignore[no-untyped-call]
    # There it takes 0.6 ms to start each matrix product, however small.
    disable_onednn_on_arm()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    use_packed_attention(model)
    logger.debug("Loaded %s on %s", directory, device)
    return model.to(device).eval(), tokenizer


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write a complete checkpoint into a new directory."""
    if directory.exists():
        raise UserError(f"{directory} already exists.", "Save each checkpoint into a new directory.")
    directory.mkdir(parents=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def count_parameters(model: PreTrainedModel) -> int:
    """Return the number of parameters."""
    return sum(tensor.numel() for tensor in model.parameters())
