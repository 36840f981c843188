"""Broken model directories in whole runs: a submission gets a verdict that says what is wrong, and the
service goes on; a base model ends the run with the reason."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from agent2rl.core.records import RunResult
from agent2rl.grading.verify import verify_run
from agent2rl.models.seedling import FILES
from tests.helpers.run_launcher import FinishedRun, RunLauncher
from tests.helpers.tiny_models import write_tiny_llama

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
REPOSITORY = Path(__file__).parents[2]
SHORT = ("--task", "tests.helpers.short_gsm8k:TASK")
"""Four problems: what is wrong with a model shows at the first."""

AGENT = """
import numpy
from safetensors.numpy import load_file, save_file

def trained(name, change=lambda tensor: 1.05 * tensor):
    where = OUTPUT / name
    shutil.copytree(MODEL, where, copy_function=shutil.copyfile)
    weights = load_file(where / "model.safetensors")
    weights["model.norm.weight"] = change(weights["model.norm.weight"])
    save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    return where

def filled(name, value):
    return submit(trained(name, lambda tensor: numpy.full_like(tensor, value)))

def rewritten(name, file, change):
    where = trained(name)
    (where / file).write_bytes(change((where / file).read_bytes()))
    return submit(where)

def configured(name, **changes):
    return rewritten(name, "config.json", lambda text: json.dumps({**json.loads(text), **changes}).encode())

def shifted(text):
    tokenizer = json.loads(text)
    for token, number in tokenizer["model"]["vocab"].items():
        tokenizer["model"]["vocab"][token] = number + 5000 * (number > 300)
    return json.dumps(tokenizer).encode()

say(truncated=rewritten("truncated", "model.safetensors", lambda data: data[:-1000]))
say(other_kind=configured("kind", model_type="gpt2", architectures=["GPT2LMHeadModel"]))
say(other_size=configured("size", hidden_size=384))
say(garbage=rewritten("garbage", "tokenizer.json", lambda _: b"no tokenizer"))
say(shifted=rewritten("shifted", "tokenizer.json", shifted))
say(nan=filled("nan", float("nan")))
good = trained("good")
(good / "tokenizer.json").unlink()
say(good=submit(good))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> FinishedRun:
    """An agent that submits six broken models, and then a sound one without a tokenizer of its own."""
    place = tmp_path_factory.mktemp("bad")
    (place / "home").mkdir()
    base = write_tiny_llama(place / "model")
    (base / WEIGHTS).chmod(0o644)
    launcher = RunLauncher(place / "runs", cache, place / "home")
    # The paper's protocol, because it needs half as many gradings.
    options = (*SHORT, "--protocol", "paper", "--model", str(base), "--budget", "20m")
    run = launcher.run(AGENT, *options, PYTHONPATH=str(REPOSITORY))
    assert run.result.ending == "completed", (run.result.reason, run.log)
    return run


@pytest.mark.parametrize(
    ("name", "verdict", "wrong", "hint"),
    [
        ("truncated", "rejected", "model.safetensors is not a valid safetensors file", "save_pretrained"),
        ("other_kind", "rejected", "model_type is 'gpt2', not 'llama'", "Train the base model itself"),
        ("other_size", "rejected", "hidden_size is 384, not 32", "Train the base model itself"),
        ("garbage", "rejected", "tokenizer.json is not valid JSON", "copy the base model's"),
        ("shifted", "rejected", "the model is not the base model's", "AutoTokenizer.from_pretrained"),
        ("nan", "failed", "not a number (NaN or infinity)", "Train with a lower learning rate"),
    ],
)
def test_a_broken_submission_hears_what_is_wrong_and_what_to_do(
    run: FinishedRun, name: str, verdict: str, wrong: str, hint: str
) -> None:
    answer = run.said[name]
    assert (answer["http"], answer["verdict"], answer["score"]) == (200, verdict, None), answer
    assert wrong in answer["message"]
    assert hint in answer["message"]
    assert "Traceback" not in answer["message"]


def test_the_service_goes_on_and_scores_the_sound_one(run: FinishedRun) -> None:
    good = run.said["good"]
    assert (good["verdict"], good["lineage"], good["message"]) == ("scored", "derived", "")
    assert (run.result.submissions, run.result.scored) == (7, 1)
    assert run.result.best is not None
    assert run.result.best.id == good["submission_id"]
    assert verify_run(run.paths).holds


# A base model of the user's


def truncated(model: Path) -> None:
    weights = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(weights[:-1000])


def without_a_sound_tokenizer(model: Path) -> None:
    (model / TOKENIZER).write_text("no tokenizer", encoding="utf-8")


def with_nan(model: Path) -> None:
    weights = load_file(model / WEIGHTS)
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, model / WEIGHTS, metadata={"format": "pt"})
    (model / WEIGHTS).chmod(0o644)


def ends(launcher: RunLauncher, model: Path) -> str:
    """Why a run on this base model ends."""
    arguments = ("run", *SHORT, "--agent", "nop", "--model", str(model), "--json", "--no-report")
    done = launcher.cli(*arguments, PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    result = RunResult.model_validate_json(done.stdout)
    assert (result.ending, result.score) == ("failed", None)
    return result.reason


@pytest.fixture
def model(launcher: RunLauncher) -> Path:
    return Path(shutil.copytree(FILES, launcher.home / "model", copy_function=shutil.copyfile))


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (truncated, "cannot be used: model.safetensors is not a valid safetensors file"),
        pytest.param(
            without_a_sound_tokenizer,
            "The untouched model could not be graded: The tokenizer cannot be loaded",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            with_nan,
            "The untouched model could not be graded: The model's output is not a number",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_broken_base_model_ends_the_run_with_the_reason(
    launcher: RunLauncher, model: Path, spoil: Callable[[Path], None], wrong: str
) -> None:
    spoil(model)
    assert wrong in ends(launcher, model)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandbox reads as another user")
def test_a_base_model_that_only_root_can_read_is_named_with_the_mend(
    launcher: RunLauncher, model: Path
) -> None:
    """As safetensors writes its files."""
    (model / WEIGHTS).chmod(0o600)
    reason = ends(launcher, model)
    assert f"The sandbox must read {model / WEIGHTS}, but only root can read it" in reason
    assert f"`chmod -R o+rX {model}`" in reason
