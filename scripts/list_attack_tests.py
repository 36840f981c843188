"""Prints the node id of each test that docs/design/attacks.md names, for `make test-attacks`.

As a plugin of pytest (`-p scripts.list_attack_tests`), it says at the end how many attacks were not shown.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "attacks.md"
ROW = re.compile(r"\| (?P<attack>[^|]+) \| (?P<defence>[^|]+) \| `(?P<test>tests/[\w/]+\.py(?:::\w+)+)` \|")
HEADS = ("| attack |", "|---")


@dataclass(frozen=True)
class Attack:
    kind: str
    """The class of attacks: a heading of the page."""
    attack: str
    defence: str
    test: str
    """A pytest node id, relative to the repository."""


def read_attacks(page: Path = PAGE) -> list[Attack]:
    """Return the lines of the page's tables; a line in another form is an error."""
    attacks, kind = [], ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            kind = line.removeprefix("## ")
        elif line.startswith("|") and not line.startswith(HEADS):
            row = ROW.fullmatch(line)
            if row is None:
                raise ValueError(f"{page.name} has a line that names no test: {line}")
            attacks.append(Attack(kind, row["attack"], row["defence"], row["test"]))
    return attacks


def list_unshown(attacks: Iterable[Attack], passed: Iterable[str]) -> list[Attack]:
    """Return the attacks of whose test no case is among these node ids."""
    shown = {node_id.partition("[")[0] for node_id in passed}
    return [attack for attack in attacks if attack.test not in shown]


class TestReport(Protocol):
    nodeid: str


class TerminalReporter(Protocol):
    """What is used of pytest's terminal reporter."""

    stats: dict[str, list[TestReport]]

    def write_line(self, line: str) -> None: ...


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    attacks = read_attacks()
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    unshown = list_unshown(attacks, passed)
    for attack in unshown:
        terminalreporter.write_line(f"not shown: {attack.attack} ({attack.test})")
    terminalreporter.write_line(
        f"{len(unshown)} of {len(attacks)} attacks not shown here (skipped or failed)"
    )


if __name__ == "__main__":
    print("\n".join(sorted({attack.test for attack in read_attacks()})))
