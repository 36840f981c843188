"""Pages about many runs: the run list, the comparison and the leaderboard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, Response

from agent2rl.analysis.gain import mcnemar
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import ExampleResult, Split
from agent2rl.core.records import ScoringProtocol
from agent2rl.dashboard import rendering, run_status, state
from agent2rl.dashboard.rendering import render_response
from agent2rl.dashboard.run_filter import group_by_name, parse_filter
from agent2rl.dashboard.run_status import LiveRunStatus, read_answers
from agent2rl.dashboard.state import Dashboard
from agent2rl.report import formatting, page_templates

# Comparison: settings that differ, and examples that flipped between two runs.

MOST_RUNS = 6
MOST_FLIPS = 200
DIFFERENT = 1e-9


@dataclass(frozen=True)
class AnswerFlip:
    id: str
    group: str
    first: ExampleResult
    second: ExampleResult


@dataclass(frozen=True)
class AnswerFlips:
    """The best submissions of two runs on the same examples."""

    split: Split
    both: int
    better: int
    """Examples on which the second run is better."""
    worse: int
    p_value: float | None
    """None if scores are not just 0 or 1."""
    shown: tuple[AnswerFlip, ...]


def list_differing_settings(runs: Sequence[LiveRunStatus]) -> list[tuple[str, list[str]]]:
    """Return the settings that are not the same in all runs."""
    specs = [each.view.spec.model_dump(mode="json") for each in runs]
    names = [name for name in specs[0] if len({str(spec.get(name)) for spec in specs}) > 1]
    return [
        (name.replace("_", " "), [formatting.format_setting(spec.get(name)) for spec in specs])
        for name in names
    ]


def compare_best_answers(first: LiveRunStatus, second: LiveRunStatus) -> AnswerFlips | None:
    """Compare two runs on the held-out split if both were graded on it, else on the feedback split."""
    for split in ("heldout", "feedback"):
        sides = [_read_best_answers(each, split) for each in (first, second)]
        both = [name for name in sides[0] if name in sides[1]]
        if both:
            return _count_flips(split, [(sides[0][name], sides[1][name]) for name in both])
    return None


def _read_best_answers(run: LiveRunStatus, split: Split) -> dict[str, ExampleResult]:
    best = run.best
    if best is None:
        return {}
    # A submission with the same weights as an earlier one was not graded again.
    answers = read_answers(run.view.paths, best.id, split) or read_answers(
        run.view.paths, best.same_as or 0, split
    )
    return {answer.id: answer for answer in answers}


def _count_flips(split: Split, pairs: Sequence[tuple[ExampleResult, ExampleResult]]) -> AnswerFlips:
    changes = [(new.score - old.score, old, new) for old, new in pairs]
    better = sum(change > DIFFERENT for change, _, _ in changes)
    worse = sum(change < -DIFFERENT for change, _, _ in changes)
    exact = all(each.score in (0.0, 1.0) for pair in pairs for each in pair)
    flipped = sorted(
        (each for each in changes if abs(each[0]) > DIFFERENT), key=lambda each: (each[0], each[1].id)
    )
    return AnswerFlips(
        split=split,
        both=len(pairs),
        better=better,
        worse=worse,
        p_value=mcnemar(better, worse) if exact else None,
        shown=tuple(AnswerFlip(old.id, old.group, old, new) for _, old, new in flipped[:MOST_FLIPS]),
    )


SCRIPTS = ("dashboard.js", "report.js", "charts.js")
FILES = {".svg": "image/svg+xml", ".png": "image/png", ".csv": "text/csv"}


def add_multi_run_routes(app: FastAPI, dashboard: Dashboard) -> None:
    @app.get("/")
    def runs_page(request: Request) -> Response:
        return render_response("runs.html.jinja", **_build_table(request, dashboard))

    @app.get("/table")
    def run_table_fragment(request: Request) -> Response:
        return render_response("table.jinja", **_build_table(request, dashboard))

    @app.get("/compare")
    def compare_page(run_ids: Annotated[list[str] | None, Query(alias="run")] = None) -> Response:
        names = list(dict.fromkeys(run_ids or ()))[:MOST_RUNS]
        statuses = [run_status.read_live_status(run_status.find_run(dashboard.runs, name)) for name in names]
        if len(statuses) < 2:
            return render_response("compare_none.html.jinja", runs=statuses)
        from agent2rl.dashboard.analysis import render_score_trajectories

        return render_response(
            "compare.html.jinja",
            runs=statuses,
            differing=list_differing_settings(statuses),
            flips=compare_best_answers(statuses[0], statuses[1]),
            figures=page_templates.inline_figures(render_score_trajectories(statuses)),
            analysis=dashboard.get_training_curves(names),
            trainings_link=rendering.link("/compare/trainings", run=names),
        )

    @app.get("/compare/trainings")
    def training_curves_fragment(run_ids: Annotated[list[str] | None, Query(alias="run")] = None) -> Response:
        names = list(dict.fromkeys(run_ids or ()))[:MOST_RUNS]
        return render_response("analysis.jinja", analysis=dashboard.get_training_curves(names))

    @app.get("/leaderboard")
    def leaderboard_page(request: Request, protocol: ScoringProtocol = "default") -> Response:
        return render_response(
            "leaderboard_live.html.jinja", **_build_leaderboard(request, dashboard, protocol)
        )

    @app.get("/leaderboard/analysis")
    def leaderboard_analysis_fragment(request: Request, protocol: ScoringProtocol = "default") -> Response:
        return render_response("analysis.jinja", **_build_leaderboard(request, dashboard, protocol))

    @app.get("/leaderboard/files/{stamp}/{rest:path}")
    def leaderboard_file(stamp: str, rest: str) -> Response:
        folder = (dashboard.folder / stamp).resolve()
        path = (folder / rest).resolve()
        inside = stamp.isalnum() and path.is_relative_to(folder) and path.suffix in FILES
        if not inside or not path.is_file():
            raise UserError("This figure is no longer available.", "Reload the leaderboard.")
        return FileResponse(path, media_type=FILES[path.suffix])

    @app.get("/events")
    async def all_events(request: Request) -> Response:
        return state.stream_changes(dashboard.all_runs, request)

    @app.get("/static/{name}")
    def static_file(name: str) -> Response:
        if name == "style.css":
            return Response(rendering.read_style(), media_type="text/css")
        if name in SCRIPTS:
            return Response(rendering.read_script(name), media_type="text/javascript")
        raise UserError("This file does not exist.")


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
    parameters = request.query_params.multi_items()
    choice = parse_filter(parameters)
    include_contaminated = ("contaminated", "included") in parameters
    return {
        "choice": choice,
        "choices": dashboard.index.list_filter_values(),
        "include_contaminated": include_contaminated,
        "address": rendering.link("/leaderboard/analysis", **group_by_name(parameters)),
        "analysis": dashboard.get_leaderboard(choice, protocol, include_contaminated),
    }
