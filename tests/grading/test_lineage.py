"""Whose weights: children are told from strangers, and disguises are not taken for either."""

import json
import shutil
import threading
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
from agent2rl.core.errors import GradingError
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.checks import ResavedBase, check_submission
from agent2rl.grading.lineage import LineageReport, differs_from_base, trace_lineage, trace_weights
from agent2rl.grading.verify import verify_run
from agent2rl.models.abacus import Abacus
from tests.helpers import model_families
from tests.helpers.model_families import Weights, get_weights
from tests.helpers.run_launcher import RunLauncher

THOROUGH = pytest.mark.thorough  # the rates and ranks beside them show nearly the same


@pytest.fixture(scope="module")
def parent() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return model_families.pretrain_model(0, steps=150)


@pytest.fixture(scope="module")
def child(parent: LlamaForCausalLM) -> LlamaForCausalLM:
    return model_families.finetune_child(parent, 1e-4)


@pytest.fixture(scope="module")
def stranger() -> Weights:
    return get_weights(model_families.pretrain_model(1))


@pytest.fixture(scope="module")
def distant_stranger() -> Weights:
    """From another seed, of another language."""
    return get_weights(model_families.pretrain_model(1, language=7))


@pytest.fixture(scope="module")
def base(parent: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return read_base_model(
        model_families.write_model(get_weights(parent), parent, tmp_path_factory.mktemp("base"))
    )


@pytest.fixture
def told(parent: LlamaForCausalLM, base: BaseModel, tmp_path: Path) -> Callable[[Weights], LineageReport]:
    """The lineage of some weights that pass the checks."""

    def tell(tensors: Weights) -> LineageReport:
        submission = model_families.write_model(tensors, parent, tmp_path / "submission")
        check_submission(submission, base, ResavedBase)
        return trace_lineage(submission, base)

    return tell


Told = Callable[[Weights], LineageReport]


# Children


@pytest.mark.parametrize(
    "rate",
    [
        1e-5,
        pytest.param(1e-4, marks=THOROUGH),
        pytest.param(1e-3, marks=THOROUGH),
        pytest.param(3e-3, marks=THOROUGH),
        1e-2,
    ],
)
def test_a_fine_tuned_child_is_derived(parent: LlamaForCausalLM, told: Told, rate: float) -> None:
    report = told(get_weights(model_families.finetune_child(parent, rate)))
    assert report.verdict == "derived", report.reason
    assert report.message == ""
    assert report.unchanged_tensors == 0
    assert report.retained == pytest.approx(1, abs=0.1)


@pytest.mark.thorough
def test_training_that_moves_weights_beyond_their_own_length_is_unknown_but_not_foreign(
    parent: LlamaForCausalLM, told: Told
) -> None:
    report = told(get_weights(model_families.finetune_child(parent, 1e-2, steps=200)))
    assert (report.verdict, report.statistic) == ("unknown", "added")


def test_weight_decay_does_not_make_a_child_a_stranger(parent: LlamaForCausalLM, told: Told) -> None:
    assert (
        told(get_weights(model_families.finetune_child(parent, 1e-3, steps=100, weight_decay=0.3))).verdict
        == "derived"
    )


def test_a_child_of_reinforcement_is_derived(parent: LlamaForCausalLM, told: Told) -> None:
    child = get_weights(model_families.train_with_reward(parent, 1e-3))
    assert told(child).verdict == "derived"


@pytest.mark.parametrize(
    ("rank", "rate"),
    [pytest.param(4, 1e-3, marks=THOROUGH), (4, 1e-2), pytest.param(16, 3e-3, marks=THOROUGH)],
)
def test_a_merged_adapter_is_derived(parent: LlamaForCausalLM, told: Told, rank: int, rate: float) -> None:
    report = told(model_families.finetune_with_lora(parent, rate, rank))
    assert report.verdict == "derived", report.reason


def test_a_merged_adapter_that_moves_weights_beyond_their_own_length_is_not_foreign(
    parent: LlamaForCausalLM, told: Told
) -> None:
    report = told(model_families.finetune_with_lora(parent, 1e-2, rank=16))
    assert (report.verdict, report.statistic) == ("unknown", "added")


def test_a_child_with_frozen_layers_is_derived_with_its_share_of_unchanged_tensors(
    parent: LlamaForCausalLM, child: LlamaForCausalLM, told: Told
) -> None:
    trained, own = get_weights(child), get_weights(parent)
    report = told({name: (trained if "q_proj" in name else own)[name] for name in own})
    assert report.verdict == "derived"
    assert report.unchanged_tensors == pytest.approx(1 - 2 / len(own))
    assert {tensor.name for tensor in report.tensors if tensor.distance} == {
        f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)
    }


