"""Models made from a known sibling of the base are recognised by its fingerprint; children are not."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import LlamaForCausalLM

from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import SiblingDistance
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.fingerprint import Fingerprint, make_fingerprint, read_fingerprint, write_fingerprint
from agent2rl.grading.lineage import LineageReport
from agent2rl.grading.siblings import compare_with_siblings, trace_origin
from agent2rl.grading.verify import verify_run
from agent2rl.record.reader import read_run
from agent2rl.run.assets import load_siblings
from tests.helpers import model_families
from tests.helpers.model_families import Weights, get_weights
from tests.helpers.run_launcher import RunLauncher

REPOSITORY = Path(__file__).resolve().parents[2]
Compare = Callable[[Weights], SiblingDistance]


@pytest.fixture(scope="module")
def parent() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return model_families.pretrain_model(0, steps=60)


@pytest.fixture(scope="module")
def base(parent: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    directory = tmp_path_factory.mktemp("base")
    return read_base_model(model_families.write_model(get_weights(parent), parent, directory))


@pytest.fixture(scope="module")
def sibling(parent: LlamaForCausalLM) -> Weights:
    """What somebody else made of the base."""
    return get_weights(model_families.finetune_child(parent, 1e-3, seed=5, steps=60))


@pytest.fixture(scope="module")
def child(parent: LlamaForCausalLM) -> Weights:
    """What an agent makes of the base, on other data."""
    return get_weights(model_families.finetune_child(parent, 1e-3, seed=6, steps=40))


@pytest.fixture(scope="module")
def fingerprint(
    sibling: Weights, parent: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory
) -> Fingerprint:
    place = tmp_path_factory.mktemp("sibling")
    directory = model_families.write_model(sibling, parent, place / "model")
    write_fingerprint(make_fingerprint(directory, "instruct"), place / "instruct.fingerprint")
    return read_fingerprint(place / "instruct.fingerprint")


@pytest.fixture
def compare(parent: LlamaForCausalLM, base: BaseModel, fingerprint: Fingerprint, tmp_path: Path) -> Compare:
    def measure(weights: Weights) -> SiblingDistance:
        directory = model_families.write_model(weights, parent, tmp_path / "submission")
        (distance,) = compare_with_siblings(directory, base, [fingerprint])
        return distance

    return measure


def test_a_submitted_sibling_is_foreign_and_named_with_its_distances(
    sibling: Weights, parent: LlamaForCausalLM, base: BaseModel, fingerprint: Fingerprint, tmp_path: Path
) -> None:
    directory = model_families.write_model(sibling, parent, tmp_path)
    without = trace_origin(directory, base).lineage
    assert without is not None
    assert without.verdict == "derived"
    report = trace_origin(directory, base, [fingerprint]).lineage
    assert report is not None
    assert (report.verdict, report.statistic, report.value) == ("foreign", "sibling_matched", 1.0)
    assert "match instruct (100% of the matrices changed in its direction) more closely" in report.message
    assert report.siblings[0].distance == pytest.approx(0, abs=1e-6)
    assert LineageReport.model_validate_json(report.model_dump_json()) == report


def test_the_field_names_of_earlier_versions_are_read() -> None:
    earlier = {"name": "instruct", "alike": "share", "matrices": 3, "apart": 0.5}
    distance = SiblingDistance.model_validate(earlier)
    assert (distance.resemblance, distance.distance) == ("share", 0.5)


def test_training_on_other_data_is_far_from_a_sibling_and_its_distances_are_told(
    child: Weights, parent: LlamaForCausalLM, base: BaseModel, fingerprint: Fingerprint, tmp_path: Path
) -> None:
    report = trace_origin(model_families.write_model(child, parent, tmp_path), base, [fingerprint]).lineage
    assert report is not None
    assert report.verdict == "derived"
    (distance,) = report.siblings
    assert distance.resemblance is None
    assert distance.cosine == pytest.approx(0, abs=0.15)
    assert distance.distance is not None
    assert distance.sibling_changed is not None
    assert distance.distance > distance.sibling_changed


@pytest.mark.parametrize("share", [0.05, 0.5, 2.0])
def test_any_share_of_a_sibling_is_recognised(
    parent: LlamaForCausalLM, sibling: Weights, compare: Compare, share: float
) -> None:
    distance = compare(model_families.mix_weights(get_weights(parent), sibling, share))
    assert distance.resemblance == "direction"
    assert distance.share == pytest.approx(share, rel=0.01)


def test_a_sibling_that_is_trained_further_is_recognised(
    parent: LlamaForCausalLM, sibling: Weights, compare: Compare
) -> None:
    trained = model_families.finetune_child(model_families.replace_weights(parent, sibling), 3e-3, seed=6)
    distance = compare(get_weights(trained))
    assert distance.resemblance == "share"
    assert distance.share == pytest.approx(1, abs=0.1)


def test_a_pruned_sibling_and_one_in_another_precision_are_recognised(
    sibling: Weights, compare: Compare
) -> None:
    assert compare(model_families.prune_weights(sibling, 0.3)).resemblance in ("direction", "share")
    assert compare({name: tensor.bfloat16() for name, tensor in sibling.items()}).resemblance == "direction"


def test_some_layers_of_a_sibling_are_recognised(
    parent: LlamaForCausalLM, sibling: Weights, compare: Compare
) -> None:
    own = get_weights(parent)
    distance = compare({name: (sibling if ".layers.1." in name else own)[name] for name in own})
    assert distance.resemblance == "direction"


@pytest.mark.parametrize(
    "disguise",
    [
        model_families.permute_residual_stream,
        model_families.rotate_residual_stream,
        lambda weights: model_families.permute_neurons(model_families.rotate_residual_stream(weights)),
    ],
    ids=["stream permuted", "basis turned", "basis turned and neurons permuted"],
)
def test_a_rearranged_sibling_is_recognised_by_its_norms_and_a_rearranged_child_is_not(
    sibling: Weights, child: Weights, compare: Compare, disguise: Callable[[Weights], Weights]
) -> None:
    assert compare(disguise(sibling)).resemblance == "norms"
    assert compare(disguise(child)).resemblance is None


def test_two_children_that_are_stored_in_a_lower_precision_do_not_share_its_rounding(
    parent: LlamaForCausalLM, base: BaseModel, tmp_path: Path
) -> None:
    """Both round the base's values in the same way, so both differ from the base by that."""
    stored = [
        {name: tensor.bfloat16() for name, tensor in get_weights(trained).items()}
        for trained in (model_families.finetune_child(parent, 1e-6, seed=seed, steps=10) for seed in (5, 6))
    ]
    first, second = (
        model_families.write_model(weights, parent, tmp_path / str(number))
        for number, weights in enumerate(stored)
    )
    (distance,) = compare_with_siblings(second, base, [make_fingerprint(first, "rounded")])
    assert distance.resemblance is None
    assert distance.cosine is not None
    name = "model.layers.0.mlp.up_proj.weight"
    one, other = (
        (weights[name].double() - get_weights(parent)[name].double()).flatten() for weights in stored
    )
    unrounded = float(torch.nn.functional.cosine_similarity(one, other, dim=0))
    assert unrounded > 0.9 > 0.6 > distance.cosine


