"""The miniature's base model: poor at first, able to learn, and careful with what it loads."""

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from agent2rl import registry
from agent2rl.core.engine import ChatMessage
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Example
from agent2rl.evaluators.scorers import exact_number, final_answer
from agent2rl.models.abacus import Abacus, solver

SPLITS = registry.find_task("gsm8k-mini").load(None)


def teach(count: int) -> Abacus:
    abacus = Abacus.base()
    seen = SPLITS.train[:count]
    abacus.fit([example.prompt for example in seen], [example.target for example in seen])
    return abacus


taught = cache(teach)
"""For tests that do not change it."""


def percent(abacus: Abacus, examples: tuple[Example, ...]) -> float:
    return 100 * sum(exact_number(abacus.answer(e.prompt), e.target) for e in examples) / len(examples)


def write_base(directory: Path) -> Path:
    registry.find_model("abacus").write(directory)
    return directory


def test_the_base_model_is_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """Whoever changes this digest changes the model: every baseline with it."""
    write_base(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    tensors = load_file(tmp_path / "model.safetensors")
    content = tensors["head.weight"].tobytes() + tensors["head.bias"].tobytes()
    assert hashlib.sha256(content).hexdigest() == (
        "68331197bd93da2bd105d65bc26678ca3f580a404a414c287be80e8cbd1a779f"
    )


def test_the_base_model_is_poor_and_its_engine_gives_the_task_a_score(tmp_path: Path) -> None:
    task, model = registry.find_task("gsm8k-mini"), registry.find_model("abacus")
    with registry.find_engine(model.engine)(write_base(tmp_path)) as engine:
        results = task.evaluator.evaluate(engine, SPLITS.feedback, EvalSettings()).results
    assert 0.03 < sum(result.score for result in results) / len(results) < 0.3


def test_it_learns_to_solve_stories_it_has_never_seen() -> None:
    little, much = taught(40), taught(400)
    for examples in (SPLITS.feedback, SPLITS.heldout):
        assert percent(Abacus.base(), examples) + 20 < percent(little, examples)
        assert percent(little, examples) + 5 < percent(much, examples)
        assert percent(much, examples) >= 80


@pytest.mark.thorough
def test_it_learns_from_reward_alone() -> None:
    targets = {example.prompt: example.target for example in SPLITS.train}
    abacus, rewards = Abacus.base(), []
    abacus.reinforce(
        list(targets),
        lambda question, answer: exact_number(answer, targets[question]),
        progress=lambda _, reward: rewards.append(reward),
    )
    assert len(rewards) == 400
    assert percent(abacus, SPLITS.heldout) >= 55


def test_the_same_seed_trains_the_same_weights() -> None:
    assert np.array_equal(teach(40).weight, teach(40).weight)


def test_progress_tells_each_epoch_and_the_share_that_was_right() -> None:
    told: list[tuple[int, float]] = []
    questions, answers = ["Ann has 3 pens and buys 4 more. How many?", "unsolvable"], ["#### 7", "#### 5"]
    Abacus.base().fit(questions, answers, epochs=30, progress=lambda *now: told.append(now))
    assert [epoch for epoch, _ in told] == list(range(1, 31))
    assert told[-1] == (30, 0.5)


def test_training_on_nothing_changes_nothing() -> None:
    abacus = Abacus.base()
    abacus.fit([], [])
    abacus.fit(["no numbers here"], ["#### 3"])
    abacus.reinforce(["no numbers here"], lambda *_: 1.0)
    assert np.array_equal(abacus.weight, Abacus.base().weight)


def test_a_saved_model_answers_as_before(tmp_path: Path) -> None:
    abacus = taught(100)
    abacus.save(tmp_path / "new" / "model")
    again = Abacus.load(tmp_path / "new" / "model")
    assert all(again.answer(e.prompt) == abacus.answer(e.prompt) for e in SPLITS.feedback)


def test_the_answer_shows_its_steps() -> None:
    answer = taught(400).answer(
        "Tom has 3 boxes with 1,000 pens in each and gives away 7. How many are left?"
    )
    assert answer == "3 * 1000 = <<3*1000=3000>>3000\n3000 - 7 = <<3000-7=2993>>2993\n#### 2993"


def test_only_the_last_user_message_and_no_instruction_counts(tmp_path: Path) -> None:
    taught(400).save(tmp_path)
    question = "Tom has 3 pens and buys 4 more. How many pens does Tom have now?"
    chat = (
        ChatMessage("user", "9 9 9"),
        ChatMessage("assistant", "8 8 8"),
        ChatMessage("user", question + "\n\nUse at most 5 of 6 words."),
        ChatMessage("assistant", "7 7 7"),
    )
    assert solver(tmp_path)(chat).endswith("#### 7")
    assert final_answer(solver(tmp_path)(())) is None


@given(st.text() | st.text("0123456789,.$ twice half\n"))
def test_no_question_is_too_strange(question: str) -> None:
    assert Abacus.base().answer(question)


def spoil(path: Path, **tensors: np.ndarray) -> None:
    file = path / "model.safetensors"
    save_file({**load_file(file), **{name.replace("_", "."): value for name, value in tensors.items()}}, file)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("head_bias", np.full(20, np.nan, np.float32), "NaN"),
        ("head_bias", np.full(20, np.inf, np.float32), "infinity"),
        ("head_bias", np.full(20, 1e300), "infinity"),
        ("head_bias", np.zeros(19, np.float32), "has the tensors"),
        ("head_weight", np.zeros((2048, 20), np.float32), "has the tensors"),
        ("extra", np.zeros(1, np.float32), "has the tensors"),
    ],
)
def test_malformed_weights_are_refused_with_the_reason(
    tmp_path: Path, name: str, value: np.ndarray, fault: str
) -> None:
    spoil(write_base(tmp_path), **{name: value})
    with pytest.raises(ValueError, match=fault):
        Abacus.load(tmp_path)
    with pytest.raises(GradingError, match=fault):
        solver(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 100, b"not safetensors at all"])
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot read model\.safetensors"):
        Abacus.load(tmp_path)


def test_the_largest_finite_weights_still_give_an_answer(tmp_path: Path) -> None:
    huge = np.full((20, 2048), np.finfo(np.float32).max, np.float32)
    spoil(write_base(tmp_path), head_weight=huge)
    assert final_answer(Abacus.load(tmp_path).answer("3 and 4")) is not None
