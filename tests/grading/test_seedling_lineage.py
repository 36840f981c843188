"""The shipped model's kin, made as agents make them: its children are its own, and all else is not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from scripts.seedling import corpus, pretrain
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from agent2rl import registry
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.checks import ResavedBase, check_submission
from agent2rl.grading.lineage import LineageReport, trace_lineage
from agent2rl.training import models
from agent2rl.training.grpo import GrpoSettings, grpo
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.sft import SftSettings, sft
from tests.helpers import model_families
from tests.helpers.model_families import Weights, get_weights

STEPS, ROWS, LENGTH = 60, 4, 48
"""Of the other seed's pretraining: enough to learn which tokens are frequent, and little more."""
Told = Callable[[Weights], LineageReport]

pytestmark = pytest.mark.thorough  # test_lineage.py asks the same of smaller models


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    directory = tmp_path_factory.mktemp("seedling")
    registry.find_model("seedling").write(directory)
    return read_base_model(directory)


@pytest.fixture(scope="module")
def own(base: BaseModel) -> Weights:
    return stored(models.load(base.directory)[0])


@pytest.fixture
def told(base: BaseModel, tmp_path: Path) -> Told:
    """The lineage of some weights that pass the checks."""

    def tell(tensors: Weights) -> LineageReport:
        registry.find_model("seedling").write(tmp_path)
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, tmp_path / "model.safetensors", metadata={"format": "pt"})
        check_submission(tmp_path, base, ResavedBase)
        return trace_lineage(tmp_path, base)

    return tell


def stored(model: PreTrainedModel) -> Weights:
    assert isinstance(model, LlamaForCausalLM)
    return get_weights(model)