def test_a_sibling_with_more_layers_is_compared_where_names_and_shapes_agree(
    parent: LlamaForCausalLM, base: BaseModel, sibling: Weights, child: Weights, tmp_path: Path
) -> None:
    grown = model_families.write_model(model_families.insert_layer(sibling), parent, tmp_path / "grown")
    fingerprint = make_fingerprint(grown, "grown")
    for weights, alike in ((sibling, "direction"), (child, None)):
        directory = model_families.write_model(weights, parent, tmp_path / "submission")
        (distance,) = compare_with_siblings(directory, base, [fingerprint])
        assert distance.resemblance == alike


def test_the_base_model_is_no_sibling_of_itself(base: BaseModel, sibling: Weights) -> None:
    own = make_fingerprint(base.directory, "base")
    assert compare_with_siblings(base.directory, base, [own]) == ()


def test_weights_with_nan_are_compared_where_they_are_numbers(sibling: Weights, compare: Compare) -> None:
    broken = dict(sibling)
    name = next(name for name in broken if "q_proj" in name)
    broken[name] = torch.full_like(broken[name], torch.nan)
    distance = compare(broken)
    assert distance.resemblance == "direction"
    json.dumps(distance.model_dump(), allow_nan=False)


# Which fingerprints a run compares with


def make_numbers(seed: int) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(seed)
    return {f"layer.{number}.weight": dice.normal(size=(32, 40)).astype("float32") for number in range(3)}


def write_numbers(numbers: dict[str, np.ndarray], directory: Path) -> Path:
    """A model that is nothing but three matrices."""
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "numbers"}')
    save_file(numbers, directory / "model.safetensors")
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755)
    return directory


