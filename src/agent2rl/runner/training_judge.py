"""The judge that the agent may train with, where the user offers one: its door, and what is told of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from agent2rl.core.records import RunSpec
from agent2rl.core.sandbox import Door
from agent2rl.grading.server import serve
from agent2rl.grading.teacher import MODEL, Teacher, application
from agent2rl.runner import desks
from agent2rl.runner.settings import Settings
from agent2rl.store.recorder import Recorder

VARIABLE = "JUDGE_URL"
TOLD = f"""
## A judge to train with

`${VARIABLE}` is an OpenAI-compatible endpoint with one model, `{MODEL}`:
`POST ${VARIABLE}/v1/chat/completions`. It is not the judge that scores you, which cannot be asked.
Questions to it are counted and go on record.
"""


@contextmanager
def doors(spec: RunSpec, settings: Settings, recorder: Recorder) -> Iterator[tuple[Door, ...]]:
    """None where no such judge is offered."""
    if spec.train_judge is None:
        yield ()
        return
    with desks.judge(spec.train_judge, settings) as judging:
        teacher = Teacher(judging)
        try:
            with serve(application(teacher)) as socket:
                yield (Door(VARIABLE, socket),)
        finally:
            recorder.entry("train_judge", judge=judging.name, **teacher.counts)


def instructions(spec: RunSpec) -> str:
    return TOLD if spec.train_judge else ""
