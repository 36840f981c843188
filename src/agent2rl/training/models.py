"""Loads a model to train it, and saves it as a submission: complete, merged, safetensors, with its tokenizer.

Weights are float32 wherever they are trained, since small steps are lost in bfloat16. A GPU multiplies them
in TF32: GRPO through bfloat16 autocast met gradients that are not finite (docs/design/training.md). Code
that a model brings along is never run.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from agent2rl.core.errors import UserError
from agent2rl.engines.transformers.loading import disable_onednn_on_arm


def load(directory: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in float32 on the GPU if there is one, and its tokenizer. Dropout is off, and stays so."""
    if not directory.is_dir():
        raise UserError(f"There is no model directory {str(directory)!r}.")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    disable_onednn_on_arm()
    where = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    return model.to(where).eval(), tokenizer


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write the whole checkpoint into a new directory."""
    if directory.exists():
        raise UserError(f"{directory} is there already.", "Save each checkpoint into a directory of its own.")
    directory.mkdir(parents=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def count_parameters(model: PreTrainedModel) -> int:
    """How many weights are trained."""
    return sum(tensor.numel() for tensor in model.parameters())
