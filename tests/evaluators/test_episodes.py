"""Many episodes at once: each as it would be alone."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, Sampling
from agent2rl.core.environment import Environment, EnvironmentStep
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Evaluator
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.engines.transformers import ForkedEngine, open_engine
from agent2rl.evaluators.episode_prompts import extract_action
from agent2rl.evaluators.episodes import FULL, Episodes
from tests.helpers.stairs_environment import STAIRS_EXAMPLES, STAIRS_PROMPT, StairsEnvironment


def evaluator(world: Callable[[], Environment] = StairsEnvironment, live: int = 256) -> Episodes:
    return Episodes("stairs-1", world, STAIRS_PROMPT, "kind", Sampling(16, stop=("\n",)), live=live)


def climber(chat: Chat) -> str:
    """Climbs, but waits on every third step, from what the whole conversation says."""
    return "wait" if len(chat) % 6 == 5 else "up"


def test_every_episode_is_played_to_its_end_and_scored() -> None:
    found = evaluator().evaluate(ScriptedEngine(climber), STAIRS_EXAMPLES, EvalSettings())
    assert [result.score for result in found.results] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [result.group for result in found.results] == ["low"] * 3 + ["high"] * 5
    first = found.results[2].trajectory
    assert [turn.action for turn in first] == ["", "up", "up", "wait", "up"]
    assert first[0].observation == "You stand on step 0. Climb to step 3."
    assert first[-1].observation == "You stand on step 3."
    assert found.how["prompts"] == "stairs"


def test_what_the_model_wrote_is_recorded_where_it_is_more_than_the_action() -> None:
    def talker(chat: Chat) -> str:
        return f"{climber(chat)}\nbecause it is there" + "!" * 5000 if len(chat) > 1 else climber(chat)

    wordy = replace(evaluator(), sampling=Sampling(10_000))
    turns = wordy.evaluate(ScriptedEngine(talker), STAIRS_EXAMPLES[1:2], EvalSettings()).results[0].trajectory
    assert [turn.action for turn in turns] == ["", "up", "up"]
    assert [turn.reply[:24] for turn in turns] == ["", "", "up\nbecause it is there!!"]
    assert len(turns[-1].reply) == 4000


@pytest.mark.parametrize("live", [1, 3, 8])
def test_the_result_does_not_depend_on_how_many_play_at_once(live: int) -> None:
    alone = evaluator(live=256).evaluate(ScriptedEngine(climber), STAIRS_EXAMPLES, EvalSettings())
    assert evaluator(live=live).evaluate(ScriptedEngine(climber), STAIRS_EXAMPLES, EvalSettings()) == alone


def test_worlds_are_used_again_and_closed() -> None:
    closed: list[StairsEnvironment] = []
    evaluator(lambda: StairsEnvironment(closed), live=3).evaluate(
        ScriptedEngine(climber), STAIRS_EXAMPLES, EvalSettings()
    )
    assert len(closed) == 3


def test_a_model_with_a_template_is_told_in_chats_and_one_without_continues_text() -> None:
    assert [message.content for message in STAIRS_PROMPT.build_first_message("You see.", as_chat=True)] == [
        "Say up or wait.\n\nYou see."
    ]
    plain = STAIRS_PROMPT.build_first_message("You see.", as_chat=False)[0].content
    assert plain.endswith("You stand on step 4.\n\nYou see.\n>")
    assert STAIRS_PROMPT.build_next_message("Now.", as_chat=False)[0].content == "\nNow.\n>"


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Thought: a desk.\nAction: go to desk 1", "go to desk 1"),
        ("**Action:** go to desk 1", "go to desk 1"),
        ('Action: "go to desk 1"', "go to desk 1"),
        ("Action: **look**", "look"),
        ("Action 2: search[a 'b' c]", "search[a 'b' c]"),
        ("Think first.\nAction:\n`go to desk 1`", "go to desk 1"),
        ("'", "'"),
        ("look " * 1000, ("look " * 1000)[:1000]),
        ("go to desk 1", "go to desk 1"),
        ("\n\n  go to desk 1  \nOK", "go to desk 1"),
        ("> go to desk 1", "go to desk 1"),
        ("Action: go to desk 1", "go to desk 1"),
        ("think: where is it?", "think: where is it?"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_the_action_is_the_first_line_that_says_something(reply: str, action: str) -> None:
    assert extract_action(reply) == action


def test_several_samples_at_temperature_0_are_refused() -> None:
    with pytest.raises(UserError, match="temperature 0"):
        evaluator().evaluate(
            ScriptedEngine(climber), STAIRS_EXAMPLES, EvalSettings(samples=2, temperature=0.0)
        )


@pytest.fixture(scope="module")
def seedling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seedling")
    registry.find_model("seedling").write(directory)
    return directory


@pytest.mark.thorough
@pytest.mark.parametrize("samples", [1, 3])
def test_with_a_real_model_episodes_are_the_same_alone_and_together(seedling: Path, samples: int) -> None:
    settings = EvalSettings(seed=5, samples=samples)
    with registry.find_engine("transformers")(seedling) as engine:
        few = STAIRS_EXAMPLES[: 12 // samples]
        found = [evaluator(live=live).evaluate(engine, few, settings) for live in (1, 7, 256)]
    assert found[0] == found[1] == found[2]
    if samples > 1:
        spoken_by = {attempt.output for result in found[0].results for attempt in result.attempts}
        assert len(spoken_by) > 1


@pytest.mark.parametrize(
    ("task", "samples"), [pytest.param("alfworld-mini", 1, marks=pytest.mark.thorough), ("gsm8k-mini", 2)]
)
def test_several_processes_give_the_results_of_one(seedling: Path, task: str, samples: int) -> None:
    evaluator = registry.find_task(task).evaluator
    examples = registry.find_task(task).load(None).feedback[:5]
    settings = EvalSettings(seed=5, samples=samples)
    with open_engine(seedling) as engine:
        alone = evaluator.evaluate(engine, examples, settings)
        with ForkedEngine(engine, 2) as forked:
            assert evaluator.evaluate(forked, examples, settings) == alone


def test_an_episode_that_outgrows_the_context_is_over_and_does_not_end_the_grading(seedling: Path) -> None:
    class Talkative(StairsEnvironment):
        def step(self, action: str) -> EnvironmentStep:  # noqa: ARG002
            return EnvironmentStep("word " * 300)

    with registry.find_engine("transformers")(seedling) as engine:
        found = evaluator(Talkative).evaluate(engine, STAIRS_EXAMPLES[:2], EvalSettings())
    assert {result.note for result in found.results} == {FULL}
    assert {result.score for result in found.results} == {0.0}


def test_a_slow_world_is_stepped_by_many_hands_and_gives_the_same_episodes() -> None:
    together = threading.Barrier(4, timeout=60)

    class Slow(StairsEnvironment):
        def step(self, action: str) -> EnvironmentStep:
            if self.steps == 0:
                together.wait()  # breaks unless four of them step at the same time
            return super().step(action)

    four = STAIRS_EXAMPLES[4:]  # none of which can be climbed in time, so that all go on to the end
    slow = replace(evaluator(Slow), slow=True).evaluate(ScriptedEngine(climber), four, EvalSettings())
    assert slow == evaluator().evaluate(ScriptedEngine(climber), four, EvalSettings())


class Halves(StairsEnvironment):
    """Every step up is worth a share of the whole way."""

    def step(self, action: str) -> EnvironmentStep:
        return replace(super().step(action), reward=self.height / self.goal)


def test_where_success_has_a_bound_it_is_the_score_and_the_reward_stands_beside_it() -> None:
    graded = replace(evaluator(Halves), success=1.0, also=(0.5, 0.9))
    found = graded.evaluate(ScriptedEngine(climber), STAIRS_EXAMPLES, EvalSettings()).results
    assert [result.score for result in found] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [result.metrics["reward"] for result in found] == [1, 1, 1, 1, 4 / 5, 4 / 6, 4 / 7, 4 / 8]
    assert [result.metrics["reward>=0.5"] for result in found] == [1] * 8
    assert [result.metrics["reward>=0.9"] for result in found] == [1] * 4 + [0] * 4
    plain = evaluator(Halves).evaluate(ScriptedEngine(climber), STAIRS_EXAMPLES, EvalSettings()).results
    assert [result.score for result in plain] == [result.metrics["reward"] for result in found]
    assert not any(result.metrics for result in plain)
    versions = {one.version for one in (evaluator(), graded, replace(graded, also=()))}
    assert len(versions) == 3


def test_several_episodes_are_marked_together() -> None:
    graded = replace(evaluator(Halves), success=1.0, also=(0.5,))
    settings = EvalSettings(samples=2, temperature=1.0)
    (found,) = graded.evaluate(ScriptedEngine(climber), STAIRS_EXAMPLES[4:5], settings).results
    assert found.metrics == {"pass@1": 0, "pass@2": 0, "reward": 4 / 5, "reward>=0.5": 1}


def test_an_evaluator_of_episodes_is_an_evaluator() -> None:
    found: Evaluator = evaluator()
    assert found.version != evaluator().version.replace("stairs-1", "stairs-2")
    sampling = Sampling(max_tokens=8)
    assert Episodes("stairs-1", StairsEnvironment, STAIRS_PROMPT, sampling=sampling).version != found.version


def test_a_long_reply_is_read_in_no_time() -> None:
    reply = "action" + ":" * 100_000
    began = time.thread_time()
    assert extract_action(reply) == ":" * 1000
    assert time.thread_time() - began < 2
