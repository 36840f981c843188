"""Episodes in training: token for token those of grading, and worth learning from."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agent2rl import registry
from agent2rl.core.engine import Chat, Completion, Sampling
from agent2rl.core.environment import EnvironmentStep
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Example
from agent2rl.engines.transformers import TransformersEngine, measure_batch_limits
from agent2rl.engines.transformers.decoding import FollowUp, GenerationRequest
from agent2rl.engines.transformers.loading import load_model
from agent2rl.evaluators.episode_prompts import EpisodePrompt, extract_action
from agent2rl.evaluators.episodes import Episodes
from agent2rl.training import models, rollouts
from agent2rl.training.grpo import GrpoRollout, GrpoSettings, RolloutJob
from agent2rl.training.policy import build_sequences
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.rollouts import EpisodeRollouts, WorldSetup, encode_expert_games, grpo_in_world
from agent2rl.training.sampling import PolicySampler
from agent2rl.training.sft import SftSettings, imitate
from tests.helpers.stairs_environment import STAIRS_EXAMPLES, STAIRS_PROMPT, StairsEnvironment, StairsExpert
from tests.helpers.tiny_models import write_tiny_llama

SAMPLING = Sampling(max_tokens=8, stop=("\n",))
EVALUATOR = Episodes("stairs-1", StairsEnvironment, STAIRS_PROMPT, sampling=SAMPLING)
SETUP = WorldSetup(StairsEnvironment, STAIRS_PROMPT, extract_action, SAMPLING)
Turn = tuple[list[int], list[int]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    seedling = tmp_path_factory.mktemp("seedling")
    registry.find_model("seedling").write(seedling)
    return {
        "seedling": seedling,
        "templated": write_tiny_llama(tmp_path_factory.mktemp("templated")),
        "plain": write_tiny_llama(tmp_path_factory.mktemp("plain"), chat_template=False),
    }


class Overheard(TransformersEngine):
    """The engine that grades, with a record of the tokens that it reads and says, conversation by
    conversation."""

    def __init__(self, directory: Path) -> None:
        model = load_model(directory)
        super().__init__(model, measure_batch_limits(model))
        self.turns: dict[str, list[Turn]] = {}

    def run_requests(
        self,
        chats: Sequence[Chat],
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        follow_up: FollowUp | None = None,
    ) -> list[Completion]:
        found = super().run_requests(chats, requests, sampling, follow_up)
        for request in requests:
            _, name, _ = request.seed.split(":")
            self.turns.setdefault(name, []).append((request.ids, request.reply))
        return found


def played(base: Path, games: Sequence[Example], group: int, seed: int = 5) -> list[list[GrpoRollout]]:
    sampler = PolicySampler(*models.load(base))
    source = EpisodeRollouts(sampler, SETUP, games, group)
    try:
        return source.play_games(games, seed)
    finally:
        source.close()
        sampler.close()


@pytest.mark.parametrize("name", ["seedling", "plain", pytest.param("templated", marks=pytest.mark.thorough)])
def test_an_episode_in_training_is_token_for_token_the_one_that_would_be_graded(
    bases: dict[str, Path], name: str
) -> None:
    found = played(bases[name], STAIRS_EXAMPLES[:3], group=2)
    with Overheard(bases[name]) as engine:
        settings = EvalSettings(samples=2, temperature=1.0, seed=5)
        graded = EVALUATOR.evaluate(engine, STAIRS_EXAMPLES[:3], settings)
    for example, result, group in zip(STAIRS_EXAMPLES, graded.results, found, strict=False):
        for number, attempt in enumerate(group):
            assert attempt.rows == build_sequences(engine.turns[f"{example.id}#{number}"])
            assert attempt.reward == result.attempts[number].score
            assert attempt.won == (attempt.reward == 1.0)


def test_a_model_with_a_template_reads_an_episode_once_and_one_without_reads_each_turn(
    bases: dict[str, Path],
) -> None:
    """Which is what their conversations are in grading."""
    counts = {}
    for name in ("templated", "plain"):
        model, tokenizer = models.load(bases[name])
        (shown,) = encode_expert_games(model, tokenizer, SETUP, StairsExpert, STAIRS_EXAMPLES[3:4])
        counts[name] = len(shown)
    assert counts == {"templated": 1, "plain": 4}


def test_the_attempts_are_the_same_however_the_work_is_shared(bases: dict[str, Path]) -> None:
    sampler = PolicySampler(*models.load(bases["templated"]))
    source = EpisodeRollouts(sampler, SETUP, STAIRS_EXAMPLES, group=2)
    try:
        whole = source.sample_rollouts(RolloutJob([2, 5, 1], [0, 1, 2], seed=9))
        shares = [source.sample_rollouts(RolloutJob(asked, [], seed=9)) for asked in ([2, 1], [5])]
    finally:
        sampler.close()
    assert whole == [shares[0][0], shares[1][0], shares[0][1]]


def test_the_same_game_twice_in_a_step_is_not_the_same_episode_twice(bases: dict[str, Path]) -> None:
    first, second = played(bases["templated"], [STAIRS_EXAMPLES[0], STAIRS_EXAMPLES[0]], group=1)
    assert first[0].rows[0].prompt == second[0].rows[0].prompt
    assert first != second


def test_an_episode_ends_after_the_most_turns_of_its_arena(bases: dict[str, Path]) -> None:
    sampler = PolicySampler(*models.load(bases["templated"]))
    turns: list[int] = []

    class Counted(StairsEnvironment):
        def step(self, action: str) -> EnvironmentStep:
            turns.append(self.steps)
            return super().step(action)

    setup = replace(SETUP, world=Counted, most_turns=2)
    source = EpisodeRollouts(sampler, setup, STAIRS_EXAMPLES, group=2)
    try:
        source.play_games(STAIRS_EXAMPLES[4:6], 0)  # their goals take more steps
    finally:
        source.close()
        sampler.close()
    assert sorted(turns) == [0] * 4 + [1] * 4


def test_a_conversation_that_outgrows_the_context_ends_with_what_it_has(bases: dict[str, Path]) -> None:
    class Talkative(StairsEnvironment):
        def step(self, action: str) -> EnvironmentStep:
            return replace(super().step(action), observation="word " * 900, done=False)

    sampler = PolicySampler(*models.load(bases["templated"]))
    source = EpisodeRollouts(sampler, replace(SETUP, world=Talkative), STAIRS_EXAMPLES, group=1)
    try:
        ((attempt,),) = source.play_games(STAIRS_EXAMPLES[:1], seed=0)
    finally:
        source.close()
        sampler.close()
    assert all(len(row.prompt) + len(row.tokens) <= 2048 for row in attempt.rows)
    assert 0 < attempt.tokens <= 4 * SAMPLING.max_tokens


@pytest.mark.parametrize("name", ["templated", pytest.param("plain", marks=pytest.mark.thorough)])
def test_a_model_that_knows_the_demonstrations_by_heart_plays_them_token_for_token(
    bases: dict[str, Path], name: str, tmp_path: Path
) -> None:
    model, tokenizer = models.load(bases[name])
    games = STAIRS_EXAMPLES[:4]
    shown = list(encode_expert_games(model, tokenizer, SETUP, StairsExpert, games))
    known = [row for found in shown for row in found]
    imitate(model, known, SftSettings(1e-2, epochs=30, batch_size=8), TrainingProgress("sft"))
    models.save(model, tokenizer, tmp_path / "taught")
    with Overheard(tmp_path / "taught") as engine:
        graded = EVALUATOR.evaluate(engine, games, EvalSettings())
    assert [result.score for result in graded.results] == [1.0] * 4
    assert [build_sequences(engine.turns[f"{game.id}#0"]) for game in games] == shown


def test_games_that_the_expert_does_not_win_are_not_shown(bases: dict[str, Path]) -> None:
    model, tokenizer = models.load(bases["templated"])
    too_high = Example("too-high", "", "99", {})
    assert (
        len(list(encode_expert_games(model, tokenizer, SETUP, StairsExpert, [too_high, STAIRS_EXAMPLES[0]])))
        == 1
    )


class Letters:
    """A world of two turns: its reward is the share of the letter a in what was said."""

    def reset(self, example: Example) -> EnvironmentStep:
        self.said = ""
        return EnvironmentStep(f"Say {example.target}.")

    def step(self, action: str) -> EnvironmentStep:
        first = not self.said
        self.said += f"{action} "
        return EnvironmentStep("And again.", self.said.count("a") / len(self.said), done=not first)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("level", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_grpo_raises_the_reward_of_a_world(bases: dict[str, Path], level: bool) -> None:
    model, tokenizer = models.load(bases["templated"])
    setup = WorldSetup(Letters, EpisodePrompt("Speak."), extract_action, Sampling(max_tokens=6))
    games = [Example(str(number), "", str(number), {}) for number in range(8)]
    settings = GrpoSettings(learning_rate=1e-2, steps=10, prompts=8, group=8, average_by_attempt=level)
    result = grpo_in_world(model, tokenizer, setup, games, settings, TrainingProgress("grpo"))
    assert result.steps == 10
    assert sum(result.rewards[-3:]) > 2 * sum(result.rewards[:3])


def test_the_former_name_of_a_setup_can_still_be_imported() -> None:
    """Programs of recorded runs import it."""
    assert rollouts.Arena is rollouts.WorldSetup
