"""Whose weights: children are told from strangers, and disguises are not taken for either."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import save_file
from transformers import LlamaForCausalLM

from agent2rl import registry
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.checks import check_submission
from agent2rl.grading.lineage import LineageReport, lineage
from agent2rl.grading.resaved_base import ResavedBase
from agent2rl.grading.verify import verify
from agent2rl.models.abacus import Abacus
from tests import families
from tests.families import Weights, weights
from tests.runs import Bench


@pytest.fixture(scope="module")
def parent() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return families.pretrained(0)


@pytest.fixture(scope="module")
def child(parent: LlamaForCausalLM) -> LlamaForCausalLM:
    return families.child(parent, 1e-4)


@pytest.fixture(scope="module")
def stranger() -> Weights:
    return weights(families.pretrained(1))


@pytest.fixture(scope="module")
def base(parent: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return read_base_model(families.write(weights(parent), parent, tmp_path_factory.mktemp("base")))


@pytest.fixture
def told(parent: LlamaForCausalLM, base: BaseModel, tmp_path: Path) -> Callable[[Weights], LineageReport]:
    """The lineage of some weights that pass the checks."""

    def tell(tensors: Weights) -> LineageReport:
        submission = families.write(tensors, parent, tmp_path / "submission")
        check_submission(submission, base, ResavedBase)
        return lineage(submission, base)

    return tell


Told = Callable[[Weights], LineageReport]


# Children


@pytest.mark.parametrize("rate", [1e-5, 1e-4, 1e-3, 3e-3, 1e-2])
def test_a_fine_tuned_child_is_derived(parent: LlamaForCausalLM, told: Told, rate: float) -> None:
    report = told(weights(families.child(parent, rate)))
    assert report.verdict == "derived", report.reason
    assert report.message == ""
    assert report.unchanged_tensors == 0
    assert report.retained == pytest.approx(1, abs=0.1)


def test_training_that_moves_weights_beyond_their_own_length_is_unknown_but_not_foreign(
    parent: LlamaForCausalLM, told: Told
) -> None:
    report = told(weights(families.child(parent, 1e-2, steps=200)))
    assert (report.verdict, report.statistic) == ("unknown", "added")


def test_weight_decay_does_not_make_a_child_a_stranger(parent: LlamaForCausalLM, told: Told) -> None:
    assert told(weights(families.child(parent, 1e-3, steps=100, weight_decay=0.3))).verdict == "derived"


def test_a_child_of_reinforcement_is_derived(parent: LlamaForCausalLM, told: Told) -> None:
    child = weights(families.reinforced(parent, 1e-3))
    assert told(child).verdict == "derived"


def test_a_child_with_frozen_layers_is_derived_with_its_share_of_unchanged_tensors(
    parent: LlamaForCausalLM, child: LlamaForCausalLM, told: Told
) -> None:
    trained, own = weights(child), weights(parent)
    report = told({name: (trained if "q_proj" in name else own)[name] for name in own})
    assert report.verdict == "derived"
    assert report.unchanged_tensors == pytest.approx(1 - 2 / len(own))
    assert {tensor.name for tensor in report.tensors if tensor.distance} == {
        f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)
    }


def test_training_norms_alone_is_derived(parent: LlamaForCausalLM, told: Told) -> None:
    own = weights(parent)
    assert told({name: 1.1 * own[name] if "norm" in name else own[name] for name in own}).verdict == "derived"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_another_precision_is_no_other_ancestry(
    child: LlamaForCausalLM, told: Told, dtype: torch.dtype
) -> None:
    assert told({name: tensor.to(dtype) for name, tensor in weights(child).items()}).verdict == "derived"


def test_added_vocabulary_is_no_other_ancestry(
    child: LlamaForCausalLM, base: BaseModel, tmp_path: Path
) -> None:
    grown = families.clone(child)
    grown.resize_token_embeddings(families.VOCABULARY + 8, mean_resizing=False)
    grown.save_pretrained(tmp_path)
    check_submission(tmp_path, base, ResavedBase)
    assert lineage(tmp_path, base).verdict == "derived"


def test_the_base_in_a_wider_precision_is_a_copy(parent: LlamaForCausalLM, told: Told) -> None:
    report = told({name: tensor.double() for name, tensor in weights(parent).items()})
    assert (report.verdict, report.unchanged_tensors) == ("copied", 1)


@pytest.mark.parametrize("problems", [30, 400])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_trained_abacus_is_derived_though_its_head_moved_far(
    tmp_path: Path, problems: int, seed: int
) -> None:
    Abacus.base().save(tmp_path / "base")
    rows = registry.task("gsm8k-mini").load(None).train[:problems]
    model = Abacus.base()
    model.fit([row.prompt for row in rows], [row.target for row in rows], seed=seed)
    model.save(tmp_path / "child")
    report = lineage(tmp_path / "child", read_base_model(tmp_path / "base"))
    assert report.verdict == "derived", report.reason


def test_an_abacus_of_other_weights_is_foreign(tmp_path: Path) -> None:
    Abacus.base().save(tmp_path / "base")
    dice = np.random.default_rng(1)
    other = Abacus.base()
    other.weight = dice.normal(0, 0.01, other.weight.shape).astype(np.float32)
    other.save(tmp_path / "other")
    assert lineage(tmp_path / "other", read_base_model(tmp_path / "base")).verdict == "foreign"


# Strangers and mixtures


def test_another_seed_is_foreign_and_hears_how_to_mend_it(told: Told, stranger: Weights) -> None:
    report = told(stranger)
    assert report.verdict == "foreign"
    assert report.statistic == "lost_matrices"
    assert "$MODEL_PATH" in report.message


def test_a_fine_tuned_stranger_is_foreign(parent: LlamaForCausalLM, told: Told, stranger: Weights) -> None:
    other = families.with_weights(parent, stranger)
    assert told(weights(families.child(other, 1e-3))).verdict == "foreign"


def test_re_initialised_weights_are_foreign(told: Told) -> None:
    assert told(weights(families.newborn(5))).verdict == "foreign"


def test_another_run_from_the_same_first_weights_is_not_derived(told: Told) -> None:
    assert told(weights(families.pretrained(0, language=7))).verdict == "unknown"


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.05, "unknown"), (0.2, "unknown"), (0.5, "unknown"), (0.7, "unknown"), (0.9, "foreign")],
)
def test_a_mixture_with_a_stranger_is_not_derived_and_its_share_is_told(
    parent: LlamaForCausalLM, told: Told, stranger: Weights, share: float, verdict: str
) -> None:
    own = weights(parent)
    report = told({name: torch.lerp(own[name], stranger[name], share) for name in own})
    assert report.verdict == verdict
    assert report.retained == pytest.approx(1 - share, abs=0.05)


@pytest.mark.parametrize(("scale", "verdict"), [(0.1, "derived"), (0.5, "derived"), (3, "unknown")])
def test_noise_is_derived_until_it_outweighs_the_base(
    parent: LlamaForCausalLM, told: Told, scale: float, verdict: str
) -> None:
    dice = torch.Generator().manual_seed(0)
    noisy = {
        name: tensor + scale * tensor.square().mean().sqrt() * torch.randn(tensor.shape, generator=dice)
        for name, tensor in weights(parent).items()
    }
    assert told(noisy).verdict == verdict


def test_one_swapped_layer_is_named(parent: LlamaForCausalLM, told: Told, stranger: Weights) -> None:
    own = weights(parent)
    report = told({name: (stranger if ".layers.1.mlp" in name else own)[name] for name in own})
    assert report.verdict == "unknown"
    assert "model.layers.1.mlp.down_proj.weight" in report.reason
    assert "model.layers.0" not in report.reason


# Disguises


DISGUISES: list[Callable[[Weights], Weights]] = [
    families.permuted_heads,
    families.permuted_neurons,
    lambda tensors: families.permuted_neurons(tensors, share=0.1),
    families.flipped_values,
    families.rescaled_pairs,
    lambda tensors: families.rescaled_pairs(tensors, factor=1.1),
    families.rescaled_neurons,
    families.permuted_stream,
]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_weights_rearranged_to_the_same_function_are_not_silently_derived(
    parent: LlamaForCausalLM,
    child: LlamaForCausalLM,
    told: Told,
    disguise: Callable[[Weights], Weights],
    trained: bool,
) -> None:
    model = child if trained else parent
    disguised = disguise(weights(model))
    line = families.text(0)[:2]
    with torch.no_grad():
        same = families.with_weights(parent, disguised)(input_ids=line).logits
        assert torch.allclose(same, model(input_ids=line).logits, atol=1e-3)
    report = told(disguised)
    assert report.verdict == "unknown"
    assert "rearranged" in report.reason


# Whatever it is, there is a verdict


VALUES = st.one_of(st.floats(width=32), st.sampled_from([0.0, 1.0, float("nan"), float("inf"), 3e38]))


@settings(max_examples=60)
@given(data=st.data(), shape=st.sampled_from([(0,), (0, 8), (1,), (3,), (8, 128), (32, 32)]))
def test_any_weights_get_a_verdict_that_can_be_written_down(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, shape: tuple[int, ...]
) -> None:
    root = tmp_path_factory.mktemp("any")
    for name in ("base", "submission"):
        (root / name).mkdir()
        (root / name / "config.json").write_text("{}")
        tensor = data.draw(arrays(np.float32, shape, elements=VALUES))
        save_file({"weight": tensor, "one": np.ones((), np.float16)}, root / name / "model.safetensors")
    report = lineage(root / "submission", read_base_model(root / "base"))
    assert LineageReport.model_validate_json(report.model_dump_json()) == report
    json.dumps(report.model_dump(), allow_nan=False)
    shutil.rmtree(root)


def test_weights_with_nan_are_unknown_and_named(parent: LlamaForCausalLM, told: Told) -> None:
    broken = weights(parent)
    broken["model.layers.0.mlp.up_proj.weight"][0, 0] = torch.nan
    report = told(broken)
    assert report.verdict == "unknown"
    assert "model.layers.0.mlp.up_proj.weight" in report.reason


def test_weights_of_zeros_are_foreign(parent: LlamaForCausalLM, told: Told) -> None:
    assert (
        told({name: torch.zeros_like(tensor) for name, tensor in weights(parent).items()}).verdict
        == "foreign"
    )


# In a run


def test_a_foreign_submission_is_scored_but_never_the_best_and_the_record_pins_why(bench: Bench) -> None:
    run = bench.run(
        """
import numpy
from agent2rl.models.abacus import Abacus
own = submit(trained("own", problems=30))
model = Abacus.load(trained("other", problems=200))
model.weight -= Abacus.load(MODEL).weight
model.weight += numpy.random.default_rng(1).normal(0, 0.01, model.weight.shape).astype("float32")
model.save(OUTPUT / "other")
say(own=own, other=submit(OUTPUT / "other"))
""",
        "--budget",
        "2m",
    )
    own, other = run.said["own"], run.said["other"]
    assert (own["lineage"], own["message"]) == ("derived", "")
    assert (other["verdict"], other["lineage"]) == ("scored", "foreign")
    assert other["score"] > own["score"]
    assert "cannot be the best" in other["message"]
    assert run.result.best is not None
    assert run.result.best.id == own["submission_id"]
    assert verify(run.paths).holds
    where = run.paths.submission(2).lineage
    assert LineageReport.model_validate_json(where.read_bytes()).verdict == "foreign"
    where.write_text(where.read_text().replace("foreign", "derived"))
    assert verify(run.paths).fault == "submissions/2/lineage.json was changed"
