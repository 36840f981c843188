"""What the recipe decides by arithmetic: how long to train, how big a step is, how fast to learn.

Pure functions of what was measured; the program that measures and acts is `train`.
"""

from collections.abc import Sequence

MARGIN_SECONDS = 5.0
"""Left at the end, for a clock that is read late."""
SHORTEST_SECONDS = 5.0
"""A shorter training is not worth its submission."""
FIRST_ROUND_SHARE, LATER_ROUND_SHARE = 1 / 4, 1 / 2
"""The share of what is left that the first round trains for, and each later one."""
FIRST_ROUND_SHARE_IN_WORLD = 0.55
"""The first where games are shown: an expert's game is far cheaper than one that the model plays."""
LONG_SECONDS = 300.0
"""A later round trains at least so long, if there is time: one long GRPO does more than two short ones."""
TRAINING_TO_COST = 3.0
"""A later round trains so many times as long as everything else in it takes, if there is time; the last one
at least as long."""
TARGET_GRPO_STEPS = 40
"""GRPO steps that a round should have, if that leaves a step enough questions. A round of questions that has
fewer learns at a much lower rate: the optimiser's first steps follow noise."""
SAMPLING_TO_STEP = 2.0
"""A step takes so many times as long as its sampling."""
MOST_PROMPTS, FEWEST_PROMPTS = 64, 16
"""Questions in a step: with fewer its gradient is mostly noise, and the model gets worse."""
PROBE_GAMES = 4
"""Games that are played to see how fast that is."""
DEMONSTRATIONS_PER_STEP = 4
"""Games of an expert in a step of SFT: they are longer than answers are, and many small steps learn faster
than few big ones (docs/design/training.md)."""
ANSWER_ROOM = 1.5
"""How much longer an answer may be than nearly all of the training answers are."""
NEARLY_ALL = 0.99
EXAMPLES_SEEN = 3200
RATES = {"sft": 9e-4, "grpo": 1e-4, "imitation": 1.5e-3, "play": 1e-4}
"""For a model of `REFERENCE_WEIGHTS` weights; bigger ones learn more slowly. Imitation and play are SFT and
GRPO in a world."""
REFERENCE_WEIGHTS = 3_000_000


def plan_training_seconds(remaining: float, cost: float, first: float = 0.0) -> float:
    """How long the next round trains, if the rest of it takes `cost` seconds; 0 where no round fits.

    `first` is the share of the first round. The last one takes all that is left, rather than leave less than
    a round.
    """
    usable = remaining - MARGIN_SECONDS - cost
    if usable < max(SHORTEST_SECONDS, cost):
        return 0.0
    share = (
        first * usable if first else max(LATER_ROUND_SHARE * usable, LONG_SECONDS, TRAINING_TO_COST * cost)
    )
    share = max(share, SHORTEST_SECONDS)
    return share if usable - share - cost > share / 2 else usable


def choose_prompts_per_step(seconds: float, sampling_seconds: float) -> int:
    """Questions in a GRPO step, where the answers to one question take `sampling_seconds`."""
    fitting = seconds / (TARGET_GRPO_STEPS * SAMPLING_TO_STEP * sampling_seconds)
    return max(FEWEST_PROMPTS, min(MOST_PROMPTS, int(fitting)))


def count_grpo_steps(seconds: float, sampling_seconds: float) -> float:
    """GRPO steps that fit."""
    return seconds / (
        SAMPLING_TO_STEP * sampling_seconds * choose_prompts_per_step(seconds, sampling_seconds)
    )


def scale_rate_to_steps(seconds: float, sampling_seconds: float) -> float:
    """Of the usual learning rate, what the steps that fit into a GRPO round on questions allow."""
    return min(1.0, count_grpo_steps(seconds, sampling_seconds) / TARGET_GRPO_STEPS) ** 2


def limit_answer_tokens(lengths: Sequence[int]) -> int:
    """How long sampled answers may become, given how long the training answers are."""
    return int(ANSWER_ROOM * sorted(lengths)[int(NEARLY_ALL * (len(lengths) - 1))]) + 1


def choose_epochs(examples: int) -> int:
    """Few examples are seen more often, many at least three times."""
    return max(3, min(10, EXAMPLES_SEEN // examples))


def choose_learning_rate(kind: str, weights: int) -> float:
    """With the square root of the size, which holds from three million weights to several billion."""
    return float(RATES[kind] * (REFERENCE_WEIGHTS / weights) ** 0.5)
