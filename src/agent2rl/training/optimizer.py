"""Down the gradient until the steps or the time are used up: AdamW, warm-up, half a cosine, clipping.

Where time is what ends a training, the learning rate follows the clock, so that it comes down in time. Such
a training depends on the machine's speed; one that its steps end does not.
"""

import math
import time

import torch
from transformers import PreTrainedModel

from agent2rl.core.errors import UserError

WARMUP_SHARE = 0.05
"""The share of the training in which the learning rate rises."""
FINAL_RATE_SHARE = 0.1
"""What is left of the learning rate at the end."""
MAX_GRADIENT_NORM = 1.0
"""The longest gradient that is followed as it is."""


class TrainingSchedule:
    """How far a training is, in steps and in seconds, whichever ends it first."""

    def __init__(self, steps: int, seconds: float = math.inf) -> None:
        self.steps = 0
        self._all_steps, self._all_seconds = steps, seconds
        self._began = time.monotonic()

    def finish_step(self) -> None:
        """A step is done."""
        self.steps += 1

    def exclude_seconds(self, seconds: float) -> None:
        """So long something else was done, which does not count."""
        self._began += seconds

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    @property
    def share(self) -> float:
        """How much is done once this step is."""
        return min(1.0, max((self.steps + 1) / self._all_steps, self.seconds / self._all_seconds))

    @property
    def seconds_left(self) -> float:
        """Until the end, at the speed so far."""
        by_steps = self._seconds_per_step * (self._all_steps - self.steps)
        return max(0.0, min(by_steps, self._all_seconds - self.seconds))

    @property
    def over(self) -> bool:
        """Whether another step would be one too many, or would end too late."""
        return self.steps >= self._all_steps or self.seconds + self._seconds_per_step > self._all_seconds

    @property
    def _seconds_per_step(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0


class ScheduledAdamW:
    """The optimiser of a model's weights."""

    def __init__(self, model: PreTrainedModel, learning_rate: float, weight_decay: float = 0.0) -> None:
        self._peak = learning_rate
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._adam = torch.optim.AdamW(self._weights, betas=(0.9, 0.999), weight_decay=weight_decay)

    def step(self, share: float, scale: float = 1.0) -> None:
        """Follow `scale` times the gradient that the weights have, and forget it; `share` of the training is
        done."""
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.mul_(scale)
        norm = torch.nn.utils.clip_grad_norm_(self._weights, MAX_GRADIENT_NORM)
        if not torch.isfinite(norm):
            raise UserError("The training diverged: a gradient is not finite.", "Lower the learning rate.")
        for group in self._adam.param_groups:
            group["lr"] = self._peak * compute_rate_factor(share)
        self._adam.step()
        self._adam.zero_grad()


def compute_rate_factor(share: float) -> float:
    """Of the learning rate, when this share of the training is done."""
    falling = (1 + math.cos(math.pi * share)) / 2
    return min(1.0, share / WARMUP_SHARE) * (FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * falling)
