"""The HTTP API of the grading service. Every error is problem+json and says what to do next.

Clients of the published API work unchanged: answers and errors have its fields beside ours.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field, StrictInt
from starlette.exceptions import HTTPException

from agent2rl import __version__
from agent2rl.core.errors import Agent2RLError, Refusal
from agent2rl.core.grading_records import Interval, Lineage, Submission, Verdict
from agent2rl.core.records import Clock, Record
from agent2rl.grading.rollout_meter import (
    EpisodeReport,
    ForgedReport,
    ReportOutOfOrder,
    RolloutMeter,
    RolloutReport,
    TooManyReports,
)
from agent2rl.grading.scores_file import describe_score
from agent2rl.grading.service import GradingService, QueueFull, SubmissionsClosed, UnknownGpu

COUNTED_TIME: dict[Clock, list[str]] = {"all": ["agent", "queue", "grading"], "training": ["agent"]}
"""What counts as used time on each clock."""
BODY_BYTES = 64 << 10
POLL_SECONDS = 0.05
SHORT_MESSAGE = 200
STATUS = {
    UnknownGpu: 400,
    SubmissionsClosed: 403,
    ForgedReport: 403,
    ReportOutOfOrder: 409,
    Refusal: 422,
    QueueFull: 429,
    TooManyReports: 429,
}


class ProblemDetails(Record):
    """RFC 9457: what went wrong, and in `hint` what to do next."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    hint: str
    mend: str
    """The same as `hint`, under its earlier name."""
    error: str
    """The same as `detail`, under its published name."""
    available_gpus: list[str] | None = Field(default=None, exclude_if=lambda gpus: gpus is None)
    """Only if the request names a GPU that the run does not have."""


class SubmitRequest(Record):
    model_path: Annotated[str, Field(min_length=1, max_length=1024)]
    """The model directory: absolute as you see it, or relative to the workspace."""
    gpu: Annotated[str, Field(max_length=40)] | StrictInt | None = None
    """The GPU to grade on, if the run has several. Of a list such as "2,3" it is the first."""


class BestSubmission(Record):
    """The best submission in the published form. All but the baseline is null as long as there is none."""

    submission_id: int | None = None
    timestamp: str | None = None
    model_path: str | None = None
    score: float | None = None
    baseline_score: float
    improvement: float | None = None
    elapsed_seconds: float | None = None


class SubmissionAnswer(Record):
    submission_id: int
    timestamp: str
    """When it was accepted: local time in ISO 8601."""
    verdict: Verdict | None
    """scored, rejected, failed or expired; null until the grading is done."""
    score: float | None
    """Percent on the feedback split; null unless the verdict is `scored`."""
    ci: Interval | None
    baseline_score: float
    improvement: float | None
    best: BestSubmission
    """The submission with the largest improvement so far; the earliest of equals."""
    total_submissions: int
    lineage: Lineage | Literal["pending"]
    """Whether the weights come from the base model: derived, copied, foreign, or unknown with a reason in the
    message; `pending` until the grading is done."""
    model_path: str
    elapsed_seconds: float | None
    """Time of the grading, rounded up to tens of seconds."""
    left_out: list[str]
    """Entries of the directory that are not part of a model and were ignored."""
    message: str
    error: str | None = Field(default=None, exclude_if=lambda error: error is None)
    """The same as `message`, only if there is a verdict and no score."""


class EnvironmentSteps(Record):
    """Steps in the task's world, over the whole run."""

    played: int
    served: int
    """Played in the served world."""
    claimed: int
    """Played in your own processes, as reported so far."""
    left: int | Literal["unlimited"]


class TimeAnswer(Record):
    start_time: int
    timeout_s: int
    last_submit_time: int | None
    """When the last submission was accepted."""
    end_time: int | None
    """When your time ended; null before."""
    now: int
    remaining: int
    """Seconds left on the run's clock, and never more than the limits of wall time and GPU time allow."""
    clock: Clock
    """The run's clock. `all`: wall time counts. `training`: wall time counts, except while a submission of
    yours is copied, waits, is checked or is graded."""
    wall_seconds: int
    """Wall time that you have used."""
    training_seconds: int
    """The same without the time in which a submission of yours was copied, waited, was checked or graded."""
    wall_timeout_s: int
    """Limit of wall time."""
    gpu_seconds: int | None
    """The number of your GPUs times the wall time that you have used; null if you have no GPU."""
    gpu_seconds_left: int | None
    """Null if there is no limit."""
    submissions_left: int | None
    environment_steps_left: int | None
    """In the task's world; null if there is no limit."""
    environment_steps: EnvironmentSteps | None
    """Null if the task has no world."""
    counts: list[str]
    """What counts as used time: the agent's own time, and on the clock `all` also waiting for a grading, and
    the grading."""