def test_training_norms_alone_is_derived(parent: LlamaForCausalLM, told: Told) -> None:
    own = get_weights(parent)
    assert told({name: 1.1 * own[name] if "norm" in name else own[name] for name in own}).verdict == "derived"


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=THOROUGH), torch.float64]
)
def test_another_precision_is_no_other_ancestry(
    child: LlamaForCausalLM, told: Told, dtype: torch.dtype
) -> None:
    assert told({name: tensor.to(dtype) for name, tensor in get_weights(child).items()}).verdict == "derived"


def test_added_vocabulary_is_no_other_ancestry(
    child: LlamaForCausalLM, base: BaseModel, tmp_path: Path
) -> None:
    grown = model_families.clone_model(child)
    grown.resize_token_embeddings(model_families.VOCABULARY + 8, mean_resizing=False)
    grown.save_pretrained(tmp_path)
    check_submission(tmp_path, base, ResavedBase)
    report = trace_lineage(tmp_path, base)
    assert report.verdict == "derived"
    assert report.added_rows == 8


@pytest.mark.parametrize("length", [0.0, pytest.param(0.5, marks=THOROUGH), 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_base_with_rows_for_added_tokens_is_a_copy_and_the_rows_are_measured(
    parent: LlamaForCausalLM, base: BaseModel, tmp_path: Path, length: float, dtype: torch.dtype
) -> None:
    grown = model_families.clone_model(parent)
    usual = grown.model.embed_tokens.weight.norm(dim=1).quantile(0.5)
    grown.resize_token_embeddings(model_families.VOCABULARY + 8, mean_resizing=False)
    with torch.no_grad():
        added = grown.model.embed_tokens.weight[model_families.VOCABULARY :]
        added.mul_(length * usual / added.norm(dim=1, keepdim=True))
    torch.nn.Module.to(grown, dtype)
    grown.save_pretrained(tmp_path)
    check_submission(tmp_path, base, ResavedBase)
    report = trace_lineage(tmp_path, base)
    assert (report.verdict, report.unchanged_tensors, report.message) == ("copied", 1, "")
    assert report.reason == "Every base value is unchanged; only rows for added tokens are new."
    assert report.added_rows == 8
    assert report.added_row_length == pytest.approx(length, rel=1e-3)
    measured = {tensor.name: tensor.added_rows for tensor in report.tensors if tensor.added_rows}
    assert measured == {"model.embed_tokens.weight": 8}


def test_rows_for_added_tokens_in_a_vector_or_in_a_dtype_without_arithmetic_leave_a_copy(
    tmp_path: Path,
) -> None:
    """A head's bias has one value per token; eight-bit numbers are compared by their bytes."""
    dice = np.random.default_rng(0)
    matrix, bias = dice.normal(size=(32, 40)).astype(np.float32), np.ones(32, np.float32)
    codes = dice.integers(0, 100, (32, 40)).astype(np.int8)
    for name, rows in (("base", 32), ("grown", 35)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        stored: dict[str, np.ndarray] = {"head": matrix, "bias": bias, "codes": codes}
        longer = {key: np.concatenate([value, value[: rows - 32]]) for key, value in stored.items()}
        save_file(longer, tmp_path / name / "model.safetensors")
    report = trace_lineage(tmp_path / "grown", read_base_model(tmp_path / "base"))
    assert report.verdict == "copied", report
    assert report.added_rows == 3
    assert {tensor.name: tensor.added_row_length is None for tensor in report.tensors} == {
        "head": False,
        "bias": False,
        "codes": True,
    }


def test_rows_for_added_tokens_that_are_not_finite_can_be_written_down(
    parent: LlamaForCausalLM, base: BaseModel, tmp_path: Path
) -> None:
    grown = model_families.clone_model(parent)
    grown.resize_token_embeddings(model_families.VOCABULARY + 1, mean_resizing=False)
    with torch.no_grad():
        grown.model.embed_tokens.weight[model_families.VOCABULARY :] = torch.nan
    grown.save_pretrained(tmp_path)
    report = trace_lineage(tmp_path, base)
    assert (report.verdict, report.added_rows, report.added_row_length) == ("copied", 1, None)
    json.dumps(report.model_dump(), allow_nan=False)


@pytest.mark.thorough
def test_a_report_from_before_added_rows_were_measured_can_still_be_read(
    told: Told, stranger: Weights
) -> None:
    report = told(stranger).model_dump()
    new = ("added_rows", "added_row_length", "alignment", "structure")
    for record in (report, *report["tensors"]):
        for field in new:
            record.pop(field, None)
    assert LineageReport.model_validate(report).verdict == "foreign"


def test_the_base_in_a_wider_precision_is_a_copy(parent: LlamaForCausalLM, told: Told) -> None:
    report = told({name: tensor.double() for name, tensor in get_weights(parent).items()})
    assert (report.verdict, report.unchanged_tensors) == ("copied", 1)


@pytest.mark.parametrize("problems", [pytest.param(30, marks=THOROUGH), 400])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_trained_abacus_is_derived_though_its_head_moved_far(
    tmp_path: Path, problems: int, seed: int
) -> None:
    Abacus.base().save(tmp_path / "base")
    rows = registry.find_task("gsm8k-mini").load(None).train[:problems]
    model = Abacus.base()
    model.fit([row.prompt for row in rows], [row.target for row in rows], seed=seed)
    model.save(tmp_path / "child")
    report = trace_lineage(tmp_path / "child", read_base_model(tmp_path / "base"))
    assert report.verdict == "derived", report.reason


@pytest.mark.thorough
def test_an_abacus_trained_on_all_problems_is_no_stranger_though_most_values_changed(tmp_path: Path) -> None:
    Abacus.base().save(tmp_path / "base")
    rows = registry.find_task("gsm8k-mini").load(None).train
    model = Abacus.base()
    model.fit([row.prompt for row in rows], [row.target for row in rows])
    model.save(tmp_path / "child")
    report = trace_lineage(tmp_path / "child", read_base_model(tmp_path / "base"))
    head = next(tensor for tensor in report.tensors if tensor.name == "head.weight")
    assert head.unchanged is not None
    assert 0.25 < head.unchanged < 0.5, "the case that this test is about"
    assert (report.verdict, report.statistic) == ("unknown", "partly_matrices"), report.reason
    assert "head.weight" in report.reason


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_a_few_values_of_the_base_make_no_child_of_a_stranger(
    parent: LlamaForCausalLM, told: Told, stranger: Weights, share: float
) -> None:
    own, dice = get_weights(parent), torch.Generator().manual_seed(0)
    mask = {name: torch.rand(each.shape, generator=dice) < share for name, each in own.items()}
    spliced = {name: torch.where(mask[name], own[name], stranger[name]) for name in own}
    assert told(spliced).verdict == "foreign"


@pytest.mark.parametrize("share", [0.3, pytest.param(0.45, marks=THOROUGH), 0.6])
def test_a_stranger_with_many_values_of_the_base_is_never_derived(
    parent: LlamaForCausalLM, told: Told, stranger: Weights, share: float
) -> None:
    own, dice = get_weights(parent), torch.Generator().manual_seed(0)
    mask = {name: torch.rand(each.shape, generator=dice) < share for name, each in own.items()}
    spliced = {name: torch.where(mask[name], own[name], stranger[name]) for name in own}
    assert told(spliced).verdict == "unknown"


def test_zeros_that_two_pruned_models_share_make_no_child(
    parent: LlamaForCausalLM, stranger: Weights, tmp_path: Path
) -> None:
    """Most of both is pruned away at the same places, so most of the values are equal."""
    own = get_weights(parent)
    mask = {
        name: torch.rand(each.shape, generator=torch.Generator().manual_seed(0)) < 0.6
        for name, each in own.items()
    }
    pruned = {name: each.masked_fill(mask[name], 0) for name, each in own.items()}
    other = {name: each.masked_fill(mask[name], 0) for name, each in stranger.items()}
    base = read_base_model(model_families.write_model(pruned, parent, tmp_path / "base"))
    submission = model_families.write_model(other, parent, tmp_path / "submission")
    assert trace_lineage(submission, base).verdict == "foreign"


def test_an_abacus_of_other_weights_is_foreign(tmp_path: Path) -> None:
    Abacus.base().save(tmp_path / "base")
    dice = np.random.default_rng(1)
    other = Abacus.base()
    other.weight = dice.normal(0, 0.01, other.weight.shape).astype(np.float32)
    other.save(tmp_path / "other")
    assert trace_lineage(tmp_path / "other", read_base_model(tmp_path / "base")).verdict == "foreign"


# Strangers and mixtures


def test_another_seed_is_foreign_and_hears_how_to_mend_it(told: Told, stranger: Weights) -> None:
    report = told(stranger)
    assert report.verdict == "foreign"
    assert report.statistic == "lost_matrices"
    assert "$MODEL_PATH" in report.message


def test_a_fine_tuned_stranger_is_foreign(parent: LlamaForCausalLM, told: Told, stranger: Weights) -> None:
    other = model_families.replace_weights(parent, stranger)
    assert told(get_weights(model_families.finetune_child(other, 1e-3))).verdict == "foreign"


def test_re_initialised_weights_are_foreign(told: Told) -> None:
    assert told(get_weights(model_families.make_random_model(5))).verdict == "foreign"


def test_another_run_from_the_same_first_weights_is_not_derived(told: Told) -> None:
    assert told(get_weights(model_families.pretrain_model(0, language=7))).verdict == "unknown"


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.05, "unknown"), (0.2, "unknown"), (0.5, "unknown"), (0.7, "unknown"), (0.9, "foreign")],
)
def test_a_mixture_with_a_stranger_is_not_derived_and_its_share_is_told(
    parent: LlamaForCausalLM, told: Told, stranger: Weights, share: float, verdict: str
) -> None:
    own = get_weights(parent)
    report = told({name: torch.lerp(own[name], stranger[name], share) for name in own})
    assert report.verdict == verdict
    assert report.retained == pytest.approx(1 - share, abs=0.05)


