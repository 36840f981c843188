"""Every example in README.md and docs/ is run, in the order of the page, in a directory of its own.

```bash            run by bash
```python          run by Python
```text            shown only
```LANGUAGE title=NAME   written to the file NAME, for the examples after it
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.run_launcher import RunLauncher

ROOT = Path(__file__).resolve().parents[2]
DOC_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE_FENCE = re.compile(r"^```(?P<language>\w+)(?: title=(?P<title>\S+))?\n(?P<code>.*?)^```$", re.M | re.S)
SHOWN = {"text", "json", "jsonl", "toml"}
SETUP = {"make demo", "make test"}
"""What sets a machine up; the continuous integration runs these, not the tests that they run."""

LONG_PAGES = {
    *(
        "adding-a-task.md",
        "adding-an-agent.md",
        "adding-an-engine.md",
        "audit.md",
        "bundles.md",
        "campaigns.md",
    ),
    *("engines.md", "notebooks.md", "own-data.md", "protocols.md", "report.md", "reproduce.md"),
    *("run-directory.md", "site.md", "submitting.md"),
}


def mark_long_pages() -> list[object]:
    """Leave the pages whose examples take a minute to make test-thorough."""
    return [
        pytest.param(page, marks=pytest.mark.thorough if page.name in LONG_PAGES else ())
        for page in DOC_PAGES
    ]


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    code: str


def blocks(page: Path) -> list[Block]:
    found = CODE_FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["language"], match["title"], match["code"]) for match in found]


@pytest.mark.parametrize("page", mark_long_pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run_as_they_stand(page: Path, launcher: RunLauncher) -> None:
    commands = f"{Path(sys.executable).parent}:{launcher.environment()['PATH']}"
    environment = launcher.environment(PATH=commands)
    environment["AGENT2RL_RUNS"] = str(launcher.home / "runs")
    for block in blocks(page):
        if block.title:
            target = launcher.home / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.code, encoding="utf-8")
        elif block.language in ("bash", "python"):
            lines = block.code.splitlines()
            code = "\n".join(line for line in lines if line.partition("#")[0].strip() not in SETUP)
            argv = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
            done = subprocess.run(
                [*argv, code],
                cwd=launcher.home,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, f"{block.code}\n{done.stdout}\n{done.stderr}"
        else:
            assert block.language in SHOWN, f"how should ```{block.language} in {page.name} be treated?"


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = CODE_FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
