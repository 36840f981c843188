"""Is this machine ready, and is a task sound? Each finding is one line, with the mend where there is one."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent2rl import registry
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.records import Split
from agent2rl.core.task import Example, Task, Together
from agent2rl.environments.search.choosing import KEYS as SEARCH_KEYS
from agent2rl.environments.search.choosing import KNOWN, choose
from agent2rl.grading.child import Child
from agent2rl.runner import desks, machine, replay
from agent2rl.runner.assets import model_directory
from agent2rl.runner.private_places import PrivateSandbox, find_private_places
from agent2rl.runner.settings import Settings, secrets

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
DISK_BYTES = 5 << 30
SECONDS = 600
WRONG = "I do not know."
PROBE = "capital of France"
COMPARISONS, MOST_WON = 20, 10.0
"""That a judge is tried with, and the most of them, in percent, that the wrong answer may win."""
NOTHING = desks.Wanted()


@dataclass(frozen=True)
class Finding:
    name: str
    state: Literal["ok", "missing", "broken"]
    """`missing` is something that some runs do without; `broken` is something that none do."""
    detail: str
    mend: str = ""


def check_machine(settings: Settings, sandbox: str) -> Iterator[Finding]:
    yield from _sandbox(sandbox, settings)
    found = machine.gpus(settings.gpus)
    mend = "" if found else "The miniature tasks need none."
    yield Finding("gpu", "ok" if found else "missing", f"{len(found)} visible", mend)
    keys = sorted(secrets(KEYS))
    mend = "" if keys else f"Agents driven by an LLM need one of {', '.join(KEYS)}."
    yield Finding("keys", "ok" if keys else "missing", ", ".join(keys) or "none set", mend)
    yield _disk(settings.runs)
    yield _cache(settings.cache)
    yield _data(settings.cache)


def check_task(
    name: str, data_dir: Path | None, settings: Settings, sandbox: str, wanted: desks.Wanted = NOTHING
) -> Iterator[Finding]:
    """Gold answers must score 100 and wrong ones 0, in a real grading child."""
    task = registry.task(name)
    loaded = task.load(data_dir)
    sizes = f"{len(loaded.train)} train, {len(loaded.feedback)} feedback, {len(loaded.heldout)} held-out"
    mend = "" if loaded.train else "There is nothing to train on."
    yield Finding("data", "ok" if loaded.train else "broken", sizes, mend)
    yield _overlap("train and test", loaded.train, (*loaded.feedback, *loaded.heldout))
    yield _overlap("feedback and held-out", loaded.feedback, loaded.heldout)
    splits: dict[Split, Sequence[Example]] = {"feedback": loaded.feedback, "heldout": loaded.heldout}
    if "search" in task.desk:
        yield _search(wanted)
    if task.judged and not wanted.judge:
        mend = "Then measure it: agent2rl judge calibrate."
        yield Finding("judge", "missing", "a run has to name one, with --judge", mend)
        return
    with desks.opened(wanted, task, settings, needed=False) as desk:
        child = replay.replaying(task, name, loaded, settings, sandbox, SECONDS, desk)
        if wanted.judge and isinstance(task.evaluator, Together):
            yield _judge(child, task.evaluator, loaded.feedback[:COMPARISONS])
            return
        for split, examples in splits.items():
            gold = [example.target for example in examples]
            yield _answers(task, child, split, examples, "gold answers", gold, 1.0)
            yield _answers(task, child, split, examples, "wrong answers", [WRONG] * len(gold), 0.0)


def _judge(child: Child, evaluator: Together, examples: Sequence[Example]) -> Finding:
    """A judge that compares need not be always right, but it knows no answer from a reference's."""
    try:
        results = replay.grade(child, examples, {one.id: [WRONG] for one in examples}).results
    except Agent2RLError as error:
        return Finding("judge", "broken", error.message, error.mend)
    won = 100 * sum(evaluator.alone(result) for result in results) / len(results)
    mend = "Measure it: agent2rl judge calibrate." if won > MOST_WON else ""
    detail = f"{WRONG!r} wins {won:.1f} % of {len(results)} comparisons with the reference"
    return Finding("judge", "broken" if won > MOST_WON else "ok", detail, mend)