@pytest.mark.parametrize("which", ["stranger", pytest.param("distant_stranger", marks=THOROUGH)])
@pytest.mark.parametrize("per_matrix", [True, False])
@pytest.mark.parametrize(
    "factor", [0.3, pytest.param(0.5, marks=THOROUGH), pytest.param(0.7, marks=THOROUGH), 0.95]
)
def test_a_stranger_added_to_the_whole_base_is_not_derived(
    parent: LlamaForCausalLM,
    told: Told,
    request: pytest.FixtureRequest,
    which: str,
    factor: float,
    per_matrix: bool,
) -> None:
    other: Weights = request.getfixturevalue(which)
    report = told(model_families.add_weights(get_weights(parent), other, factor, per_matrix))
    assert (report.verdict, report.statistic) == ("unknown", "alignment")
    assert report.retained == pytest.approx(1, abs=0.02)
    assert report.added == pytest.approx(factor, abs=0.05)
    assert "another model" in report.message


@pytest.mark.parametrize("factor", [1.5, 5.0])
def test_a_stranger_longer_than_the_base_that_it_is_added_to_is_foreign(
    parent: LlamaForCausalLM, told: Told, stranger: Weights, factor: float
) -> None:
    report = told(model_families.add_weights(get_weights(parent), stranger, factor))
    assert (report.verdict, report.statistic) == ("foreign", "alignment")
    assert "cannot be the best" in report.message


