"""Several answers to one question: how they are drawn, and what they are worth together."""

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalResult, EvalSettings, SampledAnswer
from agent2rl.core.task import Example
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.engines.transformers import TransformersEngine
from agent2rl.engines.transformers.decoding import BatchLimits
from agent2rl.engines.transformers.loading import LoadedModel, load_model
from agent2rl.evaluators.scorers import exact_number, final_answer
from agent2rl.evaluators.single_turn import (
    QuestionPrompt,
    SingleTurn,
    compute_pass_at_k,
    compute_pass_metrics,
    score_majority_answer,
)
from agent2rl.models.seedling import FILES
from agent2rl.tasks.gsm8k import EVALUATOR
from agent2rl.tasks.gsm8k.mini import TASK as MINI
from tests.helpers import short_gsm8k
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.tiny_models import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = MINI.load(None).feedback[:6]
SHORT = replace(short_gsm8k.SHORT_PROMPT, chat="{question}")
"""A few tokens, so that the loops below are quick."""


def attempts(*outputs: str, target: str = "#### 1080") -> list[SampledAnswer]:
    return [SampledAnswer(output=output, score=exact_number(output, target)) for output in outputs]


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n))))
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_right_one(case: tuple[list[bool]]) -> None:
    (drawn,) = case
    for k in range(1, len(drawn) + 1):
        chosen = [any(choice) for choice in combinations(drawn, k)]
        share = Fraction(sum(chosen), len(chosen))
        assert compute_pass_at_k(k, right=sum(drawn), drawn=len(drawn)) == pytest.approx(
            float(share), abs=1e-12
        )


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_a_share_however_many_were_drawn(case: tuple[int, int, int]) -> None:
    drawn, right, k = case
    assert 0 <= compute_pass_at_k(k, right, drawn) <= 1
    assert compute_pass_at_k(1, right, drawn) == pytest.approx(right / drawn)
    assert compute_pass_at_k(drawn, right, drawn) == (right > 0)


def test_the_usual_ks_are_told_and_the_number_that_was_drawn() -> None:
    assert list(compute_pass_metrics(attempts(*["#### 1080"] * 6))) == [
        "pass@1",
        "pass@2",
        "pass@4",
        "pass@5",
        "pass@6",
    ]


@pytest.mark.parametrize(
    ("outputs", "worth"),
    [
        (("#### 1080", "#### 7", "#### 7"), 0.0),
        (("#### 7", "#### 1080", "#### 1080"), 1.0),
        (("#### 7", "#### 1,080", "#### $1080.00"), 1.0),
        (("#### 7", "#### 7.0", "#### 2160/2", "#### 1,080", "#### 1080 eggs"), 1.0),
        (("#### 7", "#### 1080"), 0.0),
        (("#### 1080", "#### 7"), 1.0),
        (("#### 1080", "#### 7", "#### 8", "#### 7"), 0.0),
        (("none", "#### none", "#### 1080"), 1.0),
        (("none", "none", ""), 0.0),
    ],
    ids=[
        "the most common one",
        "wherever it stands",
        "however a number is written",
        "two spellings outvoted by three",
        "of equals the first, wrong",
        "of equals the first, right",
        "among three",
        "no answer is no vote",
        "no votes at all",
    ],
)
def test_the_majority_decides(outputs: tuple[str, ...], worth: float) -> None:
    assert score_majority_answer(attempts(*outputs), final_answer) == worth


@given(st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1), st.sampled_from("abc"))
def test_the_majority_is_the_answer_that_was_counted_most(given: list[str | None], right: str) -> None:
    drawn = [SampledAnswer(output=str(answer), score=float(answer == right)) for answer in given]

    def answer(output: str) -> Hashable | None:
        return None if output == "None" else output

    counted = Counter(vote for vote in given if vote is not None)
    winner = counted.most_common(1)[0][0] if counted else None  # of equals the first, as documented
    assert score_majority_answer(drawn, answer) == float(winner == right)


def alternating(outputs: Sequence[str]) -> ScriptedEngine:
    said = iter(list(outputs) * 1000)
    return ScriptedEngine(lambda _: next(said))


def test_the_score_is_the_mean_of_the_answers_and_the_first_is_shown() -> None:
    engine = alternating(["#### 1", "#### 2", "#### 2", "none"])
    examples = (Example("a", "?", "#### 2"), Example("b", "?", "#### 3"))
    found = EVALUATOR.evaluate(engine, examples, EvalSettings(samples=4))
    first, second = found.results
    assert (first.output, first.score, second.score) == ("#### 1", 0.5, 0.0)
    assert [one.output for one in first.attempts] == ["#### 1", "#### 2", "#### 2", "none"]
    assert first.metrics == {
        "flexible": 0.5,
        "pass@1": 0.5,
        "pass@2": pytest.approx(5 / 6),
        "pass@4": 1.0,
        "maj@4": 1.0,
    }
    assert set(second.metrics.values()) == {0.0}
    assert (found.how["samples"], found.how["temperature"]) == (4, 0.8)


def test_one_answer_has_no_metrics_of_several() -> None:
    (result, *_) = EVALUATOR.evaluate(alternating(["#### 1"]), EXAMPLES, EvalSettings()).results
    assert (result.attempts, {*result.metrics}) == ((), {"flexible"})


def test_without_a_way_to_read_answers_there_is_no_vote() -> None:
    evaluator = SingleTurn("same", lambda *_: 1.0)
    found = evaluator.evaluate(alternating(["a"]), EXAMPLES, EvalSettings(samples=2))
    assert set(found.results[0].metrics) == {"pass@1", "pass@2"}


