"""Pages of many runs: the table, runs side by side, the leaderboard."""

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, Response

from agent2rl.core.errors import UserError
from agent2rl.core.records import ScoringProtocol
from agent2rl.dashboard import live_updates, rendering, run_comparison, run_status
from agent2rl.dashboard.rendering import render_response
from agent2rl.dashboard.run_filter import group_by_name, parse_filter
from agent2rl.dashboard.state import Dashboard
from agent2rl.report import page_templates

FILES = {".svg": "image/svg+xml", ".png": "image/png", ".csv": "text/csv"}


def add_multi_run_routes(app: FastAPI, dashboard: Dashboard) -> None:
    @app.get("/")
    def all_runs(request: Request) -> Response:
        return render_response("runs.html.jinja", **_build_table(request, dashboard))

    @app.get("/table")
    def table(request: Request) -> Response:
        return render_response("table.jinja", **_build_table(request, dashboard))

    @app.get("/compare")
    def side_by_side(run_ids: Annotated[list[str] | None, Query(alias="run")] = None) -> Response:
        names = list(dict.fromkeys(run_ids or ()))[: run_comparison.MOST_RUNS]
        standings = [run_status.read_live_status(run_status.find_run(dashboard.runs, name)) for name in names]
        if len(standings) < 2:
            return render_response("compare_none.html.jinja", runs=standings)
        from agent2rl.dashboard import score_trajectories  # loads matplotlib, which takes a second

        return render_response(
            "compare.html.jinja",
            runs=standings,
            differing=run_comparison.list_differing_settings(standings),
            flips=run_comparison.compare_best_answers(standings[0], standings[1]),
            figures=page_templates.inline_figures(score_trajectories.courses(standings)),
        )

    @app.get("/leaderboard")
    def leaderboard(request: Request, protocol: ScoringProtocol = "heldout") -> Response:
        return render_response(
            "leaderboard_live.html.jinja", **_build_leaderboard(request, dashboard, protocol)
        )

    @app.get("/leaderboard/made")
    def leaderboard_made(request: Request, protocol: ScoringProtocol = "heldout") -> Response:
        return render_response("made.jinja", **_build_leaderboard(request, dashboard, protocol))

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
        return live_updates.stream_changes(dashboard.all_runs, request)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name == "style.css":
            return Response(rendering.read_style(), media_type="text/css")
        if name in ("dashboard.js", "report.js"):
            return Response(rendering.read_script(name), media_type="text/javascript")
        raise UserError("There is no such file.")


def _build_table(request: Request, dashboard: Dashboard) -> dict[str, Any]:
    choice = parse_filter(request.query_params.multi_items())
    rows, total = dashboard.index.select_rows(choice.build_query())
    return {
        "choice": choice,
        "rows": rows,
        "total": total,
        "choices": dashboard.index.list_filter_values(),
        "unreadable": dashboard.index.unreadable,
        "waiting": dashboard.index.waiting,
        "looked": dashboard.index.looked,
        "gone": dashboard.index.gone,
        "directory": str(dashboard.runs),
    }


def _build_leaderboard(request: Request, dashboard: Dashboard, protocol: ScoringProtocol) -> dict[str, Any]:
    asked = request.query_params.multi_items()
    choice = parse_filter(asked)
    include_contaminated = ("contaminated", "included") in asked
    return {
        "choice": choice,
        "choices": dashboard.index.list_filter_values(),
        "include_contaminated": include_contaminated,
        "address": rendering.link("/leaderboard/made", **group_by_name(asked)),
        "made": dashboard.get_leaderboard(choice, protocol, include_contaminated),
    }
