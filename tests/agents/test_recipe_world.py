"""The recipe agent in a world: what it reads out of a workspace, and that it learns there."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

from agent2rl.agents.recipe import plan, subjects, train
from agent2rl.agents.recipe.subjects import PolicyLearner, TrainingRound, WorldSubject
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.training import grpo, models, optimizer, rollouts
from agent2rl.training.conversations import encode_demonstrations
from agent2rl.training.demonstrations import (
    DEMONSTRATIONS_FILE,
    Demonstration,
    DemonstrationTurn,
    format_demonstrations,
)
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.sampling import PolicySampler
from agent2rl.training.sft import SftResult
from tests.helpers.stairs_environment import STAIRS_EXAMPLES, STAIRS_PROMPT, StairsEnvironment, StairsExpert
from tests.helpers.tiny_models import write_tiny_llama

EVAL = """
from agent2rl.core.engine import Sampling
from agent2rl.evaluators.episodes import Episodes
from tests.helpers.stairs_environment import STAIRS_PROMPT, StairsEnvironment

SAMPLING = Sampling(max_tokens=8, stop=("\\n",))
EVALUATOR = Episodes("stairs-1", StairsEnvironment, STAIRS_PROMPT, sampling=SAMPLING)
"""


def open_stairs(data: Path) -> World:
    """Without an expert where the data has no demonstration of one."""
    return World(
        tuple(STAIRS_EXAMPLES[:4]), StairsEnvironment, StairsExpert if (data / "expert").exists() else None
    )


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> train.RecipeJob:
    torch.set_num_threads(1)
    data = tmp_path / "data"
    data.mkdir()
    (data / "world.json").write_text(json.dumps({"world": "tests.agents.test_recipe_world:open_stairs"}))
    (data / "expert").touch()
    (tmp_path / "eval.py").write_text(EVAL)
    (tmp_path / "run_meta.json").write_text(json.dumps({"seed": 3, "mode": "free"}))
    places = {"WORKSPACE": tmp_path, "DATA_PATH": data, "OUTPUT_DIR": tmp_path / "output"}
    places["MODEL_PATH"] = write_tiny_llama(tmp_path / "base")
    for name, path in places.items():
        monkeypatch.setenv(name, str(path))
    return train.RecipeJob.read()


@pytest.fixture
def games(job: train.RecipeJob) -> WorldSubject:
    assert isinstance(job.subject, WorldSubject)
    return job.subject


def now(job: train.RecipeJob, stage: str, seconds: float) -> TrainingRound:
    return TrainingRound(
        1, stage, job.base, job.output / stage, seconds, 20.0, job.derive_round_seed(1), job.progress
    )


def test_the_world_is_put_to_the_model_as_the_grader_puts_it(games: WorldSubject) -> None:
    assert games.setup.prompt == STAIRS_PROMPT
    assert games.setup.sampling.stop == ("\n",)
    assert games.setup.action("> up") == "up"
    assert games.setup.world().reset(STAIRS_EXAMPLES[1]) == StairsEnvironment().reset(STAIRS_EXAMPLES[1])


def test_a_run_that_withholds_the_expert_has_grpo_alone(
    games: WorldSubject, capsys: pytest.CaptureFixture[str]
) -> None:
    assert games.stages(["sft", "grpo"]) == ["sft", "grpo"]
    alone = replace(games, world=replace(games.world, expert=None))
    stages = train.order_stages(["sft", "grpo"], alone)
    assert [next(stages) for _ in range(2)] == ["grpo", "grpo"]
    assert "skipping SFT" in capsys.readouterr().out
    with pytest.raises(UserError, match="no expert games"):
        alone.stages(["sft"])


def test_a_run_with_demonstrations_trains_on_their_file(job: train.RecipeJob, games: WorldSubject) -> None:
    """They become the sequences of the expert's own games."""
    learner = PolicyLearner(*models.load(job.base))
    shown = [_demonstrate(example) for example in games.world.games]
    (job.output.parent / "data" / DEMONSTRATIONS_FILE).write_text(format_demonstrations(shown))
    (job.output.parent / "data" / "expert").unlink()
    alone = train.RecipeJob.read().subject
    assert isinstance(alone, WorldSubject)
    assert alone.world.expert is None
    assert alone.stages(["sft", "grpo"]) == ["sft", "grpo"]
    assert alone.shown == shown
    played = rollouts.encode_expert_games(
        learner.model, learner.tokenizer, games.setup, StairsExpert, games.world.games
    )
    read = encode_demonstrations(learner.model, learner.tokenizer, alone.setup.prompt, alone.shown)
    assert read == [sequence for sequences in played for sequence in sequences]
    assert alone.sft(now(job, "sft", 2.0), learner)