def test_a_stranger_added_to_a_child_is_not_derived(
    child: LlamaForCausalLM, told: Told, stranger: Weights
) -> None:
    assert told(model_families.add_weights(get_weights(child), stranger, 0.5)).verdict == "unknown"


@pytest.mark.parametrize("factor", [0.2, 0.1])
def test_a_stranger_of_a_quarter_of_the_base_or_less_passes_as_training(
    parent: LlamaForCausalLM, told: Told, stranger: Weights, factor: float
) -> None:
    """docs/design/lineage.md has the limit."""
    assert told(model_families.add_weights(get_weights(parent), stranger, factor)).verdict == "derived"


@pytest.mark.parametrize(("scale", "verdict"), [(0.1, "derived"), (0.5, "derived"), (3, "unknown")])
def test_noise_is_derived_until_it_outweighs_the_base(
    parent: LlamaForCausalLM, told: Told, scale: float, verdict: str
) -> None:
    dice = torch.Generator().manual_seed(0)
    noisy = {
        name: tensor + scale * tensor.square().mean().sqrt() * torch.randn(tensor.shape, generator=dice)
        for name, tensor in get_weights(parent).items()
    }
    assert told(noisy).verdict == verdict


def test_one_swapped_layer_is_named(parent: LlamaForCausalLM, told: Told, stranger: Weights) -> None:
    own = get_weights(parent)
    report = told({name: (stranger if ".layers.1.mlp" in name else own)[name] for name in own})
    assert report.verdict == "unknown"
    assert "model.layers.1.mlp.down_proj.weight" in report.reason
    assert "model.layers.0" not in report.reason


