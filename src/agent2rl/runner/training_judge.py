"""The judge that the agent may train with, where the user offers one: its door, and what is told of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent2rl.core.records import JudgeUse, RunSpec
from agent2rl.core.sandbox import Door
from agent2rl.grading.server import serve
from agent2rl.grading.teacher import MODEL, Teacher, application
from agent2rl.runner import judges
from agent2rl.runner.settings import Settings
from agent2rl.store.recorder import Recorder

VARIABLE = "JUDGE_URL"
TOLD = f"""
## A judge to train with

`${VARIABLE}` is an OpenAI-compatible endpoint with one model, `{MODEL}`:
`POST ${VARIABLE}/v1/chat/completions`. It is not the judge that scores you, which cannot be asked.
It answers {{questions:,}} questions, which are counted and go on record.
"""


@dataclass(frozen=True)
class Offered:
    """What there is of such a judge: nothing, where none is offered."""

    doors: tuple[Door, ...] = ()
    use: Callable[[], JudgeUse | None] = lambda: None


@contextmanager
def offered(spec: RunSpec, settings: Settings, recorder: Recorder) -> Iterator[Offered]:
    if spec.train_judge is None:
        yield Offered()
        return
    with judges.judge(spec.train_judge, settings) as judging:

        def note(use: JudgeUse) -> None:
            recorder.event("train_judge", **use.model_dump())

        teacher = Teacher(judging, spec.train_judge_questions, recorder.past.train_judge, note)
        try:
            with serve(application(teacher)) as socket:
                yield Offered((Door(VARIABLE, socket),), teacher.use)
        finally:
            recorder.entry("train_judge", **teacher.use().model_dump())


def instructions(spec: RunSpec) -> str:
    return TOLD.format(questions=spec.train_judge_questions) if spec.train_judge else ""
