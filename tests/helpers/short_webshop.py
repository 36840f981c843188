"""WebShop and its miniature made short: a few goals of a few steps, for whole runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Splits, Task, make_split_profile
from agent2rl.tasks.webshop import EVALUATOR
from agent2rl.tasks.webshop import TASK as WEBSHOP
from agent2rl.tasks.webshop.mini import TASK as MINI

TRAIN_COUNT, GOAL_COUNT, MAX_STEPS = 20, 2, 3
SHORT_EVALUATOR = replace(EVALUATOR, sampling=Sampling(max_tokens=5))


def shorten_splits(load: Callable[[Path | None], Splits]) -> Callable[[Path | None], Splits]:
    def few(data_dir: Path | None) -> Splits:
        whole = load(data_dir)
        feedback, heldout = (
            tuple(replace(one, meta={**one.meta, "steps": MAX_STEPS}) for one in part[:GOAL_COUNT])
            for part in (whole.feedback, whole.heldout)
        )
        return replace(
            whole,
            train=whole.train[:TRAIN_COUNT],
            feedback=feedback,
            heldout=heldout,
            test=(*feedback, *heldout),
        )

    return few


TASK: Task = replace(
    WEBSHOP,
    id="short-webshop",
    load=shorten_splits(WEBSHOP.load),
    evaluator=SHORT_EVALUATOR,
    paper=make_split_profile(SHORT_EVALUATOR),
)
MINI_TASK: Task = replace(
    MINI,
    id="short-webshop-mini",
    load=shorten_splits(MINI.load),
    evaluator=SHORT_EVALUATOR,
    default_expert="full",
    paper=make_split_profile(SHORT_EVALUATOR),
)
PAPER_TASK: Task = replace(MINI_TASK, id="short-webshop-paper", paper=MINI.paper)