def _search(wanted: desks.Wanted) -> Finding:
    """One real search, where it is said what is searched; a run needs it."""
    if not wanted.search:
        return Finding("search", "missing", "a run has to say what is searched", f"--search. {KNOWN}")
    if wanted.search.startswith("replay:"):
        return Finding("search", "ok", wanted.search)
    try:
        found = choose(wanted.search, secrets(SEARCH_KEYS)).search(PROBE)
    except Agent2RLError as error:
        return Finding("search", "broken", error.message, error.mend)
    return Finding("search", "ok", f"{wanted.search} finds {len(found)} pages for {PROBE!r}")


def _overlap(what: str, left: Sequence[Example], right: Sequence[Example]) -> Finding:
    seen = {_content(example) for example in left}
    shared = [example.id for example in right if _content(example) in seen]
    mend = f"Remove them from one side: {', '.join(shared[:3])}" if shared else ""
    return Finding(
        f"overlap of {what}", "broken" if shared else "ok", f"{len(shared)} examples in both", mend
    )


def _content(example: Example) -> str:
    """What makes an example the same as another: its prompt, or, in a world, the game it says the hash of."""
    return str(example.meta.get("sha256", example.prompt))


def _sandbox(name: str, settings: Settings) -> Iterator[Finding]:
    try:
        isolation = PrivateSandbox(registry.sandbox(name), find_private_places(settings)).check()
    except UserError as error:
        yield Finding(f"sandbox {name}", "broken", error.message, error.mend)
        return
    name = f"sandbox {isolation.sandbox}"
    if not isolation.isolates:
        yield Finding(name, "broken", "isolates nothing", "Use --sandbox bubblewrap.")
    for promise in isolation.promises:
        yield Finding(name, "ok" if promise.holds else "broken", promise.name, promise.mend)


def _disk(runs: Path) -> Finding:
    free = machine.free_disk_bytes(runs)
    enough = free >= DISK_BYTES
    mend = "" if enough else "Free some space, or keep runs elsewhere with --runs-dir."
    return Finding("disk", "ok" if enough else "broken", f"{free >> 30} GiB free for runs", mend)


def _cache(cache: Path) -> Finding:
    parent = cache
    while not os.path.exists(parent):  # noqa: PTH110 (where it may not be looked at, it is not there)
        parent = parent.parent
    writable = parent.is_dir() and os.access(parent, os.W_OK)
    mend = "" if writable else "Name another directory in AGENT2RL_CACHE."
    return Finding("cache", "ok" if writable else "broken", str(cache), mend)


def _data(cache: Path) -> Finding:
    """The shipped model and the embedded miniature are all that a first run needs."""
    try:
        model_directory("abacus", cache)
        n = len(registry.task("gsm8k-mini").load(None).train)
    except (Agent2RLError, OSError) as error:
        return Finding("data", "broken", f"the embedded model or data cannot be prepared: {error}")
    return Finding("data", "ok", f"abacus and gsm8k-mini ({n} training problems) are embedded")


def _answers(
    task: Task,
    child: Child,
    split: Split,
    examples: Sequence[Example],
    what: str,
    answers: list[str],
    expected: float,
) -> Finding:
    outputs = {example.id: [answer] for example, answer in zip(examples, answers, strict=True)}
    try:
        results = replay.grade(child, examples, outputs).results
    except Agent2RLError as error:
        return Finding(f"{what}, {split}", "broken", error.message, error.mend)
    alone = task.evaluator.alone if isinstance(task.evaluator, Together) else lambda result: result.score
    wrong = [result.id for result in results if alone(result) != expected]
    mend = f"These do not: {', '.join(wrong[:5])}" if wrong else ""
    share = f"{len(results) - len(wrong)} of {len(results)} score {100 * expected:g}"
    return Finding(f"{what}, {split}", "broken" if wrong else "ok", share, mend)
