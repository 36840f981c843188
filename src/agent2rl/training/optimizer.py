"""AdamW with warm-up, cosine decay and gradient clipping, for a number of steps or an amount of time.

If time ends a training, the learning rate follows the clock, so that it decays in time. Such a training
depends on the speed of the machine; one that ends after its steps does not.
"""

import math
import time

import torch
from transformers import PreTrainedModel

from agent2rl.core.errors import UserError

WARMUP_SHARE = 0.05
"""The share of the training with a rising learning rate."""
FINAL_RATE_SHARE = 0.1
"""The learning rate at the end, as a share of its peak."""
MAX_GRADIENT_NORM = 1.0
"""Longer gradients are clipped to this norm."""


class TrainingSchedule:
    """The progress of a training in steps and in seconds; it ends when either is used up."""

    def __init__(self, steps: int, seconds: float = math.inf) -> None:
        self.steps = 0
        self._all_steps, self._all_seconds = steps, seconds
        self._began = time.monotonic()

    def finish_step(self) -> None:
        """Count a finished step."""
        self.steps += 1

    def exclude_seconds(self, seconds: float) -> None:
        """Exclude time that was spent on something else."""
        self._began += seconds

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._began

    @property
    def share(self) -> float:
        """The share of the training that is done after the current step."""
        return min(1.0, max((self.steps + 1) / self._all_steps, self.seconds / self._all_seconds))

    @property
    def seconds_left(self) -> float:
        """Estimated time until the end, at the speed so far."""
        by_steps = self._seconds_per_step * (self._all_steps - self.steps)
        return max(0.0, min(by_steps, self._all_seconds - self.seconds))

    @property
    def over(self) -> bool:
        """Whether another step would exceed the steps or the time."""
        return self.steps >= self._all_steps or self.seconds + self._seconds_per_step > self._all_seconds

    @property
    def _seconds_per_step(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0


class ScheduledAdamW:
    """AdamW over a model's weights with a learning rate schedule and gradient clipping."""

    def __init__(self, model: PreTrainedModel, learning_rate: float, weight_decay: float = 0.0) -> None:
        self._peak = learning_rate
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        # Tensor by tensor it takes four times as long, and other workers wait for it.
        self._adam = torch.optim.AdamW(
            self._weights, betas=(0.9, 0.999), weight_decay=weight_decay, fused=True
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step."""
        return float(self._adam.param_groups[0]["lr"])

    def step(self, share: float, scale: float = 1.0, hold: float = 0.0) -> float:
        """Update the weights with `scale` times their gradient, then clear it; return the gradient's norm.

        `share` is the share of the training that is done, `hold` that with the full learning rate.
        """
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.mul_(scale)
        norm = torch.nn.utils.clip_grad_norm_(self._weights, MAX_GRADIENT_NORM)
        if not torch.isfinite(norm):
            raise UserError("The training diverged: a gradient is not finite.", "Lower the learning rate.")
        for group in self._adam.param_groups:
            group["lr"] = self._peak * compute_rate_factor(share, hold)
        self._adam.step()
        self._adam.zero_grad()
        return float(norm)


def compute_rate_factor(share: float, hold: float = 0.0) -> float:
    """Return the factor of the learning rate when this share of the training is done.

    The rate stays at its peak for the share `hold` of the training, then falls.
    """
    fallen = (share - hold) / (1 - hold) if share > hold else 0.0
    falling = (1 + math.cos(math.pi * fallen)) / 2
    return min(1.0, share / WARMUP_SHARE) * (FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * falling)
