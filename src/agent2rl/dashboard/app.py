"""The dashboard over HTTP: pages made on the server, which a small script keeps up to date.

    GET /                              all runs: filters, order and words are in the address
    GET /runs/<id>                     one run; what is known at once, and its analysis once that is made
    GET /runs/<id>/code                its code at any submission, and what changed between any two
    GET /runs/<id>/examples            what the model answered, example by example; /examples/<n> turn by turn
    GET /runs/<id>/transcript, /log    what the agent said and did, and what it printed
    GET /compare?run=A&run=B           two or more runs side by side
    GET /leaderboard                   many runs together, chosen as in /
    GET /events, /runs/<id>/events     server-sent events: something has changed

Nothing can be changed through it, and nothing but run directories be read. Other web sites can do nothing: a
name of theirs that points here is no host of ours, and where strangers can reach it a token is asked for.
"""

import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query, Request
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from markupsafe import Markup

from agent2rl.analysis.campaigns.shares import Traits
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.records import Split
from agent2rl.dashboard import analysis, code, compare, examples, live, pages, run
from agent2rl.dashboard.choice import Choice, chosen
from agent2rl.dashboard.index import Index, Level
from agent2rl.dashboard.worker import Workshop
from agent2rl.report import sheets
from agent2rl.store.reader import read_transcript