def test_the_runs_temperature_counts_before_the_tasks() -> None:
    asking = QuestionPrompt(temperature=0.6)
    for settings, temperature in [
        (EvalSettings(), 0.0),
        (EvalSettings(temperature=0.3), 0.3),
        (EvalSettings(samples=2), 0.6),
        (EvalSettings(samples=2, temperature=1.0), 1.0),
    ]:
        assert asking.sample_answers(alternating(["a"]), EXAMPLES, settings).how["temperature"] == temperature


def test_several_greedy_answers_are_refused() -> None:
    with pytest.raises(UserError, match="all samples are identical"):
        QuestionPrompt().sample_answers(alternating(["a"]), EXAMPLES, EvalSettings(samples=2, temperature=0))


@pytest.fixture(scope="module")
def seedling() -> LoadedModel:
    return load_model(FILES)


def drawn(model: LoadedModel, rows: int = 64, **settings: float) -> EvalResult:
    """Answers of the real engine, in batches of so many rows."""
    evaluator = replace(EVALUATOR, prompt=SHORT)
    with TransformersEngine(model, BatchLimits(rows, 1 << 20, 4096)) as engine:
        return evaluator.evaluate(engine, EXAMPLES, EvalSettings.model_validate(settings))


def texts(found: EvalResult) -> list[list[str]]:
    return [[attempt.output for attempt in result.attempts] for result in found.results]


@pytest.mark.thorough
def test_samples_of_one_question_differ_and_depend_on_the_seed_and_not_on_the_batch(
    seedling: LoadedModel,
) -> None:
    found = drawn(seedling, samples=4, temperature=1.0, seed=3)
    assert all(len(set(answers)) > 1 for answers in texts(found))
    for rows in (1, 3, 7):
        assert drawn(seedling, rows, samples=4, temperature=1.0, seed=3) == found
    other = drawn(seedling, samples=4, temperature=1.0, seed=4)
    assert all(ours != theirs for ours, theirs in zip(texts(found), texts(other), strict=True))


def test_the_seed_of_a_greedy_evaluation_means_nothing(seedling: LoadedModel) -> None:
    assert drawn(seedling, seed=1) == drawn(seedling, seed=2)


def test_answers_from_colder_to_hotter_are_more_and_more_different(seedling: LoadedModel) -> None:
    kinds = [
        sum(len(set(answers)) for answers in texts(drawn(seedling, samples=8, temperature=temperature)))
        for temperature in (0.01, 0.8, 2.0)
    ]
    assert kinds == sorted(kinds)
    assert kinds[0] < 2 * len(EXAMPLES) < kinds[2]


SHORT_RUN = ("--task", "tests.helpers.short_gsm8k:TASK")
AGENT = """
say(meta=json.loads((WORKSPACE / "run_meta.json").read_text()), answer=submit(trained("m", problems=400)))
"""


@pytest.mark.thorough
def test_a_whole_run_with_several_samples_shows_what_they_are_worth(launcher: RunLauncher) -> None:
    engine = "scripted:tests.evaluators.alternating_abacus:open_alternating_abacus"
    options = (*SHORT_RUN, "--samples", "4", "--engine", engine, "--budget", "20m")
    run = launcher.run(AGENT, *options, PYTHONPATH=str(ROOT))
    assert run.result.ending == "completed", run.result.reason + run.log
    assert run.said["meta"]["samples"] == 4
    best = run.result.best_heldout
    assert best is not None
    assert best.how["samples"] == 4
    assert best.value > 0
    # Half of the answers are right where the model is; of two equals, the first is the nonsense.
    assert best.metrics["pass@1"] == pytest.approx(best.value)
    assert best.metrics["pass@4"] == pytest.approx(2 * best.value)
    assert best.metrics["maj@4"] == 0
    assert run.said["answer"]["verdict"] == "scored"
    lines = run.paths.submission_paths(1).results_file("heldout").read_text().splitlines()
    assert {len(json.loads(line)["attempts"]) for line in lines} == {4}
    shown = launcher.cli("show", run.result.run_id).stdout
    for page in (shown, launcher.report(run)):
        assert "4 samples at temperature 0.8" in page
        assert "pass@4" in page
        assert f"→ {best.metrics['pass@4']:.2f} (heldout; does not affect the ranking)" in page
        assert "maj@4" in page


def test_a_run_with_one_greedy_sample_says_nothing_of_sampling(launcher: RunLauncher) -> None:
    done = launcher.cli("run", "--task", "gsm8k-mini", "--agent", "nop", "--no-report")
    assert "baseline" in done.stdout
    assert "asked" not in done.stdout
    assert "@" not in done.stdout


@pytest.mark.thorough
def test_a_run_on_a_model_without_a_chat_template_tells_the_agent_and_the_reader(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    model = write_tiny_llama(tmp_path / "plain", chat_template=False)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    (model / "model.safetensors").chmod(0o644)
    run = launcher.run(
        "say(row=json.loads((DATA / 'train.jsonl').read_text().splitlines()[0]))",
        *(*SHORT_RUN, "--model", str(model), "--samples", "2", "--budget", "20m"),
        PYTHONPATH=str(ROOT),
    )
    assert run.result.ending == "completed", run.result.reason + run.log
    (message,) = run.said["row"]["prompt"]
    assert message["content"].endswith(f"Question: {run.said['row']['question']}\nAnswer:")
    assert message["content"].count("Question: ") == 9
    assert run.result.baseline is not None
    assert run.result.baseline.how["prompting"] == "plain"
    assert "plain text after 8 shots, 2 samples" in launcher.cli("show", run.result.run_id).stdout
