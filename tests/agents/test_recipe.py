"""The recipe agent: what it plans, what it reads out of a workspace, and what it refuses."""

import json
import time
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl import registry
from agent2rl.agents.recipe import AGENT, plan, train
from agent2rl.agents.recipe.subjects import QuestionSubject, build_chat
from agent2rl.core.agent import Brief
from agent2rl.core.errors import UserError
from agent2rl.core.records import Budget, Limits, Mode, RequestedLimits, RunSpec
from agent2rl.evaluators.single_turn import SingleTurn
from agent2rl.run import workspace
from agent2rl.run.assets import load_assets

LIMITS = Limits(memory_bytes=1 << 33, disk_bytes=1 << 33, processes=100)


def brief(mode: Mode) -> Brief:
    return Brief("gsm8k-mini", mode, Budget(wall_seconds=60), PurePosixPath("/workspace"), "")


@pytest.fixture
def job(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> train.RecipeJob:
    """What the agent reads out of a real workspace."""
    spec = RunSpec(
        task="gsm8k-mini",
        agent="recipe",
        model="abacus",
        engine="scripted",
        budget=Budget(wall_seconds=60),
        limits=RequestedLimits(**dict(LIMITS)),
        seed=3,
    )
    task = registry.find_task(spec.task)
    home = tmp_path / "workspace"
    home.mkdir()
    workspace.build_workspace(
        home, PurePosixPath(home), spec, task, load_assets(spec, task, cache, registry.find_sandbox("local"))
    )
    told = workspace.make_brief(PurePosixPath(home), spec, task)
    workspace.write_run_meta(home, spec, task, workspace.RunTimes(time.time()))
    for name, value in told.environment.items():
        monkeypatch.setenv(name, value)
    return train.RecipeJob.read()


@given(st.floats(1, 1e6), st.floats(0.1, 1e5))
def test_rounds_fill_the_budget_and_never_overrun_it(budget: float, cost: float) -> None:
    remaining, count = budget, 0
    while seconds := plan.plan_training_seconds(
        remaining, cost, first=plan.ROUND_SHARE if count == 0 else 0.0
    ):
        assert seconds >= min(plan.SHORTEST_SECONDS, cost)
        remaining -= seconds + cost
        count += 1
        assert remaining >= 0
        assert count < 100
    if budget > 20 * cost + 4 * plan.LONG_SECONDS:
        assert count >= 3
        assert remaining <= plan.MARGIN_SECONDS + cost + max(plan.SHORTEST_SECONDS, cost) + 1e-6


def test_a_budget_that_is_too_small_for_a_round_gets_none() -> None:
    assert plan.plan_training_seconds(remaining=30, cost=25) == 0
    assert plan.plan_training_seconds(remaining=8, cost=0.1) == 0


@given(st.floats(1, 1e5), st.floats(1e-4, 100))
def test_a_round_of_few_steps_learns_more_slowly_and_none_faster_than_usual(
    seconds: float, each: float
) -> None:
    factor = plan.scale_rate_to_steps(seconds, each)
    assert 0 < factor <= 1
    assert plan.scale_rate_to_steps(2 * seconds, each) >= factor * 0.99 or factor == 1


@given(st.lists(st.integers(1, 2000), min_size=1))
def test_sampled_answers_have_room_for_nearly_every_training_answer(lengths: list[int]) -> None:
    room = plan.limit_answer_tokens(lengths)
    assert sum(length < room for length in lengths) >= 0.98 * len(lengths) - 1


def test_a_short_budget_for_questions_has_nearly_half_of_it_for_sft_and_one_round_of_grpo() -> None:
    remaining, cost = 180.0, 18.0
    sft = plan.plan_training_seconds(remaining, cost, first=plan.ROUND_SHARE)
    assert 0.4 * remaining < sft < 0.5 * remaining
    left = remaining - sft - cost
    grpo = plan.plan_training_seconds(left, cost)
    assert grpo > 0.6 * sft
    assert plan.plan_training_seconds(left - grpo - cost, cost) == 0


@given(st.floats(5, 1e5), st.floats(1e-4, 100))
def test_a_step_asks_at_least_a_few_questions_and_not_too_many(seconds: float, each: float) -> None:
    count = plan.choose_prompts_per_step(seconds, each)
    assert plan.FEWEST_PROMPTS <= count <= plan.MOST_PROMPTS
    if count > plan.FEWEST_PROMPTS:
        assert count * each * plan.SAMPLING_TO_STEP * plan.TARGET_GRPO_STEPS <= seconds * (1 + 1e-9)


@given(st.integers(1, 10**6))
def test_few_examples_are_seen_more_often_than_many(examples: int) -> None:
    assert 3 <= plan.choose_epochs(examples) <= 10
    assert plan.choose_epochs(examples) >= plan.choose_epochs(examples + 1)


def test_bigger_models_learn_more_slowly() -> None:
    assert plan.choose_learning_rate("sft", plan.REFERENCE_WEIGHTS) == plan.RATES["sft"]
    assert 5e-6 < plan.choose_learning_rate("sft", 7_000_000_000) < 2e-5
    assert plan.choose_learning_rate("grpo", 135_000_000) < plan.choose_learning_rate("sft", 135_000_000)


@pytest.fixture
def questions(job: train.RecipeJob) -> QuestionSubject:
    assert isinstance(job.subject, QuestionSubject)
    return job.subject


def test_the_agent_reads_the_prompts_that_the_grader_uses(
    job: train.RecipeJob, questions: QuestionSubject
) -> None:
    task = registry.find_task("gsm8k-mini")
    assert isinstance(task.evaluator, SingleTurn)
    examples = task.load(None).train
    assert len(questions.rows) == len(examples)
    assert (job.seed, job.mode) == (3, "free")
    for row, example in zip(questions.rows, examples, strict=True):
        assert build_chat(row) == task.evaluator.chat(example, templated=True)


def test_the_reward_is_the_graders_rule(questions: QuestionSubject) -> None:
    assert questions.compute_reward(0, questions.rows[0]["answer"]) == 1.0
    assert questions.compute_reward(0, "#### 987654") == 0.0
    assert questions.compute_reward(0, "no answer") == 0.0


def test_a_row_without_a_prompt_is_asked_as_it_is() -> None:
    (message,) = build_chat({"question": "Why?", "prompt": "a value of the user's own"})
    assert (message.role, message.content) == ("user", "Why?")


def test_the_reward_passes_on_what_else_a_row_holds() -> None:
    def evaluate(question: str, model_answer: str, reference_answer: object, weight: float) -> float:
        return weight if model_answer == json.dumps(reference_answer) else 0.0

    row = {"id": "1", "question": "?", "answer": [1, 2], "prompt": [], "weight": 0.25}
    assert QuestionSubject([row], evaluate).compute_reward(0, "[1, 2]") == 0.25


def test_without_a_reward_there_is_only_sft() -> None:
    stages = train.order_stages(["sft", "grpo"], QuestionSubject([], None))
    assert [next(stages) for _ in range(3)] == ["sft"] * 3
    with pytest.raises(UserError, match=r"eval\.py"):
        train.order_stages(["grpo"], QuestionSubject([], None))


def test_without_a_reward_a_run_that_must_end_with_rl_is_refused(job: train.RecipeJob) -> None:
    assert next(train.order_stages(["sft", "grpo"], job.subject, "rl-oriented")) == "sft"
    with pytest.raises(UserError, match="no reward"):
        train.order_stages(["sft", "grpo"], QuestionSubject([], None), "rl-oriented")


def test_the_stages_are_taken_in_turn_and_the_last_one_again(job: train.RecipeJob) -> None:
    stages = train.order_stages(["sft", "grpo"], job.subject)
    assert [next(stages) for _ in range(4)] == ["sft", "grpo", "grpo", "grpo"]


@pytest.mark.parametrize(
    ("answer", "score", "rises"),
    [
        ({"score": 12.0, "baseline_score": 10.0}, None, True),
        ({"score": 10.0, "baseline_score": 10.0}, None, False),
        ({"score": 12.0, "baseline_score": 10.0}, 12.0, False),
        ({"score": 13.0, "baseline_score": 10.0}, 12.0, True),
        ({"score": None, "baseline_score": 10.0}, None, False),
        ({}, None, False),
        ({}, 12.0, False),
    ],
)
def test_only_a_better_score_is_a_rise(answer: dict[str, float], score: float | None, rises: bool) -> None:
    assert train.beats_best_score(answer, score) is rises


@pytest.mark.parametrize(
    ("name", "mode", "stages"),
    [
        ("recipe", "free", ("sft", "grpo")),
        ("recipe", "multi", ("sft", "grpo")),
        ("recipe", "sft-only", ("sft",)),
        ("recipe", "rl-oriented", ("sft", "grpo")),
        ("recipe", "rl-only", ("grpo",)),
        ("recipe:sft", "free", ("sft",)),
        ("recipe:grpo", "rl-only", ("grpo",)),
        ("recipe:grpo", "rl-oriented", ("grpo",)),
    ],
)
def test_the_mode_of_a_run_is_kept(name: str, mode: Mode, stages: tuple[str, ...]) -> None:
    assert registry.find_agent(name).command(brief(mode)).argv[3:] == stages


@pytest.mark.parametrize("mode", ["rl-only", "rl-oriented"])
def test_a_recipe_that_the_mode_forbids_is_refused(mode: Mode) -> None:
    with pytest.raises(UserError, match="does not allow recipe:sft"):
        registry.find_agent("recipe:sft").command(brief(mode))


def test_a_recipe_that_is_none_is_refused() -> None:
    assert AGENT.secrets == ()
    with pytest.raises(UserError, match="There is no recipe"):
        registry.find_agent("recipe:dpo")