HOSTS = {"127.0.0.1", "localhost", "[::1]"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE = "agent2rl-token"
FILES = {"svg": "image/svg+xml", "png": "image/png", "csv": "text/csv"}


class Dashboard:
    """What the pages are made of."""

    def __init__(
        self, runs: Path, cache: Path, level: Level, tasks: Callable[[], list[Traits]], token: str = ""
    ) -> None:
        self.index = Index(runs, cache, level)
        self.runs, self.token, self._tasks = runs, token, tasks
        self.workshop = Workshop(cache / "dashboard" / "made")
        self.folder = cache / "dashboard" / "campaigns"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all_runs = live.Watched(lambda: f"{self.index.version} {self.workshop.version}")
        self._watched: dict[str, live.Watched] = {}

    def start(self) -> None:
        self.index.start()

    def close(self) -> None:
        self.index.close()
        self.workshop.close()

    def watched(self, name: str) -> live.Watched:
        """One for each run that somebody looks at."""
        paths = run.find(self.runs, name)
        if len(self._watched) > 1000:
            self._watched.clear()
        if name not in self._watched:
            self._watched[name] = live.Watched(
                lambda: f"{analysis.stamp(paths)} {_size(paths.agent_log)} {self.workshop.version}"
            )
        return self._watched[name]

    def analysed(self, name: str) -> dict[str, Any]:
        paths = run.find(self.runs, name)
        stamp = analysis.stamp(paths)
        found = self.workshop.ask(
            f"run {name}", stamp, paths.result.exists(), analysis.of_run, str(paths.root)
        )
        return {
            "text": Markup(found.text) if found.text else None,
            "fresh": found.fresh,
            "fault": found.fault,
        }

    def together(self, choice: Choice, protocol: str) -> dict[str, Any]:
        """The report of the runs that are chosen; figures lie in a folder of their own."""
        digests, missing = self.index.digests(choice.asked(limit=None))
        lines = sorted(each.model_dump_json() for each in digests)
        stamp = analysis.fingerprint([*lines, protocol])
        target = self.folder / stamp
        target.mkdir(exist_ok=True)
        given = target / "digests.jsonl"
        if not given.exists():
            given.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        tasks = json.dumps([asdict(each) for each in self._tasks()])
        found = self.workshop.ask(
            f"runs {choice.address('')} {protocol}",
            stamp,
            False,
            analysis.of_runs,
            str(given),
            tasks,
            protocol,
            str(target),
        )
        text = (
            Markup(found.text.replace('href="figures/', f'href="/made/{stamp}/figures/'))
            if found.text
            else None
        )
        if text:
            text = Markup(text.replace('href="leaderboard.csv"', f'href="/made/{stamp}/leaderboard.csv"'))
            text = Markup(text.replace('href="cells.csv"', f'href="/made/{stamp}/cells.csv"'))
        return {
            "text": text,
            "fresh": found.fresh,
            "fault": found.fault,
            "missing": missing,
            "runs": len(digests),
        }


def application(dashboard: Dashboard) -> FastAPI:
    app = FastAPI(title="agent2rl", docs_url=None, redoc_url=None, openapi_url=None)
    _guard(app, dashboard)
    _many(app, dashboard)
    _one(app, dashboard)
    return app


def _guard(app: FastAPI, dashboard: Dashboard) -> None:
    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _refused(request, dashboard.token)
        response = refused or await go_on(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(UserError)
    async def not_there(_request: Request, error: UserError) -> Response:
        return _fault(str(error), 404)

    @app.exception_handler(Agent2RLError)
    async def broken(_request: Request, error: Agent2RLError) -> Response:
        return _fault(str(error), 500)

    @app.exception_handler(404)
    async def no_page(_request: Request, _: Exception) -> Response:
        return _fault("There is no such page.", 404)

    @app.exception_handler(422)
    async def not_asked(_request: Request, _: Exception) -> Response:
        return _fault("The address asks for something that does not exist.", 422)


def _refused(request: Request, token: str) -> Response | None:
    if not token:
        host = request.headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return None if name in HOSTS else PlainTextResponse("This host is not served here.", 403)
    asked = request.query_params.get("token", "")
    if asked and hmac.compare_digest(asked.encode(), token.encode()):
        rest = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
        leads = RedirectResponse(pages.link(request.url.path, **_grouped(rest)), 303)
        leads.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return leads
    shown = request.cookies.get(COOKIE, "")
    if hmac.compare_digest(shown.encode(), token.encode()):
        return None
    return PlainTextResponse("Open the address that `agent2rl view` printed: its token is needed.", 403)


def _grouped(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _many(app: FastAPI, dashboard: Dashboard) -> None:
    @app.get("/")
    def all_runs(request: Request) -> Response:
        return _page("runs.html.jinja", **_table(request, dashboard))

    @app.get("/table")
    def table(request: Request) -> Response:
        return _page("table.jinja", **_table(request, dashboard))

    @app.get("/compare")
    def side_by_side(run_ids: Annotated[list[str], Query(alias="run")] = []) -> Response:  # noqa: B006
        names = list(dict.fromkeys(run_ids))[: compare.MOST_RUNS]
        standings = [run.stand(run.find(dashboard.runs, name)) for name in names]
        if len(standings) < 2:
            raise UserError("Choose at least two runs to compare.")
        return _page(
            "compare.html.jinja",
            runs=standings,
            rows=[dashboard.index.row(name) for name in names],
            differing=compare.differing(standings),
            flips=compare.flips(standings[0], standings[1]),
            figures=sheets.figures(compare.courses(standings)),
        )

    @app.get("/leaderboard")
    def leaderboard(request: Request, protocol: str = "heldout") -> Response:
        return _page("leaderboard_live.html.jinja", **_together(request, dashboard, protocol))

    @app.get("/leaderboard/made")
    def leaderboard_made(request: Request, protocol: str = "heldout") -> Response:
        return _page("made.jinja", **_together(request, dashboard, protocol))

    @app.get("/made/{stamp}/{rest:path}")
    def made(stamp: str, rest: str) -> Response:
        folder = (dashboard.folder / stamp).resolve()
        path = (folder / rest).resolve()
        kind = FILES.get(path.suffix.removeprefix("."))
        if not stamp.isalnum() or not path.is_relative_to(folder) or not kind or not path.is_file():
            raise UserError("That figure is not kept any more.", "Open the leaderboard again.")
        return FileResponse(path, media_type=kind)

    @app.get("/events")
    async def events(request: Request) -> Response:
        return _stream(dashboard.all_runs, request)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name == "style.css":
            return Response(pages.style(), media_type="text/css")
        if name == "dashboard.js":
            return Response((pages.STATIC / name).read_text(), media_type="text/javascript")
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
        "directory": str(dashboard.runs),
    }


def _together(request: Request, dashboard: Dashboard, protocol: str) -> dict[str, Any]:
    choice = chosen(request.query_params.multi_items())
    return {
        "choice": choice,
        "choices": dashboard.index.choices(),
        "protocol": protocol,
        "address": pages.link("/leaderboard/made", **_grouped(request.query_params.multi_items())),
        "made": dashboard.together(choice, protocol),
    }


def _one(app: FastAPI, dashboard: Dashboard) -> None:
    @app.get("/runs/{name}")
    def one(name: str) -> Response:
        return _page(
            "run.html.jinja",
            tab="overview",
            standing=run.stand(run.find(dashboard.runs, name)),
            row=dashboard.index.row(name),
            made=dashboard.analysed(name),
        )

    @app.get("/runs/{name}/now")
    def now(name: str) -> Response:
        standing = run.stand(run.find(dashboard.runs, name))
        return _page("now.jinja", standing=standing, row=dashboard.index.row(name))

    @app.get("/runs/{name}/made")
    def made(name: str) -> Response:
        return _page("made.jinja", made=dashboard.analysed(name))

    @app.get("/runs/{name}/code")
    def its_code(name: str, at: int | None = None, since: int | None = None, file: str = "") -> Response:
        paths = run.find(dashboard.runs, name)
        found = code.look(paths, at, since, file)
        return _page("code.html.jinja", tab="code", standing=run.stand(paths), code=found)

    @app.get("/runs/{name}/examples")
    def its_examples(
        name: str, submission: int | None = None, split: Split = "feedback", show: str = "all", page: int = 1
    ) -> Response:
        standing = run.stand(run.find(dashboard.runs, name))
        found = examples.look(standing, submission, split, show, page)
        return _page("examples.html.jinja", tab="examples", standing=standing, found=found)

    @app.get("/runs/{name}/examples/{example:path}")
    def its_example(
        name: str, example: str, submission: int = 0, split: Split = "feedback", step: int | None = None
    ) -> Response:
        standing = run.stand(run.find(dashboard.runs, name))
        found = examples.one(standing, submission, split, example, step)
        return _page("example.html.jinja", tab="examples", standing=standing, found=found)

    @app.get("/runs/{name}/transcript")
    def its_transcript(name: str, page: int = 1) -> Response:
        paths = run.find(dashboard.runs, name)
        transcript = read_transcript(paths)
        return _page(
            "transcript.html.jinja",
            tab="transcript",
            standing=run.stand(paths),
            transcript=transcript,
            part=examples.part(transcript.steps if transcript else (), page, examples.STEPS),
        )

    @app.get("/runs/{name}/log")
    def its_log(name: str) -> Response:
        paths = run.find(dashboard.runs, name)
        return _page(
            "log.html.jinja", tab="log", standing=run.stand(paths), text=run.tail(paths.agent_log, 1 << 20)
        )

    @app.get("/runs/{name}/events")
    async def its_events(name: str, request: Request) -> Response:
        return _stream(dashboard.watched(name), request)


def _stream(watched: live.Watched, request: Request) -> Response:
    return StreamingResponse(live.follow(watched, request.is_disconnected), media_type="text/event-stream")


def _page(template: str, standing: run.Standing | None = None, **values: Any) -> HTMLResponse:
    if standing:
        view = standing.view
        values |= {"standing": standing, "view": view, "address": f"/runs/{quote(view.paths.run_id)}"}
    return HTMLResponse(pages.page(template, **values))


def _fault(text: str, status: int) -> Response:
    return HTMLResponse(pages.page("fault.html.jinja", text=text, status=status), status)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
