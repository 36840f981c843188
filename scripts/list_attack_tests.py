"""Prints the node id of each test that docs/design/attacks.md names, for `make test-attacks`."""

import re
from dataclasses import dataclass
from pathlib import Path

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


if __name__ == "__main__":
    print("\n".join(sorted({attack.test for attack in read_attacks()})))