class RolloutsAnswer(Record):
    environment_steps_left: int | None
    """In the task's world; null if there is no limit."""


class HealthAnswer(Record):
    status: Literal["ok"]
    task: str
    workspace: str
    available_gpus: list[str]


Responses = dict[int | str, dict[str, Any]]


def _problem_responses(*statuses: int) -> Responses:
    """Describe the error responses of a call; 400 and 500 are always possible."""
    schema = {"application/problem+json": {"schema": ProblemDetails.model_json_schema()}}
    possible: tuple[int | str, ...] = (400, *statuses, 500, "default")  # else FastAPI adds its own 422
    return {status: {"description": "Problem", "content": schema} for status in possible}


REFUSALS = _problem_responses(403, 413, 429)


def create_grading_app(service: GradingService, task: str, has_world: bool = False) -> FastAPI:
    app = FastAPI(title="agent2rl grading", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit)
    freezing = anyio.CapacityLimiter(1)

    def answer(submission: Submission) -> SubmissionAnswer:
        return _describe_submission(submission, service, service.find_best())

    async def accept(body: SubmitRequest) -> Submission:
        gpu = None if body.gpu is None else str(body.gpu)
        return await anyio.to_thread.run_sync(service.submit, body.model_path, gpu, limiter=freezing)

    async def wait_for_verdict(number: int, seconds: float) -> Submission:
        deadline = time.monotonic() + seconds
        while True:
            submission = service.find_submission(number)
            if submission is None:
                raise HTTPException(404, f"Submission {number} does not exist.")
            # What is not on the ledger is told to nobody, and without this the client would wait
            # forever.
            if submission.verdict is None and service.is_unrecorded(number):
                raise HTTPException(
                    503,
                    f"The verdict of submission {number} could not be recorded. Is the disk full?",
                )
            if submission.verdict or time.monotonic() >= deadline:
                return submission
            await asyncio.sleep(POLL_SECONDS)

    @app.post("/submit", responses=REFUSALS)
    async def submit(body: SubmitRequest) -> SubmissionAnswer:
        """Submit a model and wait for its verdict."""
        return answer(await wait_for_verdict((await accept(body)).id, float("inf")))

    @app.post("/submissions", status_code=202, responses=REFUSALS)
    async def post_submission(body: SubmitRequest, response: Response) -> SubmissionAnswer:
        """Submit a model without waiting. The answer comes when the model is copied; grading follows."""
        submission = await accept(body)
        response.headers["Location"] = f"/submissions/{submission.id}"
        return answer(submission)

    @app.get("/submissions", responses=_problem_responses())
    async def get_submissions() -> list[SubmissionAnswer]:
        """List all submissions in order, with shortened messages."""
        best = service.find_best()
        return [
            _describe_submission(submission, service, best, SHORT_MESSAGE)
            for submission in service.list_submissions()
        ]

    @app.get("/submissions/{number}", responses=_problem_responses(404))
    async def get_submission(
        number: int, wait: Annotated[float, Query(ge=0, le=600)] = 0
    ) -> SubmissionAnswer:
        """Return one submission. `wait`: seconds to wait for its verdict at most."""
        return answer(await wait_for_verdict(number, wait))

    @app.get("/time", responses=_problem_responses())
    async def get_time() -> TimeAnswer:
        """Return the remaining time and the remaining budget."""
        max_submissions = service.budget.submissions
        submitted = len(service.list_submissions())
        clock, gpu_seconds = service.clock, service.clock.gpu_seconds()
        gpu_seconds_left = clock.gpu_seconds_left()
        return TimeAnswer(
            start_time=int(service.started_at),
            timeout_s=int(service.budget.wall_seconds),
            last_submit_time=_whole_seconds(service.last_submit_at),
            end_time=_whole_seconds(service.ended_at),
            now=math.floor(time.time()),
            remaining=math.ceil(service.remaining_seconds()),  # 0 only when the time is over
            clock=clock.clock,
            wall_seconds=int(clock.wall_seconds()),
            training_seconds=int(clock.training_seconds()),
            wall_timeout_s=int(service.budget.max_wall_seconds(clock.clock)),
            gpu_seconds=_whole_seconds(gpu_seconds),
            gpu_seconds_left=_whole_seconds(gpu_seconds_left),
            submissions_left=None if max_submissions is None else max(0, max_submissions - submitted),
            environment_steps_left=service.meter.steps_left(),
            environment_steps=_describe_steps(service.meter) if has_world else None,
            counts=COUNTED_TIME[clock.clock],
        )

    @app.post("/rollouts", responses=_problem_responses(403, 409, 413, 422, 429))
    async def rollouts(body: RolloutReport) -> RolloutsAnswer:
        """Report steps that your process played in the world; agent2rl.environments.adapters does this."""
        service.meter.count_claim(body)
        return RolloutsAnswer(environment_steps_left=service.meter.steps_left())

    @app.post("/rollouts/episodes", responses=_problem_responses(403, 409, 413, 422, 429))
    async def rollout_episodes(body: EpisodeReport) -> RolloutsAnswer:
        """Report the actions of episodes that `/rollouts` has counted, so that they can be replayed."""
        service.meter.accept_episodes(body)
        return RolloutsAnswer(environment_steps_left=service.meter.steps_left())

    @app.get("/health", responses=_problem_responses())
    async def health() -> HealthAnswer:
        """Return that the service is up."""
        return HealthAnswer(
            status="ok",
            task=task,
            workspace=str(service.setup.seen_at),
            available_gpus=list(service.setup.gpus),
        )

    _add_error_handlers(app, service)
    return app


