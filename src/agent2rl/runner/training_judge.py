"""The judge that the agent may train with, where the user offers one: its door, and what is told of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent2rl.core.records import JudgeUsage, RunSpec
from agent2rl.core.sandbox import Door
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.training_judge import MODEL, TrainingJudge, create_training_judge_app
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
class TrainingJudgeAccess:
    """What there is of such a judge: nothing, where none is offered."""

    doors: tuple[Door, ...] = ()
    use: Callable[[], JudgeUsage | None] = lambda: None


@contextmanager
def serve_training_judge(
    spec: RunSpec, settings: Settings, recorder: Recorder
) -> Iterator[TrainingJudgeAccess]:
    if spec.train_judge is None:
        yield TrainingJudgeAccess()
        return
    with judges.open_judge(spec.train_judge, settings) as judging:

        def note(use: JudgeUsage) -> None:
            recorder.record_event("train_judge", **use.model_dump())

        teacher = TrainingJudge(judging, spec.train_judge_questions, recorder.past.train_judge, note)
        try:
            with serve_on_socket(create_training_judge_app(teacher)) as socket:
                yield TrainingJudgeAccess((Door(VARIABLE, socket),), teacher.read_usage)
        finally:
            recorder.record_entry("train_judge", **teacher.read_usage().model_dump())


def render_judge_instructions(spec: RunSpec) -> str:
    return TOLD.format(questions=spec.train_judge_questions) if spec.train_judge else ""
