"""Pages of one run."""

from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from agent2rl.core.records import Split
from agent2rl.dashboard import code, examples, live, run
from agent2rl.dashboard.pages import answer
from agent2rl.dashboard.state import Dashboard
from agent2rl.store.reader import read_transcript

LOG_BYTES = 1 << 20
Moment = Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False)]
"""Seconds of the agent's time."""


def add(app: FastAPI, dashboard: Dashboard) -> None:
    def stand(name: str) -> run.Standing:
        return run.stand(run.find(dashboard.runs, name))

    @app.get("/runs/{name}")
    def overview(name: str) -> Response:
        return answer("run.html.jinja", stand(name), tab="overview", made=dashboard.analysed(name))

    @app.get("/runs/{name}/now")
    def now(name: str) -> Response:
        return answer("now.jinja", stand(name))

    @app.get("/runs/{name}/made")
    def made(name: str) -> Response:
        return answer("made.jinja", made=dashboard.analysed(name))

    @app.get("/runs/{name}/timeline")
    def timeline(name: str, since: Moment = 0.0, until: Moment = 0.0) -> Response:
        window = dashboard.window(name, since, until)
        return answer("timeline.html.jinja", stand(name), tab="timeline", made=window, at=(since, until))

    @app.get("/runs/{name}/timeline/made")
    def timeline_made(name: str, since: Moment = 0.0, until: Moment = 0.0) -> Response:
        return answer("made.jinja", made=dashboard.window(name, since, until))

    @app.get("/runs/{name}/code")
    def its_code(name: str, at: int | None = None, since: int | None = None, file: str = "") -> Response:
        standing = stand(name)
        found = code.look(standing.view.paths, at, since, file)
        return answer("code.html.jinja", standing, tab="code", code=found)

    @app.get("/runs/{name}/examples")
    def its_examples(
        name: str, submission: int | None = None, split: Split = "heldout", show: str = "all", page: int = 1
    ) -> Response:
        standing = stand(name)
        found = examples.look(standing, submission, split, show, page)
        return answer("examples.html.jinja", standing, tab="examples", found=found)

    @app.get("/runs/{name}/examples/{example:path}")
    def its_example(
        name: str, example: str, submission: int = 0, split: Split = "heldout", step: int | None = None
    ) -> Response:
        standing = stand(name)
        found = examples.one(standing, submission, split, example, step)
        return answer("example.html.jinja", standing, tab="examples", found=found)

    @app.get("/runs/{name}/transcript")
    def its_transcript(name: str, page: int = 1) -> Response:
        standing = stand(name)
        transcript = read_transcript(standing.view.paths)
        part = examples.part(transcript.steps if transcript else (), page, examples.STEPS)
        return answer("transcript.html.jinja", standing, tab="transcript", transcript=transcript, part=part)

    @app.get("/runs/{name}/log")
    def its_log(name: str) -> Response:
        standing = stand(name)
        text = run.tail(standing.view.paths.agent_log, LOG_BYTES)
        return answer("log.html.jinja", standing, tab="log", text=text, whole=len(text) < LOG_BYTES // 2)

    @app.get("/runs/{name}/events")
    async def its_events(name: str, request: Request) -> Response:
        return live.stream(dashboard.watched(name), request)
