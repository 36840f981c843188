"""Pages of one run."""

from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from agent2rl.core.records import Split
from agent2rl.dashboard import code_view, examples_view, live_updates, run_status
from agent2rl.dashboard.rendering import render_response
from agent2rl.dashboard.state import Dashboard
from agent2rl.store.reader import read_transcript

LOG_BYTES = 1 << 20
Moment = Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False)]
"""Seconds of the agent's time."""


def add_single_run_routes(app: FastAPI, dashboard: Dashboard) -> None:
    def stand(name: str) -> run_status.LiveRunStatus:
        return run_status.read_live_status(run_status.find_run(dashboard.runs, name))

    @app.get("/runs/{name}")
    def overview(name: str) -> Response:
        return render_response(
            "run.html.jinja", stand(name), tab="overview", made=dashboard.get_analysis(name)
        )

    @app.get("/runs/{name}/now")
    def now(name: str) -> Response:
        return render_response("now.jinja", stand(name))

    @app.get("/runs/{name}/made")
    def made(name: str) -> Response:
        return render_response("made.jinja", made=dashboard.get_analysis(name))

    @app.get("/runs/{name}/timeline")
    def timeline(name: str, since: Moment = 0.0, until: Moment = 0.0) -> Response:
        window = dashboard.get_time_window(name, since, until)
        return render_response(
            "timeline.html.jinja", stand(name), tab="timeline", made=window, at=(since, until)
        )

    @app.get("/runs/{name}/timeline/made")
    def timeline_made(name: str, since: Moment = 0.0, until: Moment = 0.0) -> Response:
        return render_response("made.jinja", made=dashboard.get_time_window(name, since, until))

    @app.get("/runs/{name}/code")
    def its_code(name: str, at: int | None = None, since: int | None = None, file: str = "") -> Response:
        standing = stand(name)
        found = code_view.read_code_view(standing.view.paths, at, since, file)
        return render_response("code.html.jinja", standing, tab="code", code=found)

    @app.get("/runs/{name}/examples")
    def its_examples(
        name: str, submission: int | None = None, split: Split = "heldout", show: str = "all", page: int = 1
    ) -> Response:
        standing = stand(name)
        found = examples_view.read_examples_view(standing, submission, split, show, page)
        return render_response("examples.html.jinja", standing, tab="examples", found=found)

    @app.get("/runs/{name}/examples/{example:path}")
    def its_example(
        name: str, example: str, submission: int = 0, split: Split = "heldout", step: int | None = None
    ) -> Response:
        standing = stand(name)
        found = examples_view.read_example_view(standing, submission, split, example, step)
        return render_response("example.html.jinja", standing, tab="examples", found=found)

    @app.get("/runs/{name}/transcript")
    def its_transcript(name: str, page: int = 1) -> Response:
        standing = stand(name)
        transcript = read_transcript(standing.view.paths)
        part = examples_view.slice_page(transcript.steps if transcript else (), page, examples_view.STEPS)
        return render_response(
            "transcript.html.jinja", standing, tab="transcript", transcript=transcript, part=part
        )

    @app.get("/runs/{name}/log")
    def its_log(name: str) -> Response:
        standing = stand(name)
        text = run_status.read_file_tail(standing.view.paths.agent_log, LOG_BYTES)
        return render_response(
            "log.html.jinja", standing, tab="log", text=text, whole=len(text) < LOG_BYTES // 2
        )

    @app.get("/runs/{name}/events")
    async def its_events(name: str, request: Request) -> Response:
        return live_updates.stream_changes(dashboard.watch_run(name), request)
