"""Digests of runs that nobody ran, for statistics whose answers are known."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.random import Generator

from agent2rl.analysis.campaigns.run_digest import RunDigest, RunSpending, ScoredPoint
from agent2rl.core.grading_records import Interval

SPENDING = RunSpending(seconds=100.0, tokens=1000, usd=1.0, gpu_seconds=50.0, environment_steps=10)


def make_digest(gain: float | None = 0.0, run_id: str = "r", **known: object) -> RunDigest:
    """A finished run that improved so much on held-out data; None: nothing was scored."""
    fields: dict[str, object] = {
        "run_id": run_id,
        "task": "sums",
        "agent": "tester",
        "driver": None,
        "model": "tiny",
        "mode": "free",
        "protocol": "default",
        "seed": 0,
        "budget_seconds": 100.0,
        "state": "finished",
        "ending": "completed",
        "baseline": 20.0,
        "score": None if gain is None else 20.0 + gain,
        "improvement": gain,
        "chosen_gain": None if gain is None else 1.0,
        "interval": None if gain is None else _make_interval(gain),
        "real": None if gain is None else gain > 2,
        "p_value": None,
        "submissions": 1,
        "scored": 0 if gain is None else 1,
        "route": None if gain is None else "sft",
        "total": SPENDING,
        "curve": (),
        "differences": (),
        "examples_sha256": None,
        "contaminated": False,
    }
    return RunDigest.model_validate({**fields, **known})


def make_digests(gains: Iterable[float | None], prefix: str = "r", **known: object) -> list[RunDigest]:
    """One of each gain; seeds count up from 0."""
    return [
        make_digest(gain, f"{prefix}{place:05d}", **{"seed": place, **known})
        for place, gain in enumerate(gains)
    ]


def make_ranked_digests(
    differences: Sequence[Sequence[float]], prefix: str = "r", **known: object
) -> list[RunDigest]:
    """Runs on the same examples, whose differences are these; gains are their means."""
    name = hashlib.sha256(str(len(differences[0])).encode()).hexdigest()
    return [
        make_digest(
            100 * float(np.mean(each)),
            f"{prefix}{place:05d}",
            **{"seed": place, "differences": tuple(each), "examples_sha256": name, **known},
        )
        for place, each in enumerate(differences)
    ]


def make_score_course(*points: tuple[float, float]) -> tuple[ScoredPoint, ...]:
    """Seconds and the best gain so far."""
    return tuple(
        ScoredPoint(
            spent=SPENDING.model_copy(update={"seconds": seconds, "tokens": int(10 * seconds)}),
            submissions=number,
            best=best,
        )
        for number, (seconds, best) in enumerate(points, 1)
    )


def simulate_differences(
    random: Generator, n: int, m: int, run_sd: float, example_sd: float, noise_sd: float
) -> list[list[float]]:
    """Differences of runs on the same examples: an effect of the run, one of the example, and the rest."""
    run = random.normal(0, run_sd, size=(n, 1))
    example = random.normal(0, example_sd, size=(1, m))
    found: list[list[float]] = (run + example + random.normal(0, noise_sd, size=(n, m))).tolist()
    return found


def _make_interval(gain: float) -> Interval:
    return Interval(low=gain - 2, high=gain + 2, method="paired-bootstrap")