def newborn(seed: int) -> Any:
    """A seedling as its pretraining begins."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(pretrain.build_config())  # type: ignore[no-untyped-call]


def text(base: BaseModel, seed: int) -> torch.Tensor:
    """The first documents of a pretraining, as one row of tokens."""
    tokenizer = models.load(base.directory)[1]
    documents = list(corpus.write_documents(seed * 10**9 + 10**6, 400))
    rows = [[*row, 1] for row in tokenizer(documents)["input_ids"]]
    return torch.tensor([token for row in rows for token in row])


@pytest.fixture(scope="module")
def stranger(base: BaseModel) -> Weights:
    """A seedling from another seed, which has begun to learn."""
    model, tokens, losses = newborn(1), text(base, 1), []
    optimizer = torch.optim.AdamW(model.parameters(), pretrain.PEAK, betas=(0.9, 0.95), weight_decay=0.1)
    dice = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        starts = torch.randint(len(tokens) - LENGTH, (ROWS,), generator=dice)
        batch = tokens[starts[:, None] + torch.arange(LENGTH)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < losses[0] - 2
    return get_weights(model)


def tuned(base: BaseModel, rate: float) -> Weights:
    """After a few steps of SFT."""
    model, tokenizer = models.load(base.directory)
    rows = registry.find_task("gsm8k-mini").load(None).train[:16]
    settings = SftSettings(learning_rate=rate, epochs=2, batch_size=4)
    pairs = [(row.prompt, row.target) for row in rows]
    assert sft(model, tokenizer, pairs, settings, TrainingProgress("sft")).steps == 8
    return stored(model)


def reinforced(base: BaseModel, rate: float) -> Weights:
    """After a few steps of GRPO, for short answers: every group has shorter ones and longer ones."""
    model, tokenizer = models.load(base.directory)
    asked = [row.prompt for row in registry.find_task("gsm8k-mini").load(None).train[:8]]
    settings = GrpoSettings(learning_rate=rate, steps=3, prompts=4, group=4, max_tokens=24)
    grpo(model, tokenizer, asked, lambda _, answer: -float(len(answer)), settings, TrainingProgress("grpo"))
    return stored(model)


def test_the_shipped_files_are_a_copy(own: Weights, told: Told) -> None:
    assert told(own).verdict == "copied"


# Children


@pytest.mark.parametrize("rate", [1e-5, 5e-4, 2e-3])
def test_a_fine_tuned_seedling_is_derived(base: BaseModel, told: Told, rate: float) -> None:
    report = told(tuned(base, rate))
    assert report.verdict == "derived", report.reason
    assert report.message == ""
    assert report.unchanged_tensors < 1
    assert report.retained == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("rate", [1e-4, 1e-3])
def test_a_reinforced_seedling_is_derived(base: BaseModel, told: Told, rate: float) -> None:
    report = told(reinforced(base, rate))
    assert report.verdict == "derived", report.reason
    assert report.unchanged_tensors < 1
    assert report.retained == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("scale", "verdict"), [(0.1, "derived"), (0.5, "derived"), (3, "unknown")])
def test_noise_is_derived_until_it_outweighs_the_seedling(
    own: Weights, told: Told, scale: float, verdict: str
) -> None:
    dice = torch.Generator().manual_seed(0)
    noisy = {
        name: tensor + scale * tensor.square().mean().sqrt() * torch.randn(tensor.shape, generator=dice)
        for name, tensor in own.items()
    }
    assert told(noisy).verdict == verdict


# Strangers and mixtures


def test_a_seedling_from_another_seed_is_foreign(told: Told, stranger: Weights) -> None:
    report = told(stranger)
    assert report.verdict == "foreign"
    assert report.retained == pytest.approx(0, abs=0.02)
    assert "$MODEL_PATH" in report.message


def test_first_weights_are_foreign(told: Told) -> None:
    assert told(get_weights(newborn(7))).verdict == "foreign"


def test_a_mixture_of_two_seedlings_is_not_derived_and_not_silent(
    own: Weights, told: Told, stranger: Weights
) -> None:
    report = told({name: torch.lerp(own[name], stranger[name], 0.3) for name in own})
    assert report.verdict == "unknown"
    assert report.retained == pytest.approx(0.7, abs=0.02)
    assert report.message


@pytest.mark.parametrize("per_matrix", [True, False])
@pytest.mark.parametrize(("factor", "verdict"), [(0.4, "unknown"), (0.8, "unknown"), (3.0, "unknown")])
def test_another_seedling_added_to_the_whole_seedling_is_not_derived(
    own: Weights, told: Told, stranger: Weights, factor: float, per_matrix: bool, verdict: str
) -> None:
    report = told(model_families.add_weights(own, stranger, factor, per_matrix))
    assert (report.verdict, report.statistic) == (verdict, "alignment")
    assert report.retained == pytest.approx(1, abs=0.03)
    assert report.message


def test_a_little_of_short_weights_passes_as_weight_decay(own: Weights, told: Told) -> None:
    """First weights are far shorter than trained ones: docs/design/lineage.md has the limit."""
    first = get_weights(newborn(7))
    assert told({name: torch.lerp(own[name], first[name], 0.05) for name in own}).verdict == "derived"


# Disguises


@pytest.mark.parametrize(
    "disguise",
    [
        model_families.permute_heads,
        model_families.permute_neurons,
        model_families.flip_values,
        model_families.rescale_projections,
        model_families.rescale_neurons,
        model_families.permute_residual_stream,
    ],
)
def test_a_rearranged_seedling_is_never_derived(
    own: Weights, told: Told, disguise: Callable[[Weights], Weights]
) -> None:
    report = told(disguise(own))
    assert report.verdict == "unknown"
    assert "rearranged" in report.reason


def test_an_edit_of_a_few_numbers_is_not_called_training(base: BaseModel, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base.directory)
    with torch.no_grad():
        model.model.embed_tokens.weight[1, :7] += 1.0
    model.save_pretrained(tmp_path)
    report = trace_lineage(tmp_path, base)
    assert report.verdict == "unknown"
    assert report.reason.startswith("Only 7 of 2,")