# Disguises


DISGUISES: list[Callable[[Weights], Weights]] = [
    model_families.permute_heads,
    model_families.permute_neurons,
    lambda tensors: model_families.permute_neurons(tensors, share=0.1),
    model_families.flip_values,
    model_families.rescale_projections,
    lambda tensors: model_families.rescale_projections(tensors, factor=1.1),
    model_families.rescale_neurons,
    model_families.permute_residual_stream,
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
    disguised = disguise(get_weights(model))
    line = model_families.make_markov_text(0)[:2]
    with torch.no_grad():
        same = model_families.replace_weights(parent, disguised)(input_ids=line).logits
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
    report = trace_lineage(root / "submission", read_base_model(root / "base"))
    assert LineageReport.model_validate_json(report.model_dump_json()) == report
    json.dumps(report.model_dump(), allow_nan=False)
    shutil.rmtree(root)


def test_weights_with_nan_are_unknown_and_named(parent: LlamaForCausalLM, told: Told) -> None:
    broken = get_weights(parent)
    broken["model.layers.0.mlp.up_proj.weight"][0, 0] = torch.nan
    report = told(broken)
    assert report.verdict == "unknown"
    assert "model.layers.0.mlp.up_proj.weight" in report.reason


def test_weights_of_zeros_are_foreign(parent: LlamaForCausalLM, told: Told) -> None:
    assert (
        told({name: torch.zeros_like(tensor) for name, tensor in get_weights(parent).items()}).verdict
        == "foreign"
    )


# In a run


def test_a_foreign_submission_is_scored_but_never_the_best_and_the_record_pins_why(
    launcher: RunLauncher,
) -> None:
    run = launcher.run(
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
        "20m",
    )
    own, other = run.said["own"], run.said["other"]
    assert (own["lineage"], own["message"]) == ("derived", "")
    assert (other["verdict"], other["lineage"]) == ("scored", "foreign")
    assert other["score"] > own["score"]
    assert "cannot be the best" in other["message"]
    assert run.result.best is not None
    assert run.result.best.id == own["submission_id"]
    assert verify_run(run.paths).holds
    where = run.paths.submission_paths(2).lineage
    assert LineageReport.model_validate_json(where.read_bytes()).verdict == "foreign"
    where.write_text(where.read_text().replace("foreign", "derived"))
    assert verify_run(run.paths).fault == "submissions/2/lineage.json was changed"


# How it is measured


def test_a_sample_tells_a_child_from_the_base_and_leaves_the_rest_to_the_full_comparison(
    parent: LlamaForCausalLM, child: LlamaForCausalLM, base: BaseModel, tmp_path: Path
) -> None:
    own = get_weights(parent)
    edited = {name: tensor.clone() for name, tensor in own.items()}
    edited["model.embed_tokens.weight"].view(-1)[-1] += 1
    wider = {name: tensor.double() for name, tensor in own.items()}
    for name, tensors, differs in (
        ("child", get_weights(child), True),
        ("copy", own, False),
        ("wider", wider, False),
    ):
        submission = model_families.write_model(tensors, parent, tmp_path / name)
        assert differs_from_base(submission, base) == differs, name
        assert trace_weights(submission, base).copied != differs, name
    submission = model_families.write_model(edited, parent, tmp_path / "edited")
    assert not trace_weights(submission, base).copied


def test_the_base_in_other_files_is_told_by_its_digest_alone(
    parent: LlamaForCausalLM, base: BaseModel, tmp_path: Path
) -> None:
    origin = trace_weights(model_families.write_model(get_weights(parent), parent, tmp_path / "copy"), base)
    assert (origin.sha256, origin.lineage) == (base.weights_sha256, None)


def test_the_report_does_not_depend_on_the_number_of_workers(
    parent: LlamaForCausalLM, stranger: Weights, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    for workers in (1, 7):
        monkeypatch.setattr("agent2rl.grading.lineage.MOST_WORKERS", workers)
        reports.append(told(model_families.add_weights(get_weights(parent), stranger, 0.5)))
    assert reports[0] == reports[1]
    assert reports[0].alignment is not None


def test_a_stopped_run_does_not_wait_for_the_comparison(base: BaseModel) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(GradingError, match="stopped"):
        trace_lineage(base.directory, base, stop)
