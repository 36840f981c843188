"""Campaigns in which nothing improves: how often would it be said that something did?

Every example of a population is right or wrong for the untouched model. A submission decides some examples
otherwise, as many for the better as for the worse: its accuracy on the population is the same, and whatever a
split of finite size shows is chance. Several are submitted in a run, and the protocol's rule chooses one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from agent2rl.analysis import statistics
from agent2rl.analysis.campaigns.resampling import hash_seed
from agent2rl.analysis.campaigns.run_digest import RunDigest, RunSpending
from agent2rl.analysis.gain import ALPHA, mcnemar
from agent2rl.core.grading_records import EvalResult, ExampleResult, Interval
from agent2rl.core.records import Mode

NOTHING = RunSpending(seconds=0.0, tokens=0, usd=0.0, gpu_seconds=0.0, environment_steps=0)
MODES = get_args(Mode)
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class NullScenario:
    """A task and an agent that never improve anything."""

    feedback: int
    heldout: int
    accuracy: float
    """Of the untouched model, and of every submission."""
    churn: float
    """How much a submission decides otherwise: of the examples that are right, the share that goes wrong."""
    submissions: int

    @property
    def changed(self) -> tuple[float, float]:
        """Chance that an example that is wrong becomes right, and of the reverse: equal numbers of both."""
        lost = self.churn
        won = lost * self.accuracy / (1 - self.accuracy)
        if won > 1:
            lost, won = (1 - self.accuracy) / self.accuracy, 1.0
        return won, lost


@dataclass(frozen=True)
class NullClaims:
    """What is said of runs that gained nothing; an array each, one value a run."""

    better: NDArray[np.bool_]
    """On feedback: the best submission is taken, and not the untouched model."""
    improved: NDArray[np.bool_]
    """Our rule: so it is, and on held-out data the interval is above 0 and McNemar's test agrees."""
    p_value: NDArray[np.float64]
    """Of McNemar's exact test on held-out data; 1 where the untouched model is left."""
    best_of_test: NDArray[np.bool_]
    """The paper's rule: the best score on the test set is above the untouched model's."""
    best_of_test_interval: NDArray[np.bool_]
    """The same, and its interval, taken as if nothing had been chosen, is above 0."""
    test_gain: NDArray[np.float64]
    """What the paper's rule reports, in points."""
    heldout_gain: NDArray[np.float64]
    """What ours does; 0 where the untouched model is left."""


def simulate_claims(null: NullScenario, runs: int, random: Generator) -> NullClaims:
    feedback = _draw_flips(null, null.feedback, runs, random)
    heldout = _draw_flips(null, null.heldout, runs, random)
    test = feedback + heldout
    chosen = np.argmax(feedback[..., 0] - feedback[..., 1], axis=1)
    first = np.argmax(test[..., 0] - test[..., 1], axis=1)
    every = np.arange(runs)
    told, seen, best = feedback[every, chosen], heldout[every, chosen], test[every, first]
    better = told[:, 0] > told[:, 1]
    above = np.array(
        [_is_interval_above_zero(int(won), int(lost), null.heldout) for won, lost in seen], dtype=bool
    )
    exact = np.array([_mcnemar(int(won), int(lost)) for won, lost in seen])
    size = null.feedback + null.heldout
    gained = best[:, 0] > best[:, 1]
    return NullClaims(
        better=better,
        improved=better & above & (exact <= ALPHA),
        p_value=np.where(better, exact, 1.0),
        best_of_test=gained,
        best_of_test_interval=gained
        & np.array([_is_interval_above_zero(int(won), int(lost), size) for won, lost in best], dtype=bool),
        test_gain=100 * np.maximum(0, best[:, 0] - best[:, 1]) / size,
        heldout_gain=np.where(better, 100 * (seen[:, 0] - seen[:, 1]) / null.heldout, 0.0),
    )


def _draw_flips(null: NullScenario, examples: int, runs: int, random: Generator) -> Counts:
    """Of each submission of each run: examples won and lost. Its untouched model is one for a run."""
    won, lost = null.changed
    right = random.binomial(examples, null.accuracy, size=(runs, 1))
    shape = (runs, null.submissions)
    gained = random.binomial(np.broadcast_to(examples - right, shape), won)
    gone = random.binomial(np.broadcast_to(right, shape), lost)
    return np.stack([gained, gone], axis=-1)


_mcnemar = cache(mcnemar)


@cache
def _is_interval_above_zero(won: int, lost: int, examples: int) -> bool:
    """Whether the interval that a run reports is above 0. It depends on these numbers alone."""
    return won > lost and compute_interval(won, lost, examples).low > 0


