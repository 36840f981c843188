"""WebShop and its miniature made short: a few goals of a few steps, for whole runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agent2rl.core.task import Example, Splits, Task
from agent2rl.tasks.webshop import TASK as WEBSHOP
from agent2rl.tasks.webshop.mini import TASK as MINI

TRAIN, GOALS, STEPS = 20, 4, 3


def short(load: Callable[[Path | None], Splits]) -> Callable[[Path | None], Splits]:
    def few(data_dir: Path | None) -> Splits:
        whole = load(data_dir)
        return replace(
            whole,
            train=whole.train[:TRAIN],
            feedback=tuple(map(_short, whole.feedback[:GOALS])),
            heldout=tuple(map(_short, whole.heldout[:GOALS])),
        )

    return few


def _short(example: Example) -> Example:
    return replace(example, meta={**example.meta, "steps": STEPS})


TASK: Task = replace(WEBSHOP, id="short-webshop", load=short(WEBSHOP.load))
SHORT_MINI: Task = replace(MINI, id="short-webshop-mini", load=short(MINI.load))