def test_fingerprints_in_the_cache_are_compared_if_they_fit_the_base_and_named_ones_must(
    base: BaseModel, fingerprint: Fingerprint, tmp_path: Path
) -> None:
    other = make_fingerprint(write_numbers(make_numbers(0), tmp_path / "other"), "other family")
    write_fingerprint(other, tmp_path / "other.fingerprint")
    write_fingerprint(other, tmp_path / "siblings" / "other.fingerprint")
    write_fingerprint(fingerprint, tmp_path / "siblings" / "instruct.fingerprint")
    write_fingerprint(make_fingerprint(base.directory, "base"), tmp_path / "siblings" / "base.fingerprint")
    assert [each.name for each in load_siblings((), tmp_path, base)] == ["instruct"]
    with pytest.raises(UserError, match="no matrix in common"):
        load_siblings([str(tmp_path / "other.fingerprint")], tmp_path, base)


def test_two_fingerprints_of_one_name_are_an_error_unless_they_are_the_same(
    base: BaseModel, fingerprint: Fingerprint, parent: LlamaForCausalLM, child: Weights, tmp_path: Path
) -> None:
    write_fingerprint(fingerprint, tmp_path / "siblings" / "a.fingerprint")
    write_fingerprint(fingerprint, tmp_path / "siblings" / "b.fingerprint")
    assert len(load_siblings((), tmp_path, base)) == 1
    again = make_fingerprint(model_families.write_model(child, parent, tmp_path / "child"), "instruct")
    write_fingerprint(again, tmp_path / "siblings" / "c.fingerprint")
    with pytest.raises(UserError, match="another fingerprint with the name 'instruct'"):
        load_siblings((), tmp_path, base)


AGENT = """
import numpy
from safetensors.numpy import load_file, save_file

own = load_file(MODEL / "model.safetensors")

def change(seed, length):
    dice = numpy.random.default_rng(seed)
    step = lambda each: length * dice.normal(size=each.shape).astype("float32")
    return {name: own[name] + step(own[name]) for name in sorted(own)}

def save(name, weights):
    shutil.copytree(MODEL, OUTPUT / name)
    (OUTPUT / name / "model.safetensors").unlink()
    save_file(weights, OUTPUT / name / "model.safetensors")
    return submit(OUTPUT / name)

say(child=save("child", change(8, 0.05)), copied=save("copied", change(7, 0.1)))
"""


def test_a_run_compares_every_submission_and_the_record_has_the_distances(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    own, dice = make_numbers(0), np.random.default_rng(7)
    base = write_numbers(own, tmp_path / "base")
    moved = {name: each + 0.1 * dice.normal(size=each.shape).astype("float32") for name, each in own.items()}
    file = tmp_path / "moved.fingerprint"
    made = launcher.cli("fingerprint", str(write_numbers(moved, tmp_path / "moved")), "--output", str(file))
    assert made.returncode == 0, made.stderr
    run = launcher.run(
        AGENT,
        *("--task", "tests.helpers.short_gsm8k:TASK", "--model", str(base), "--siblings", str(file)),
        *("--engine", "scripted:tests.helpers.short_gsm8k:open_constant_model"),
        PYTHONPATH=str(REPOSITORY),
    )
    assert run.said, (run.log, run.errors)
    child, copied = run.said["child"], run.said["copied"]
    assert (child["lineage"], copied["lineage"]) == ("derived", "foreign")
    assert "These weights match moved" in copied["message"]
    assert "sibling moved" in [asset.name for asset in run.result.assets]
    distances = dict(read_run(run.paths).sibling_distances)
    assert (distances[1].resemblance, distances[2].resemblance) == (None, "direction")
    assert "submission 2 looks like moved (100% matrices alike" in launcher.report(run)
    assert verify_run(run.paths).holds


def test_values_with_infinite_squares_are_left_out_and_every_figure_is_finite(tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    weights = [dice.standard_normal((64, 64)) for _ in range(9)]

    def write_matrices(name: str, dtype: str, **places: float) -> Path:
        moved = [each + 0.1 * dice.standard_normal((64, 64)) for each in weights]
        for place, value in places.items():
            moved[int(place[1:])][0, 0] = value
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        matrices = {f"m{number}": each.astype(dtype) for number, each in enumerate(moved)}
        save_file(matrices, tmp_path / name / "model.safetensors")
        return tmp_path / name

    base = read_base_model(write_matrices("base", "float32"))
    sibling = make_fingerprint(write_matrices("sibling", "float32"), "sibling")
    (distance,) = compare_with_siblings(
        write_matrices("submission", "float64", m0=1e200, m1=1e156), base, [sibling]
    )
    assert distance.matrices == 7
    json.dumps(distance.model_dump(mode="json"), allow_nan=False)
