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

from fastapi import FastAPI

from agent2rl.dashboard import multi_run_pages, security, single_run_pages
from agent2rl.dashboard.state import Dashboard


def create_app(dashboard: Dashboard) -> FastAPI:
    app = FastAPI(title="agent2rl", docs_url=None, redoc_url=None, openapi_url=None)
    security.add_guards(app, dashboard.token)
    multi_run_pages.add_multi_run_routes(app, dashboard)
    single_run_pages.add_single_run_routes(app, dashboard)
    return app
