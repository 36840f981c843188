"""The labelled scripts that route attribution is measured on, and what it says of them."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from agent2rl.analysis import routes
from agent2rl.analysis.attempts import Ran, Source, Span
from agent2rl.analysis.evidence import Book
from agent2rl.analysis.findings import RouteVerdict
from agent2rl.core.records import Counts, Lineage, Rollouts, Submission

HERE = Path(__file__).with_name("analysis") / "scripts"


@dataclass(frozen=True)
class Case:
    name: str
    half: str
    routes: tuple[str, ...]
    processes: tuple[str, ...] = ()
    submission: str | None = None
    decoy: bool = False
    rollouts: int = 0
    lineage: Lineage = "derived"
    known: dict[str, list[str]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return " + ".join(self.routes)

    @property
    def span(self) -> Span:
        return span_of(
            sources(HERE / self.name),
            self.processes,
            self.submission,
            rollouts=self.rollouts,
            lineage=self.lineage,
        )

    @property
    def earlier(self) -> dict[str, RouteVerdict]:
        return {path: verdict(names) for path, names in self.known.items()}

    @cache
    def found(self) -> RouteVerdict:
        return routes.attribute(self.span, {}, Book(), known=self.earlier)

    def __hash__(self) -> int:
        return hash(self.name)


def verdict(names: Sequence[Any]) -> RouteVerdict:
    return RouteVerdict(routes=tuple(names), confidence=0.9)


def cases() -> list[Case]:
    read = tomllib.loads((HERE / "labels.toml").read_text(encoding="utf-8"))["case"]
    return [
        Case(**{**each, "routes": tuple(each["routes"]), "processes": tuple(each.get("processes", ()))})
        for each in read
    ]


def sources(folder: Path) -> tuple[Source, ...]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return tuple(
        Source(1, path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")) for path in files
    )


def span_of(
    given: Sequence[Source],
    commands: Sequence[str] = (),
    submission: str | None = None,
    *,
    rollouts: int = 0,
    lineage: Lineage = "derived",
) -> Span:
    """An attempt with this code, in which these commands ran one after the other."""
    processes = tuple(
        Ran(100 + number, command, 10.0 * number, 10.0 * number + 9, 8.0, 1 << 30)
        for number, command in enumerate(commands)
    )
    made = submission and Submission(id=1, path=submission, accepted_at=0.0, lineage=lineage)
    played = Rollouts(claimed=Counts(episodes=rollouts, steps=5 * rollouts))
    return Span(
        number=1,
        began=0.0,
        ended=1000.0,
        submission=made or None,
        sources=tuple(given),
        changed=tuple(source.path for source in given),
        processes=processes,
        weights=(),
        rollouts=played,
        printed=(),
    )


def confusion(found: Sequence[tuple[str, str]]) -> str:
    """Labels down, verdicts across, as a table."""
    names = sorted({name for pair in found for name in pair}, key=lambda name: ("+" in name, name))
    counts = Counter(found)
    lines = ["| label \\ verdict | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for label in sorted({label for label, _ in found}, key=lambda name: ("+" in name, name)):
        cells = [str(counts[label, name] or "·") for name in names]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
