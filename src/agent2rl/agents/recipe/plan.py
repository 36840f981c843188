"""The recipe's schedule: training time, batch size and learning rate.

These are pure functions of measurements; the program that measures and trains is `train`.
"""

from collections.abc import Sequence

MARGIN_SECONDS = 5.0
"""Safety margin at the end, in case the clock is read late."""
SHORTEST_SECONDS = 5.0
"""A shorter training is not worth its submission."""
ROUND_SHARE = 1 / 2
"""Share of the remaining time that a round trains for. SFT ends sooner if its epochs do."""
FIRST_ROUND_SHARE_IN_WORLD = 0.55
"""Share of the first round with expert games, which are far cheaper than games that the model plays."""
LONG_SECONDS = 300.0
"""Minimum training time of a later round, if there is time: one long GRPO does more than two short ones."""
SHORTEST_SHARE = 3 / 4
"""A round is followed by another only if that gets at least this share of its time."""
TRAINING_TO_COST = 3.0
"""A later round trains this many times as long as everything else in it takes, if there is time; the last
one at least as long."""
HALFWAY_SHARE = 0.03
"""GRPO submits halfway only if that takes no larger share of the remaining time."""
TARGET_GRPO_STEPS = 40
"""Desired GRPO steps of a round, if that leaves a step enough questions. A round of questions with fewer
steps uses a much lower learning rate, because the optimizer's first steps follow noise."""
SAMPLING_TO_STEP = 2.0
"""Duration of a step as a multiple of its sampling."""
MOST_PROMPTS, FEWEST_PROMPTS = 64, 16
"""Questions per step: with fewer, the gradient is mostly noise, and the model gets worse."""
FEWEST_GAMES = 32
"""Games per step: episodes of several turns are noisier than answers, and a larger batch plays faster."""
GAMES_PER_UPDATE = 4
"""The episodes of a step are learnt in several updates, each on those of so many games."""
HOLD_SHARE = 0.7
"""Share of GRPO in a world with the full learning rate: the few steps that fit are worth it."""
WARM_UP_EPOCHS = 5
"""Epochs of a part of a warm-up, in which the learning rate falls to its end."""
WARM_UP_GAMES, WARM_UP_EPISODES = 16, 4
"""Games that are played after each part, and episodes of each."""
WARM_UP_WINS = 0.25
"""A warm-up ends when this share of sampled episodes is won. GRPO compares episodes that end differently, so
it needs some that succeed, and own games teach more than demonstrations do once there are."""
PROBE_GAMES = 4
"""Games that are played to measure their speed."""
DEMONSTRATIONS_PER_STEP = 4
"""Expert games per SFT step: they are longer than answers, and many small steps learn faster than few big
ones (docs/design/training.md)."""
ANSWER_ROOM = 1.5
"""Maximum length of an answer as a multiple of the `NEARLY_ALL` quantile of training answers."""
NEARLY_ALL = 0.99
EXAMPLES_SEEN = 3200
RATES = {"sft": 9e-4, "grpo": 1e-4, "imitation": 1.5e-3, "play": 1e-4}
"""Learning rates for a model of `REFERENCE_WEIGHTS` weights; larger models use lower rates. Imitation and
play are SFT and GRPO in a world."""
REFERENCE_WEIGHTS = 3_000_000


def plan_training_seconds(remaining: float, cost: float, first: float = 0.0) -> float:
    """Return how long the next round trains if the rest of it takes `cost` seconds; 0 if no round fits.

    `first` is the share of the first round. A round that would be followed by a much shorter one uses all
    remaining time: two short GRPO rounds do less than one long one.
    """
    usable = remaining - MARGIN_SECONDS - cost
    if usable < max(SHORTEST_SECONDS, cost):
        return 0.0
    share = first * usable if first else max(ROUND_SHARE * usable, LONG_SECONDS, TRAINING_TO_COST * cost)
    share = max(share, SHORTEST_SECONDS)
    return share if usable - share - cost > SHORTEST_SHARE * share else usable


def leaves_another_round(remaining: float, seconds: float, cost: float) -> bool:
    """Check whether another round fits after one that trains for `seconds`."""
    return plan_training_seconds(remaining - seconds - cost, cost) > 0


def count_submissions(stage: str, remaining: float, cost: float) -> int:
    """Return the submissions of the next round: GRPO also submits halfway, if that costs little time."""
    return 2 if stage == "grpo" and cost < HALFWAY_SHARE * remaining else 1


def choose_prompts_per_step(seconds: float, sampling_seconds: float, fewest: int = FEWEST_PROMPTS) -> int:
    """Return the questions per GRPO step if sampling the answers to one question takes `sampling_seconds`."""
    fitting = seconds / (TARGET_GRPO_STEPS * SAMPLING_TO_STEP * sampling_seconds)
    return max(fewest, min(MOST_PROMPTS, int(fitting)))


def count_grpo_steps(seconds: float, sampling_seconds: float, fewest: int = FEWEST_PROMPTS) -> float:
    """Return how many GRPO steps fit into the time."""
    prompts = choose_prompts_per_step(seconds, sampling_seconds, fewest)
    return seconds / (SAMPLING_TO_STEP * sampling_seconds * prompts)


def scale_rate_to_steps(seconds: float, sampling_seconds: float) -> float:
    """Return the factor on the learning rate for the number of steps in a GRPO round on questions."""
    return min(1.0, count_grpo_steps(seconds, sampling_seconds) / TARGET_GRPO_STEPS) ** 2


def limit_answer_tokens(lengths: Sequence[int]) -> int:
    """Return the maximum length of sampled answers, given the lengths of the training answers."""
    return int(ANSWER_ROOM * sorted(lengths)[int(NEARLY_ALL * (len(lengths) - 1))]) + 1


def choose_epochs(examples: int) -> int:
    """Return the number of epochs: more for few examples, at least three for many."""
    return max(3, min(10, EXAMPLES_SEEN // examples))


def choose_learning_rate(kind: str, weights: int) -> float:
    """Return the learning rate, scaled by one over the square root of the model size.

    This works from three million weights to several billion.
    """
    return float(RATES[kind] * (REFERENCE_WEIGHTS / weights) ** 0.5)
