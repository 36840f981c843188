"""Says now and then in the log how far a long evaluation is."""

import time

EVERY_SECONDS = 10.0


class EvaluationProgress:
    def __init__(self, total: int, what: str) -> None:
        """`what` becomes of each: "episodes played"."""
        self._total, self._what = total, what
        self._next = time.monotonic() + EVERY_SECONDS

    def __call__(self, done: int) -> None:
        if time.monotonic() > self._next:
            print(f"{done} of {self._total} {self._what}", flush=True)
            self._next = time.monotonic() + EVERY_SECONDS
