"""What a reader of a training log returns, the interface of readers, and the names of metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from agent2rl.analysis.findings import LogFormat, MetricName

FILE_BYTES = 32 << 20
"""How much of a file is read."""
MOST_ROWS = 200_000
"""Limit on rows of a file."""
GREATEST = 1e30
EARLIEST, LATEST = 1e9, 1e11
"""Plausible times, in seconds since the epoch."""


class LogRow(NamedTuple):
    """Metrics that were logged together."""

    step: float
    time: float | None
    """Seconds since the epoch."""
    values: Mapping[str, float | None]
    """By the name in the file; None: not finite."""
    stage: str = ""


@dataclass(frozen=True)
class LogReading:
    rows: tuple[LogRow, ...] = ()
    problem: str = ""
    """Why the file was not read, or not to its end."""


@dataclass(frozen=True)
class LogReader:
    """Reads one format. `read` never raises: what it cannot read is a problem of its reading."""

    format: LogFormat
    matches: Callable[[str], bool]
    """Whether a file with this name may have the format."""
    read: Callable[[bytes], LogReading]


def parse_number(value: object) -> float | None:
    """Return the number; None if the value is no number, not finite, or too large to compute with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < GREATEST else None


def parse_time(value: object) -> float | None:
    """Return seconds since the epoch, if the value is plausible."""
    number = parse_number(value)
    return number if number is not None and EARLIEST < number < LATEST else None


# Names that trainers give to the metrics that the report shows.
#
# The first names of a list take precedence, if a log has several.


PREFIXES = (
    *("train/", "training/", "train_", "actor/", "policy/", "objective/", "critic/", "perf/", "rollout/"),
    *("metrics/", "logs/"),
)
"""Groups of metrics that do not change what is measured."""
EVALUATED = ("eval", "val/", "val_", "valid", "test/", "test_", "dev/", "dev_")
"""Beginnings of metrics on other data than the training's."""
DEEPEST = 4
"""Limit on groups in a name."""
TOKENS_TOTAL, STEP_SECONDS = "num_tokens", "step_time"
"""From these, tokens per second can be computed."""

NAMES: dict[MetricName, tuple[str, ...]] = {
    "reward": (
        *("reward", "reward_mean", "mean_reward", "rewards/mean", "reward/mean", "rewards", "avg_reward"),
        *("score/mean", "scores", "rlhf_reward", "ep_rew_mean", "episode_reward", "return", "mean_return"),
    ),
    "loss": ("loss", "total_loss", "pg_loss", "policy_loss", "loss/policy_avg", "actor_loss", "loss/mean"),
    "entropy": ("entropy", "policy_entropy", "entropy_mean", "mean_entropy", "entropy_avg", "entropy_loss"),
    "kl": (
        *("kl", "mean_kl", "kl_mean", "kl_div", "kl_divergence", "approx_kl", "approxkl_avg", "ppo_kl"),
        *("kl_loss", "reverse_kl"),
    ),
    "response_length": (
        *("response_length", "completions/mean_length", "completion_length", "response_length/mean"),
        *("response_length_mean", "mean_response_length", "completion_length/mean", "output_length"),
        *("completions/mean_terminated_length", "ep_len_mean", "episode_length"),
    ),
    "groups_without_signal": (
        *("groups_without_signal", "frac_reward_zero_std", "reward_zero_std_frac", "frac_zero_std"),
        *("zero_std_ratio", "zero_variance_ratio"),
    ),
    "tokens_per_second": (
        *("tokens_per_second", "tokens_per_sec", "tokens/s", "tokens_s", "tok_per_sec", "throughput", "tps"),
    ),
    "learning_rate": ("learning_rate", "lr", "lr/mean"),
    "grad_norm": ("grad_norm", "gradient_norm", "grad_norm/mean", "gnorm"),
    "clip_fraction": (
        *("clip_fraction", "clip_ratio/region_mean", "clip_ratio", "clipfrac", "clip_frac", "pg_clipfrac"),
        *("clipfrac_avg", "clip_ratio/high_mean"),
    ),
}
RANKS: dict[str, tuple[MetricName, int]] = {
    name: (metric, rank) for metric, names in NAMES.items() for rank, name in enumerate(names)
}
SINGLE_REWARD = 100
"""Rank of the reward of one reward function, as in `rewards/format/mean`."""


class KnownMetric(NamedTuple):
    metric: MetricName
    rank: int
    """Smaller takes precedence."""


@lru_cache(8192)
def find_metric(name: str) -> KnownMetric | None:
    """Return the metric that a trainer calls by this name; None if it is unknown."""
    bare = name.lower().strip()
    if bare.startswith(EVALUATED):
        return None
    for _ in range(DEEPEST):
        if bare in RANKS:
            return KnownMetric(*RANKS[bare])
        if bare.startswith("rewards/") and bare.endswith("/mean"):
            return KnownMetric("reward", SINGLE_REWARD)
        prefix = next((each for each in PREFIXES if bare.startswith(each)), None)
        if prefix is None:
            return None
        bare = bare.removeprefix(prefix)
    return None


@lru_cache(8192)
def strip_prefix(name: str) -> str:
    """Return a name without the group that it belongs to."""
    return next((name.removeprefix(each) for each in PREFIXES if name.startswith(each)), name)


def is_known(name: str) -> bool:
    """Return whether a metric is worth keeping."""
    return find_metric(name) is not None or strip_prefix(name) in (TOKENS_TOTAL, STEP_SECONDS)
