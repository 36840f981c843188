"""The long parts of pages, as the workshop makes them: a run's analysis, and the report of many runs."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from agent2rl.analysis.campaigns.campaign import campaign
from agent2rl.analysis.campaigns.digest import Digest
from agent2rl.analysis.campaigns.shares import Traits
from agent2rl.report import html, page, plots
from agent2rl.report.campaigns import page as many
from agent2rl.store.paths import RunPaths

MAIN = ('<main id="main">', "</main>")


def of_run(root: str) -> str:
    """What a run's report says, as the inside of a page."""
    shown = page.gather(RunPaths(Path(root)))
    return inside(html.page(shown, plots.texts(shown)))


def of_runs(digests: str, tasks: str, protocol: str, target: str) -> str:
    """The report of many runs; its figures and data are written to `target`."""
    found = [Digest.model_validate_json(line) for line in Path(digests).read_text().splitlines()]
    traits = [Traits(**each) for each in json.loads(tasks)]
    made = campaign(found, traits, protocol="paper" if protocol == "paper" else "heldout")
    return inside(many.write(made, Path(target)).read_text(encoding="utf-8"))


def inside(text: str) -> str:
    """Everything that others wrote is escaped, so these marks are the page's own."""
    return text.partition(MAIN[0])[2].rpartition(MAIN[1])[0]


def fingerprint(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


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
