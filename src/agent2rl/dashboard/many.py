"""Pages of many runs: the table, runs side by side, the leaderboard."""

import importlib
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, Response

from agent2rl.core.errors import UserError
from agent2rl.core.records import Protocol
from agent2rl.dashboard import compare, live, pages, run
from agent2rl.dashboard.choice import chosen, grouped
from agent2rl.dashboard.pages import answer
from agent2rl.dashboard.state import Dashboard
from agent2rl.report import sheets

COURSES = "agent2rl.dashboard.courses"
FILES = {".svg": "image/svg+xml", ".png": "image/png", ".csv": "text/csv"}


def add(app: FastAPI, dashboard: Dashboard) -> None:
    @app.get("/")
    def all_runs(request: Request) -> Response:
        return answer("runs.html.jinja", **_table(request, dashboard))

    @app.get("/table")
    def table(request: Request) -> Response:
        return answer("table.jinja", **_table(request, dashboard))

    @app.get("/compare")
    def side_by_side(run_ids: Annotated[list[str] | None, Query(alias="run")] = None) -> Response:
        names = list(dict.fromkeys(run_ids or ()))[: compare.MOST_RUNS]
        standings = [run.stand(run.find(dashboard.runs, name)) for name in names]
        if len(standings) < 2:
            return answer("compare_none.html.jinja", runs=standings)
        return answer(
            "compare.html.jinja",
            runs=standings,
            differing=compare.differing(standings),
            flips=compare.flips(standings[0], standings[1]),
            figures=sheets.figures(importlib.import_module(COURSES).courses(standings)),
        )

    @app.get("/leaderboard")
    def leaderboard(request: Request, protocol: Protocol = "heldout") -> Response:
        return answer("leaderboard_live.html.jinja", **_together(request, dashboard, protocol))

    @app.get("/leaderboard/made")
    def leaderboard_made(request: Request, protocol: Protocol = "heldout") -> Response:
        return answer("made.jinja", **_together(request, dashboard, protocol))

    @app.get("/made/{stamp}/{rest:path}")
    def made(stamp: str, rest: str) -> Response:
        folder = (dashboard.folder / stamp).resolve()
        path = (folder / rest).resolve()
        inside = stamp.isalnum() and path.is_relative_to(folder) and path.suffix in FILES
        if not inside or not path.is_file():
            raise UserError("That figure is not kept any more.", "Open the leaderboard again.")
        return FileResponse(path, media_type=FILES[path.suffix])

    @app.get("/events")
    async def events(request: Request) -> Response:
        return live.stream(dashboard.all_runs, request)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name == "style.css":
            return Response(pages.style(), media_type="text/css")
        if name in ("dashboard.js", "report.js"):
            return Response(pages.script(name), media_type="text/javascript")
        raise UserError("There is no such file.")


def _table(request: Request, dashboard: Dashboard) -> dict[str, Any]:
    choice = chosen(request.query_params.multi_items())
    rows, total = dashboard.index.select(choice.asked())
    return {
        "choice": choice,
        "rows": rows,
        "total": total,
        "choices": dashboard.index.choices(),
        "unreadable": dashboard.index.unreadable,
        "waiting": dashboard.index.waiting,
        "looked": dashboard.index.looked,
        "gone": dashboard.index.gone,
        "directory": str(dashboard.runs),
    }


def _together(request: Request, dashboard: Dashboard, protocol: Protocol) -> dict[str, Any]:
    asked = request.query_params.multi_items()
    choice = chosen(asked)
    include_contaminated = ("contaminated", "included") in asked
    return {
        "choice": choice,
        "choices": dashboard.index.choices(),
        "include_contaminated": include_contaminated,
        "address": pages.link("/leaderboard/made", **grouped(asked)),
        "made": dashboard.together(choice, protocol, include_contaminated),
    }
