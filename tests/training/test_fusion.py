"""Small operations are fused on GPUs; on a CPU a model stays as it is."""

from pathlib import Path

import pytest
import torch

from agent2rl.training import fusion, models
from agent2rl.training.sampling import PolicySampler
from tests.helpers.tiny_models import write_tiny_llama


def test_on_a_cpu_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("something was compiled"))
    model, tokenizer = models.load(write_tiny_llama(tmp_path / "model"))
    fusion.fuse_small_operations(model)
    PolicySampler(model, tokenizer, fused=True)
    assert not [module for module in model.modules() if "forward" in vars(module)]


def test_where_torch_cannot_compile_a_function_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "is_compiler_working", lambda: False)

    def double(number: int) -> int:
        return 2 * number

    assert fusion.compile_function(double) is double