def _demonstrate(example: Example) -> Demonstration:
    environment, expert = StairsEnvironment(), StairsExpert()
    step, turns = environment.reset(example), []
    while not step.done:
        turns.append(DemonstrationTurn(observation=step.observation, action=expert.act(step.observation)))
        step = environment.step(turns[-1].action)
    return Demonstration(game=example.id, turns=tuple(turns))


def test_an_eval_py_that_says_nothing_of_episodes_is_refused(job: train.RecipeJob, tmp_path: Path) -> None:
    for text, said in (("x = 1", "Cannot load the EVALUATOR"), ("EVALUATOR = 1", "plays no episodes")):
        (tmp_path / "eval.py").write_text(text)
        with pytest.raises(UserError, match=said):
            train.RecipeJob.read()


@pytest.fixture
def cpu_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure CPU time, so that a busy machine trains for as many steps as an idle one."""
    clock = SimpleNamespace(monotonic=time.process_time)
    for module in (subjects, optimizer, grpo):
        monkeypatch.setattr(module, "time", clock)


@pytest.mark.usefixtures("cpu_clock")
def test_the_recipe_learns_from_the_expert_and_then_from_itself(
    job: train.RecipeJob, games: WorldSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FEWEST_GAMES", 4)  # so that a step takes no longer than the test has
    # The usual rate for a model this small is 0.018, at which dozens of steps on four games may undo it.
    monkeypatch.setitem(plan.RATES, "play", plan.RATES["play"] / 10)
    learner = PolicyLearner(*models.load(job.base))
    before = reward(games, learner)
    spent = games.sft(now(job, "sft", 3.0), learner)
    assert spent is not None
    assert 0 < spent < 5
    warm = reward(games, learner)
    assert warm > before
    shares: list[float] = []
    assert games.grpo(now(job, "grpo", 4.0), learner, lambda course: shares.append(course.share))
    assert shares == sorted(shares)
    stages = [json.loads(line)["stage"] for line in job.progress.read_text().splitlines()]
    assert {"sft", "grpo"} == set(stages)
    assert reward(games, learner) >= warm / 2


SampledEpisodes = list[grpo.GrpoRollout]
LOST, PARTLY_REWARDED, WON = (
    [grpo.GrpoRollout((), reward=reward, won=won)]
    for reward, won in ((0.0, False), (0.9, False), (1.0, True))
)


@pytest.mark.usefixtures("cpu_clock")
@pytest.mark.parametrize(
    "sampled",
    [[WON], [LOST, WON], [PARTLY_REWARDED, WON]],
    ids=["first", "second", "second, after a part of the reward"],
)
def test_a_warm_up_ends_with_the_part_after_which_enough_episodes_are_won(
    job: train.RecipeJob, games: WorldSubject, monkeypatch: pytest.MonkeyPatch, sampled: list[SampledEpisodes]
) -> None:
    """Each part has a whole schedule: the learning rate falls to its end."""
    practice = iter([*sampled, WON])
    monkeypatch.setattr(plan, "choose_epochs", lambda _: 3 * plan.WARM_UP_EPOCHS)
    monkeypatch.setattr(WorldSubject, "_play_groups", lambda *_: [next(practice)])
    learner = PolicyLearner(*models.load(job.base))
    assert games.sft(replace(now(job, "sft", 600.0), is_warm_up=True), learner)
    assert list(practice) == [WON]
    steps = [json.loads(line)["step"] for line in job.progress.read_text().splitlines()]
    parts = [step for step in steps if step == max(steps)]
    assert len(parts) == len(sampled)


@pytest.mark.parametrize(("seconds", "parts"), [(60.0, 1), (600.0, 2)], ids=["time", "epochs"])
def test_a_warm_up_plays_only_if_another_part_can_follow(
    job: train.RecipeJob, games: WorldSubject, monkeypatch: pytest.MonkeyPatch, seconds: float, parts: int
) -> None:
    """Playing takes time that the round does not have at its end."""
    trained: list[float] = []
    played: list[SampledEpisodes] = []

    def imitate(*_: object) -> SftResult:
        trained.append(40.0)
        return SftResult(steps=5, tokens=5, seconds=40.0, loss=1.0)

    def play_groups(*_: object) -> list[SampledEpisodes]:
        played.append(LOST)
        return [LOST]

    monkeypatch.setattr(subjects, "imitate", imitate)
    monkeypatch.setattr(subjects, "time", SimpleNamespace(monotonic=lambda: sum(trained)))
    monkeypatch.setattr(WorldSubject, "_play_groups", play_groups)
    monkeypatch.setattr(plan, "choose_epochs", lambda _: 2 * plan.WARM_UP_EPOCHS)
    warm_up = replace(now(job, "sft", seconds), is_warm_up=True)
    assert games.sft(warm_up, PolicyLearner(*models.load(job.base))) == 40.0 * parts
    assert played == [LOST] * (parts - 1)


def test_few_steps_in_a_world_learn_as_fast_as_many(job: train.RecipeJob) -> None:
    rates = [now(job, "grpo", seconds).plan_grpo(seconds, 1.0, 1e-4) for seconds in (100.0, 10_000.0)]
    assert [rate and rate.learning_rate for rate in rates] == [pytest.approx(20e-4)] * 2


def reward(games: WorldSubject, learner: PolicyLearner) -> float:
    """The mean over sampled episodes."""
    sampler = PolicySampler(learner.model, learner.tokenizer)
    source = rollouts.EpisodeRollouts(sampler, games.setup, games.world.games, group=8)
    try:
        found = source.play_games(games.world.games, seed=77)
    finally:
        source.close()
        sampler.close()
    return fmean(attempt.reward for group in found for attempt in group)


@dataclass
class InstantSubject:
    """Trains nothing, and remembers from which model it would have."""

    starts: list[str] = field(default_factory=list)

    def stages(self, wanted: Sequence[str]) -> list[str]:
        return list(wanted)

    def sft(self, now: TrainingRound, learner: PolicyLearner) -> float:
        del learner
        self.starts.append(f"{now.stage} from {now.start.name}")
        return 1.0

    def grpo(
        self, now: TrainingRound, learner: PolicyLearner, look: Callable[[TrainingSchedule], None]
    ) -> float:
        del look
        return self.sft(now, learner)


def run_rounds(
    job: train.RecipeJob, monkeypatch: pytest.MonkeyPatch, clock: Sequence[float], scores: Sequence[float]
) -> tuple[list[str], list[str]]:
    """Run the recipe until the clock ends; return where its rounds began and what it submitted."""
    subject, submitted, answers, seconds = InstantSubject(), [], iter(scores), iter(clock)

    def submit_model(path: Path) -> dict[str, float]:
        assert path.is_dir()
        submitted.append(path.name)
        return {"score": next(answers), "baseline_score": 10.0}

    monkeypatch.setattr(train.RecipeJob, "read", lambda: replace(job, subject=subject))
    monkeypatch.setattr(train, "submit_model", submit_model)
    monkeypatch.setattr(train, "fetch_remaining_seconds", lambda: next(seconds, 0.0))
    monkeypatch.setattr("sys.argv", ["train", "sft", "grpo"])
    train.main()
    return subject.starts, submitted


def test_a_warm_up_is_submitted_where_any_training_may_win(
    job: train.RecipeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = run_rounds(job, monkeypatch, (100, 100, 60), scores=(50.0, 40.0))
    assert rounds == (["sft from base", "grpo from 1-sft"], ["1-sft", "2-grpo"])


def test_in_rl_oriented_grpo_starts_from_a_warm_up_that_is_not_submitted(
    job: train.RecipeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    oriented = replace(job, mode="rl-oriented")
    starts, submitted = run_rounds(oriented, monkeypatch, (100, 100, 60, 40), scores=(40.0, 30.0))
    assert starts == ["sft from base", "grpo from 1-sft", "grpo from 2-grpo"]
    assert submitted == ["2-grpo", "3-grpo"]
    assert not (job.output / "1-sft").exists()


def test_in_rl_oriented_the_warm_up_stays_until_grpo_beats_the_base_model(
    job: train.RecipeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    oriented = replace(job, mode="rl-oriented")
    starts, submitted = run_rounds(oriented, monkeypatch, (100, 100, 60, 40), scores=(5.0, 30.0))
    assert starts == ["sft from base", "grpo from 1-sft", "grpo from 1-sft"]
    assert submitted == ["2-grpo", "3-grpo"]


def test_in_rl_oriented_a_warm_up_that_leaves_no_time_for_grpo_is_skipped(
    job: train.RecipeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    oriented = replace(job, mode="rl-oriented")
    starts, submitted = run_rounds(oriented, monkeypatch, (14, 14, 14), scores=(40.0,))
    assert (starts, submitted) == (["grpo from base"], ["2-grpo"])
