"""Every example in README.md and docs/ is run, in the order of the page, in a directory of its own.

```bash            run by bash
```python          run by Python
```text            shown only
```LANGUAGE title=NAME   written to the file NAME, for the examples after it
"""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from agent2rl.cli.main import cli
from tests.helpers.run_launcher import RunLauncher

ROOT = Path(__file__).resolve().parents[2]
DOC_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE_FENCE = re.compile(r"^```(?P<language>\w+)(?: title=(?P<title>\S+))?\n(?P<code>.*?)^```$", re.M | re.S)
SHOWN = {"text", "json", "jsonl", "toml"}
SETUP = {"make demo", "make test"}
"""What sets a machine up; the continuous integration runs these, not the tests that they run."""

LONG_PAGES = {
    *("adding-a-sandbox.md", "adding-a-task.md", "adding-an-agent.md", "adding-an-engine.md"),
    *("alfworld.md", "audit.md", "lineage.md", "play.md", "scoring.md"),
    *("bundles.md", "campaigns.md", "engines.md", "interoperability.md", "isolation.md", "models.md"),
    *("notebooks.md", "offline.md", "own-data.md", "protocols.md", "quickstart.md", "report.md"),
    *(
        "reproduce.md",
        "run-directory.md",
        "seedling.md",
        "site.md",
        "submitting.md",
        "tracking.md",
        "webshop.md",
    ),
}


def mark_long_pages() -> list[object]:
    """Leave the pages whose examples take long to make test-thorough; below, all are parsed."""
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


SEPARATORS = "|&;<>()\n"


def list_commands(code: str) -> Iterator[list[str]]:
    """The arguments of each `agent2rl` in a shell script."""
    code = re.sub(r"(^|\s)#.*", "", code.replace("\\\n", " "))
    lexer = shlex.shlex(code, posix=True, punctuation_chars=SEPARATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words = list(lexer)
    while "agent2rl" in words:
        words = words[words.index("agent2rl") + 1 :]
        end = next((at for at, word in enumerate(words) if set(word) <= set(SEPARATORS)), len(words))
        yield words[:end]


def parse_command(arguments: list[str]) -> None:
    """Raise UsageError for a command, an option or a choice that does not exist. Nothing is run."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        _, rest, _ = command.make_parser(context).parse_args(arguments)
        name, command_or_none, arguments = command.resolve_command(context, rest)
        assert command_or_none is not None
        command = command_or_none
        context = click.Context(command, context, name)
        if not arguments and isinstance(command, click.Group):
            return
    values, rest, _ = command.make_parser(context).parse_args(list(arguments))
    assert rest == [], f"{' '.join(arguments)}: too many arguments"
    for parameter in command.params:
        if isinstance(parameter.type, click.Choice) and isinstance(value := values.get(parameter.name), str):
            parameter.type.convert(value, parameter, context)


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_exist_and_its_programs_can_be_parsed(page: Path) -> None:
    for block in blocks(page):
        if block.language == "bash":
            for arguments in list_commands(block.code):
                parse_command(arguments)
        elif block.language == "python":
            ast.parse(block.code)


@pytest.mark.parametrize("arguments", ["runn", "run --tsak x", "run --mode any", "show a b", "agents x"])
def test_a_command_that_does_not_exist_would_be_found(arguments: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parse_command(arguments.split())


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = CODE_FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
