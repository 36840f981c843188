"""Serve a judge for the agent to train with, if the user offers one. It is never the judge that grades.

    POST /v1/chat/completions   a chat, as in OpenAI's API            GET /v1/models

Every question is counted, and the counts are recorded. Beyond the limit the status is 429. A failure of the
judge has status 502 and no text.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from agent2rl.core.engine import ChatMessage, Sampling
from agent2rl.core.errors import Agent2RLError, Refusal
from agent2rl.core.grading_records import JudgeUsage
from agent2rl.grading.api import BodyLimit
from agent2rl.grading.grading_proxy import JudgeProxy

BODY_BYTES = 1 << 20
NOTE_SECONDS = 2.0
COUNTED = ("questions", "refused", "failed", "characters", "tokens")
MODEL = "judge"
"""The name that the agent uses; the run's specification names the actual model."""


class TrainingJudgeMessage(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str


class TrainingJudgeRequest(BaseModel):
    """A chat request; other fields that clients send are ignored."""

    messages: list[TrainingJudgeMessage] = Field(min_length=1)
    max_tokens: int = Field(default=512, ge=1, le=8192)
    temperature: float = Field(default=0.0, ge=0, le=2)
    seed: int = 0


class QuestionsUsedUp(Refusal):
    """The limit of questions is reached."""


class TrainingJudge:
    """Counts questions and answers them up to a limit."""

    def __init__(
        self,
        judging: JudgeProxy,
        limit: int,
        before: JudgeUsage | None = None,
        note: Callable[[JudgeUsage], None] = lambda _: None,
    ) -> None:
        """`before`: the usage before a crash of the harness. `note` is called with the counts from time to
        time."""
        self._judging = judging
        self._note, self._noted_at = note, 0.0
        self._limit = limit
        self._counting = threading.Lock()
        self._turn = threading.Lock()
        self._counts: dict[str, int] = {name: getattr(before, name, 0) for name in COUNTED}

    def read_usage(self) -> JudgeUsage:
        with self._counting:
            return JudgeUsage(judge=self._judging.name, limit=self._limit, **self._counts)

    def answer_question(self, request: TrainingJudgeRequest) -> dict[str, Any]:
        # Counted before it is asked, so that questions in parallel cannot pass the limit.
        self._count_question(sum(len(said.content) for said in request.messages))
        chat = tuple(ChatMessage(said.role, said.content) for said in request.messages)
        sampling = Sampling(request.max_tokens, request.temperature, request.seed)
        try:
            with self._turn if self._judging.one_by_one else nullcontext():
                (reply,) = self._judging.engine.generate([chat], sampling)
        except Exception:
            self._add_counts(failed=1)
            raise
        self._add_counts(tokens=reply.tokens)
        said = {"role": "assistant", "content": reply.text}
        return {
            "object": "chat.completion",
            "model": MODEL,
            "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
            "usage": {"completion_tokens": reply.tokens},
        }

    def _count_question(self, characters: int) -> None:
        with self._counting:
            if self._counts["questions"] >= self._limit:
                self._counts["refused"] += 1
                raise QuestionsUsedUp(f"All {self._limit:,} questions to this judge are used up.")
            self._counts["questions"] += 1
            self._counts["characters"] += characters
            due = time.monotonic() - self._noted_at >= NOTE_SECONDS
            self._noted_at = time.monotonic() if due else self._noted_at
        # After the lock is released, because reading the usage takes it.
        if due:
            self._note(self.read_usage())

    def _add_counts(self, **counts: int) -> None:
        with self._counting:
            for name, number in counts.items():
                self._counts[name] += number


def create_training_judge_app(judge: TrainingJudge) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_middleware(BodyLimit, most=BODY_BYTES, hint="Send a shorter request.")

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL, "object": "model"}]}

    @app.post("/v1/chat/completions")
    def chat(request: TrainingJudgeRequest) -> JSONResponse:
        try:
            return JSONResponse(judge.answer_question(request))
        except QuestionsUsedUp as error:
            return JSONResponse({"error": {"message": error.message}}, status_code=429)
        except Agent2RLError as error:
            return JSONResponse({"error": {"message": error.message}}, status_code=502)
        except Exception as error:  # an engine library's message might contain a key
            return JSONResponse(
                {"error": {"message": f"internal error ({type(error).__name__})"}}, status_code=502
            )

    return app