def _is_called_real(won: int, lost: int, examples: int) -> bool:
    return _is_interval_above_zero(won, lost, examples) and _mcnemar(won, lost) <= ALPHA


def compute_interval(won: int, lost: int, examples: int) -> Interval:
    """As a run's own comparison finds it."""
    before = [0.0] * won + [1.0] * lost + [0.0] * (examples - won - lost)
    after = [1.0] * won + [0.0] * lost + [0.0] * (examples - won - lost)
    return statistics.compare_evaluations(_build_evaluation(before), _build_evaluation(after)).ci


def _build_evaluation(scores: list[float]) -> EvalResult:
    results = (ExampleResult(id=str(place), output="", score=score) for place, score in enumerate(scores))
    return EvalResult(results=tuple(results))


def compute_false_real_rate(null: NullScenario) -> float:
    """How often one submission is said to be really better, summed over all that can happen."""
    won, lost = null.changed
    up, down = (1 - null.accuracy) * won, null.accuracy * lost
    total = 0.0
    for gained in range(null.heldout + 1):
        for gone in range(min(gained, null.heldout - gained + 1)):
            chance = _multinomial_probability(gained, gone, null.heldout, up, down)
            if chance > 1e-7 and _is_called_real(gained, gone, null.heldout):
                total += chance
    return total


def _multinomial_probability(gained: int, gone: int, n: int, up: float, down: float) -> float:
    rest = n - gained - gone
    stays = 1 - up - down
    if (gained and up <= 0) or (gone and down <= 0) or (rest and stays <= 0):
        return 0.0
    logs = math.lgamma(n + 1) - math.lgamma(gained + 1) - math.lgamma(gone + 1) - math.lgamma(rest + 1)
    logs += gained * math.log(up) if gained else 0.0
    logs += gone * math.log(down) if gone else 0.0
    logs += rest * math.log(stays) if rest else 0.0
    return math.exp(logs)


def simulate_campaign(null: NullScenario, tasks: int, modes: int, seeds: int, number: int) -> list[RunDigest]:
    """Digests of a whole campaign of nulls. All runs of a task have its untouched model and its examples."""
    found: list[RunDigest] = []
    for task in range(tasks):
        random = np.random.default_rng([number, task])
        base = random.random(null.heldout) < null.accuracy
        right = int(random.binomial(null.feedback, null.accuracy))
        for mode in MODES[:modes]:
            for seed in range(seeds):
                told = _draw_feedback_gain(null, right, random)
                known = {"task": f"task-{task}", "mode": mode, "seed": seed, "protocol": "heldout"}
                differences = _draw_differences(null, base, random)
                examples = f"{hash_seed(str(number), str(task)):016x}"
                found.append(
                    _build_digest(f"{number}-{task}-{mode}-{seed}", known, told, differences, examples)
                )
    return found


def _draw_feedback_gain(null: NullScenario, right: int, random: Generator) -> float:
    """The best gain on feedback, in points."""
    won, lost = null.changed
    gained = random.binomial(null.feedback - right, won, size=null.submissions)
    gone = random.binomial(right, lost, size=null.submissions)
    return 100 * float((gained - gone).max()) / null.feedback


def _draw_differences(null: NullScenario, base: NDArray[np.bool_], random: Generator) -> NDArray[np.float64]:
    """Differences of one submission."""
    won, lost = null.changed
    luck = random.random(len(base))
    moved: NDArray[np.float64] = np.where(base, 0.0 - (luck < lost), 0.0 + (luck < won))
    return moved


def _build_digest(
    run_id: str,
    known: Mapping[str, object],
    told: float,
    differences: NDArray[np.float64],
    examples: str,
) -> RunDigest:
    gained, gone = int((differences > 0).sum()), int((differences < 0).sum())
    improvement = 100 * float(differences.mean())
    return RunDigest.model_validate(
        {
            **known,
            "run_id": run_id,
            "agent": "null",
            "driver": None,
            "model": "null",
            "budget_seconds": 1.0,
            "state": "finished",
            "ending": "completed",
            "baseline": 50.0,
            "score": None,
            "improvement": improvement,
            "chosen_gain": told,
            "interval": None,
            "real": _is_called_real(gained, gone, len(differences)),
            "p_value": mcnemar(gained, gone),
            "submissions": 1,
            "scored": 1,
            "route": None,
            "total": NOTHING,
            "curve": (),
            "differences": tuple(differences.tolist()),
            "examples_sha256": examples,
            "contaminated": False,
        }
    )
