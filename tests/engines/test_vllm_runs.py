"""vLLM itself on a CPU (`make test-vllm`): its replies beside those of transformers, and runs it grades."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, ChatMessage, Engine, Sampling, ScoringEngine, open_conversations
from agent2rl.core.grading_records import EvalSettings, ExampleResult
from agent2rl.core.records import RunResult
from agent2rl.core.task import Task
from agent2rl.models.seedling import FILES
from agent2rl.record.paths import RunPaths
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.tiny_models import write_tiny_llama

pytestmark = pytest.mark.vllm
QUESTIONS = registry.find_task("gsm8k-mini").load(None).feedback[:100]
CHATS: list[Chat] = [(ChatMessage("user", question.prompt),) for question in QUESTIONS]


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Engine, Engine]]:
    """The seedling in vLLM and in transformers."""
    with (
        registry.find_engine("vllm")(FILES) as vllm,
        registry.find_engine("transformers")(FILES) as transformers,
    ):
        yield vllm, transformers


def test_greedy_replies_equal_those_of_transformers(both: tuple[Engine, Engine]) -> None:
    ours, theirs = (engine.generate(CHATS, Sampling(max_tokens=64)) for engine in both)
    assert ours == theirs


def test_log_probabilities_are_close_to_those_of_transformers(both: tuple[Engine, Engine]) -> None:
    replies = [question.target for question in QUESTIONS]
    ours, theirs = (engine.logprobs(CHATS, replies) for engine in both if isinstance(engine, ScoringEngine))
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_conversations_equal_those_of_transformers(both: tuple[Engine, Engine]) -> None:
    ours, theirs = (open_conversations(engine) for engine in both)
    for turn in range(6):
        said: dict[str, Chat] = {
            str(place): (ChatMessage("user", f"Turn {turn}. {question.prompt}"),)
            for place, question in enumerate(QUESTIONS[:20])
        }
        assert ours.extend(said, Sampling(max_tokens=40)) == theirs.extend(said, Sampling(max_tokens=40))


def test_long_seeded_batches_are_sampled_the_same_twice(both: tuple[Engine, Engine]) -> None:
    """With split prompts, vLLM on a CPU fails here: "CPU Generator does not use offset"."""
    long: list[Chat] = [(ChatMessage("user", f"{question.prompt} " * 8),) for question in QUESTIONS]
    sampling = Sampling(max_tokens=16, temperature=1.0, seed=3)
    assert both[0].generate(long, sampling) == both[0].generate(long, sampling)


def run_recipe(launcher: RunLauncher, task: str, *options: str) -> RunPaths:
    """A whole run with SFT in the sandbox, graded by vLLM."""
    asked = ("--task", task, "--agent", "recipe:sft", "--model", "seedling", "--engine", "vllm")
    done = launcher.cli("run", *asked, "--max-submissions", "1", "--json", "--no-report", *options)
    result = RunResult.model_validate_json(done.stdout)
    assert result.ended_well, (result.reason, done.stderr)
    assert (result.scored, result.heldout is not None) == (1, True)
    return RunPaths(launcher.runs / result.run_id)


def grade_again(task: Task, paths: RunPaths) -> tuple[list[ExampleResult], list[ExampleResult]]:
    """The recorded results of the submission, and those that transformers gives it."""
    submission = paths.submission_paths(1)
    lines = submission.results_file("feedback").read_text(encoding="utf-8").splitlines()
    with registry.find_engine("transformers")(submission.model) as engine:
        again = task.evaluator.evaluate(engine, task.load(None).feedback, EvalSettings())
    return [ExampleResult.model_validate_json(line) for line in lines], list(again.results)


@pytest.mark.parametrize(("task", "budget"), [("gsm8k-mini", "3m"), ("alfworld-mini", "4m")])
def test_a_whole_run_is_graded_as_transformers_grades_it(
    shared_launcher: RunLauncher, task: str, budget: str
) -> None:
    paths = run_recipe(shared_launcher, task, "--budget", budget)
    recorded, again = grade_again(registry.find_task(task), paths)
    assert sum(result.score for result in recorded) > 0
    assert recorded == again


def test_a_model_that_vllm_does_not_support_is_reported_with_its_own_words(
    shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    """The tiny llama's heads have size 8."""
    model = write_tiny_llama(tmp_path / "model")
    (model / "model.safetensors").chmod(0o644)
    asked = ("--task", "gsm8k-mini", "--agent", "nop", "--model", str(model), "--engine", "vllm")
    done = shared_launcher.cli("run", *asked, "--json", "--no-report")
    result = RunResult.model_validate_json(done.stdout)
    assert "vLLM 0.32.0 does not start with this model" in str(result.reason)
    assert "The last lines of the grading log" in str(result.reason)
    assert "save_pretrained" not in str(result.reason)
