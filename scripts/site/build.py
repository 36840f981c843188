"""Builds the site of docs/: `python scripts/site/build.py FOLDER` writes FOLDER/docs and of it FOLDER/site.

Its leaderboard is that of the smoke campaign, or of the bundles in a folder that is named after FOLDER.

docs/ is plain Markdown that a forge shows as it is. Three things differ in the site: links that leave docs/
lead to pages of the site, fences say their title in the generator's way, and `<!-- from the code: NAME -->`
gives way to what the code says. That is done to a copy and not by a plugin, so that any generator will do.
"""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.site import classes, contents, leaving

os.environ["NO_MKDOCS_2_WARNING"] = "1"  # docs/design/dependencies.md has what it says

from mkdocs.commands import build as mkdocs
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[2]
SMOKE_RUNS = ROOT / "docs/results/smoke/runs"
TITLE = re.compile(r"^```(\w+) title=(\S+)$", re.M)
MARK = re.compile(r"^<!-- from the code: ([\w-]+) -->$", re.M)


def prepare(docs: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(docs, target, ignore=lambda folder, names: leaving.shadowed(Path(folder), names))
    pages = sorted(docs.rglob("*.md"))
    for page in pages:
        text = leaving.turned(docs, page, page.read_text(encoding="utf-8"))
        text = MARK.sub(lambda mark: classes.linked(contents.PAGES[mark[1]]()), text)
        (target / page.relative_to(docs)).write_text(TITLE.sub(r'```\1 title="\2"', text), encoding="utf-8")
    for path in {path for page in pages for path in leaving.targets(docs, page)}:
        new = target / leaving.place(docs, path)
        if not new.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(leaving.shown(docs, path), encoding="utf-8")
    (target / "reference" / "openapi.json").write_text(json.dumps(contents.openapi(), indent=2))


def build(folder: Path, runs: Path = SMOKE_RUNS) -> Path:
    prepare(ROOT / "docs", folder / "docs")
    site = folder / "site"
    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(folder / "docs"), site_dir=str(site), strict=True
    )
    mkdocs.build(config)
    build_leaderboard(runs, site / "leaderboard")
    return site


def build_leaderboard(runs: Path, target: Path) -> None:
    """Build the public leaderboard of the bundles in a folder, if there are any."""
    if any(runs.glob("*.tar.zst")):
        command = (sys.executable, "-m", "agent2rl.cli.main", "site", str(runs), "-o", str(target))
        title = ("--title", "The smoke campaign", "--require-verified")
        subprocess.run((*command, *title), check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s: %(message)s")
    print(f"Open in a browser: {build(*(Path(name).resolve() for name in sys.argv[1:])) / 'index.html'}")
