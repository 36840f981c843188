"""The labelled scripts that route attribution is measured on, and what it says of them.

`python -m tests.analysis.labelled_scripts` writes the tables of docs/design/routes.md anew.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from agent2rl.analysis import attempt_training
from agent2rl.analysis.attempts import (
    AgentSourceFile,
    AttemptSpan,
    PrintedText,
    RecordedProcess,
    SavedWeights,
)
from agent2rl.analysis.findings import EvidenceBook, RouteVerdict
from agent2rl.core.grading_records import Lineage, Submission
from agent2rl.core.records import RolloutCounts, Rollouts

HERE = Path(__file__).with_name("scripts")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "routes.md"
PART = re.compile(r"(<!-- measured: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)


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
    known: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return " + ".join(self.routes)

    def span(self, seen: bool = True) -> AttemptSpan:
        commands = self.processes if seen else ()
        files = sources(HERE / self.name)
        return span_of(files, commands, self.submission, rollouts=self.rollouts, lineage=self.lineage)

    def verdict(self, seen: bool = True) -> RouteVerdict:
        """With what was seen from outside, or from the code alone."""
        before = {path: tuple(names) for path, names in self.known.items()}
        known = {path: RouteVerdict(routes=names, confidence=0.9) for path, names in before.items()}
        return attempt_training.attribute_route(self.span(seen), {}, EvidenceBook(), known=known)


@cache
def cases() -> tuple[Case, ...]:
    read = tomllib.loads((HERE / "labels.toml").read_text(encoding="utf-8"))["case"]
    lists = ("routes", "processes")
    return tuple(Case(**{**each, **{name: tuple(each.get(name, ())) for name in lists}}) for each in read)


@cache
def sources(folder: Path) -> tuple[AgentSourceFile, ...]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return tuple(
        AgentSourceFile(1, path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
        for path in files
    )


def span_of(
    given: Sequence[AgentSourceFile],
    commands: Sequence[str] = (),
    submission: str | None = None,
    *,
    rollouts: int = 0,
    lineage: Lineage = "derived",
    same_as: int | None = None,
    weights: Sequence[SavedWeights] = (),
    printed: Sequence[PrintedText] = (),
) -> AttemptSpan:
    """An attempt with this code, in which these commands ran one after the other, ten seconds each."""
    processes = tuple(
        RecordedProcess(100 + number, command, 10.0 * number, 10.0 * number + 9, 8.0, 1 << 30)
        for number, command in enumerate(commands)
    )
    made = None
    if submission is not None:
        made = Submission(id=2, path=submission, accepted_at=0.0, lineage=lineage, same_as=same_as)
    return AttemptSpan(
        number=1,
        began=0.0,
        ended=1000.0,
        submission=made,
        sources=tuple(given),
        changed=tuple(source.path for source in given),
        processes=processes,
        weights=tuple(weights),
        rollouts=Rollouts(claimed=RolloutCounts(episodes=rollouts, steps=5 * rollouts)),
        printed=tuple(printed),
    )


def first_look() -> dict[str, dict[str, str]]:
    """What was said of scripts before the rules were mended after them."""
    return tomllib.loads((HERE / "first_look.toml").read_text(encoding="utf-8"))


def confusion(found: Sequence[tuple[str, str]]) -> str:
    """Labels down, verdicts across, as a table."""
    names = sorted({name for pair in found for name in pair}, key=lambda name: ("+" in name, name))
    counts = Counter(found)
    lines = ["| label \\ verdict | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for label in sorted({label for label, _ in found}, key=lambda name: ("+" in name, name)):
        cells = [str(counts[label, name] or "·") for name in names]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def told(found: Sequence[tuple[str, str]]) -> str:
    """The table, and how many it has right."""
    right = sum(label == verdict for label, verdict in found)
    share = f"{right} of {len(found)} are right ({right / len(found):.0%})."
    return f"{share}\n\n{confusion(found)}\n"


def tables() -> dict[str, str]:
    """The measured parts of the page, by name."""
    label = {case.name: case.label for case in cases()}
    looks = {
        half: [(label[name], said) for name, said in found.items()] for half, found in first_look().items()
    }
    now = [(case.label, case.verdict().name) for case in cases()]
    blind = [(case.label, case.verdict(seen=False).name) for case in cases()]
    halves = Counter(case.half for case in cases())
    decoys = Counter(case.half for case in cases() if case.decoy)
    counts = [f"| {half} | {halves[half]} | {decoys[half]} |\n" for half in halves]
    return {
        "counts": "| set | scripts | decoys among them |\n|---|--:|--:|\n" + "".join(counts),
        "held out": told(looks["held-out"]),
        "fresh": told(looks["fresh"]),
        "now": told(now),
        "blind": told(blind),
    }


def page(text: str) -> str:
    found = tables()
    return PART.sub(lambda part: f"{part[1]}{found[part[2]]}{part[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
