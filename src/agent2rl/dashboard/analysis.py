"""The long parts of pages, as the workshop makes them: a run's analysis, and the report of many runs."""

import json
import re
from pathlib import Path

from agent2rl.analysis.campaigns.campaign import campaign
from agent2rl.analysis.campaigns.shares import Traits
from agent2rl.dashboard.index import Asked, read_digests
from agent2rl.report import html, page, plots
from agent2rl.report.campaigns import page as many
from agent2rl.store.paths import RunPaths

LINK = re.compile(r'href="((?:figures/)?[\w.-]+\.(?:csv|svg|png))"')
MAIN = ('<main id="main">', "</main>")


def of_run(root: str) -> str:
    """What a run's report says, as the inside of a page."""
    shown = page.gather(RunPaths(Path(root)))
    return inside(html.page(shown, plots.texts(shown)))


def of_runs(index: str, asked: str, tasks: str, protocol: str, target: str) -> str:
    """The report of many runs; its figures and data are written to `target`, and linked from there."""
    found = read_digests(Path(index), Asked.read(asked))
    traits = [Traits(**each) for each in json.loads(tasks)]
    made = campaign(found, traits, protocol="paper" if protocol == "paper" else "heldout")
    folder = Path(target)
    text = inside(many.write(made, folder).read_text(encoding="utf-8"))
    return LINK.sub(rf'href="/made/{folder.name}/\1"', text)


def inside(text: str) -> str:
    """Everything that others wrote is escaped, so these marks are the page's own."""
    return text.partition(MAIN[0])[2].rpartition(MAIN[1])[0]


def stamp(paths: RunPaths) -> str:
    """Differs whenever the analysis might."""
    sizes = []
    for path in (paths.ledger_head, paths.events, paths.usage, paths.result, paths.claims, paths.transcript):
        try:
            found = path.stat()
            sizes.append(f"{found.st_mtime_ns}-{found.st_size}")
        except OSError:
            sizes.append("")
    return " ".join(sizes)