def _describe_submission(
    submission: Submission, service: GradingService, best: Submission | None, characters: int | None = None
) -> SubmissionAnswer:
    baseline_score = service.setup.baseline.value
    entry = describe_score(submission, baseline_score)
    return SubmissionAnswer(
        **entry.model_dump(exclude={"error"}),
        verdict=submission.verdict,
        ci=submission.score.ci if submission.score else None,
        best=_describe_best(best, baseline_score),
        total_submissions=len(service.list_submissions()),
        lineage=submission.lineage if submission.verdict else "pending",
        left_out=list(submission.left_out),
        message=submission.message[:characters],
        error=None if entry.error is None else entry.error[:characters],
    )


def _describe_best(best: Submission | None, baseline_score: float) -> BestSubmission:
    """Describe the best submission. It is never null: published clients read its fields without a check."""
    if best is None:
        return BestSubmission(baseline_score=baseline_score)
    return BestSubmission(**describe_score(best, baseline_score).model_dump(exclude={"error"}))


def _whole_seconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


def _describe_steps(meter: RolloutMeter) -> EnvironmentSteps:
    totals, left = meter.sum_totals(), meter.steps_left()
    return EnvironmentSteps(
        played=totals.played.steps,
        served=totals.served.steps,
        claimed=totals.claimed.steps,
        left="unlimited" if left is None else left,
    )


def _add_error_handlers(app: FastAPI, service: GradingService) -> None:
    """Answer every error with problem+json."""

    @app.exception_handler(Agent2RLError)
    async def handle_known_error(_: Request, error: Agent2RLError) -> JSONResponse:
        service.record_refusal(error)
        status = STATUS.get(type(error), 500)
        return problem_response(
            status,
            type(error).__name__,
            error.message,
            error.hint or "Do not retry. Accepted submissions still count.",
            list(service.setup.gpus) if isinstance(error, UnknownGpu) else None,
        )

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        hint = "GET /openapi.json describes every parameter."
        if first["loc"][0] == "body" and "/submi" in request.url.path:
            hint = 'Send JSON such as {"model_path": "output/v1"}. GET /openapi.json describes every field.'
        return problem_response(400, "Malformed request", f"{field}: {first['msg']}.", hint)

    @app.exception_handler(Exception)
    async def handle_internal_error(_: Request, error: Exception) -> JSONResponse:
        service.record_fault("api")
        # Only the kind of the error: its message could hold what the agent must not see.
        return problem_response(
            500, "Fault", f"Internal error of the grading service ({type(error).__name__}).", "Try again."
        )

    @app.exception_handler(HTTPException)
    async def handle_http_error(_: Request, error: HTTPException) -> JSONResponse:
        return problem_response(
            error.status_code, "Not possible", str(error.detail), "GET /openapi.json lists all calls."
        )


def problem_response(
    status: int, title: str, detail: str, hint: str, available_gpus: list[str] | None = None
) -> JSONResponse:
    body = ProblemDetails(
        title=title,
        status=status,
        detail=detail,
        hint=hint,
        mend=hint,
        error=detail,
        available_gpus=available_gpus,
    )
    return JSONResponse(body.model_dump(), status, media_type="application/problem+json")


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class BodyLimit:
    """Limit the size of request bodies, so that the agent cannot fill the harness's memory."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        most: int = BODY_BYTES,
        hint: str = "Save the model in the workspace and send its path, not its bytes.",
    ) -> None:
        self._app = app
        self._most = most
        self._hint = hint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                # The client hung up before its body was complete.
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._most:
                refusal = problem_response(
                    413, "Too large", f"Requests are limited to {self._most} bytes.", self._hint
                )
                return await refusal(scope, receive, send)
            if not message.get("more_body", False):
                break
        messages = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        # A body can be received once, so the app gets what was read here as one message.
        async def replay() -> MutableMapping[str, Any]:
            return messages.pop() if messages else await receive()

        return await self._app(scope, replay, send)
