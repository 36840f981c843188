"""Attention by bounds instead of masks, where there is a GPU: as near to the truth as with masks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent2rl.engines.transformers.forward_pass import ForwardPass
from agent2rl.engines.transformers.kv_cache import BatchKVCache
from agent2rl.engines.transformers.loading import describe_model
from tests.helpers.tiny_models import write_tiny_llama

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

LENGTHS = (200, 150, 33, 199)


def test_rows_of_different_lengths_read_step_by_step_and_loaded_again_give_the_masks_logits(
    tmp_path: Path,
) -> None:
    directory = write_tiny_llama(tmp_path)

    truth = _logits(directory, torch.float32, ragged=False)
    masks = _logits(directory, torch.bfloat16, ragged=False)
    bounds = _logits(directory, torch.bfloat16, ragged=True)

    rounding = max(_far(*pair) for pair in zip(masks, truth, strict=True))
    assert max(_far(*pair) for pair in zip(bounds, truth, strict=True)) < 1.5 * rounding


def _far(found: Tensor, right: Tensor) -> float:
    return float((found - right).abs().mean() / right.abs().mean())


@torch.inference_mode()
def _logits(directory: Path, dtype: torch.dtype, ragged: bool) -> list[Tensor]:
    network: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    model = describe_model(network.cuda(), AutoTokenizer.from_pretrained(directory))
    forward = ForwardPass(model)
    forward.ragged = ragged
    ids = torch.randint(6, 250, (4, 400), generator=torch.Generator().manual_seed(0)).cuda()
    rows, columns = BatchKVCache.from_prefixes(
        model.depth, model.device, [(None, 0, length) for length in LENGTHS]
    )
    found = [forward(rows, ids[:, :columns]), forward(rows, ids[:, 200:230])]
    found += [forward.decode_step(rows, ids[:, column : column + 1]).clone() for column in range(230, 235)]
    width = rows.span.width
    kept = rows.extract_prefixes([(row, width, [0] * int(width - rows.starts[row])) for row in (0, 2, 3)])
    texts = [(kept[0], len(kept[0].tokens), 9), (kept[1], len(kept[1].tokens), 21), (kept[2], 100, 21)]
    again, columns = BatchKVCache.from_prefixes(model.depth, model.device, texts)
    found.append(forward(again, ids[:3, 300 : 300 + columns]))
    found.append(forward.decode_step(again, ids[:3, 350:351]).clone())
    return [logits.float() for logits in found]
