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

SCRIPTS = Path(__file__).with_name("scripts")
ROUTES_PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "routes.md"
MEASURED_SECTION = re.compile(r"(<!-- measured: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)


@dataclass(frozen=True)
class ScriptCase:
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
        files = read_sources(SCRIPTS / self.name)
        return make_span(files, commands, self.submission, rollouts=self.rollouts, lineage=self.lineage)

    def verdict(self, seen: bool = True) -> RouteVerdict:
        """With what was seen from outside, or from the code alone."""
        before = {path: tuple(names) for path, names in self.known.items()}
        known = {path: RouteVerdict(routes=names, confidence=0.9) for path, names in before.items()}
        return attempt_training.attribute_route(self.span(seen), {}, EvidenceBook(), known=known)


@cache
def load_cases() -> tuple[ScriptCase, ...]:
    read = tomllib.loads((SCRIPTS / "labels.toml").read_text(encoding="utf-8"))["case"]
    lists = ("routes", "processes")
    return tuple(
        ScriptCase(**{**each, **{name: tuple(each.get(name, ())) for name in lists}}) for each in read
    )


@cache
def read_sources(folder: Path) -> tuple[AgentSourceFile, ...]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return tuple(
        AgentSourceFile(1, path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
        for path in files
    )


def make_span(
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


def read_verdicts_before_tuning() -> dict[str, dict[str, str]]:
    """What was said of scripts before the rules were mended after them."""
    return tomllib.loads((SCRIPTS / "verdicts_before_tuning.toml").read_text(encoding="utf-8"))


def format_confusion_table(found: Sequence[tuple[str, str]]) -> str:
    """Labels down, verdicts across, as a table."""
    names = sorted({name for pair in found for name in pair}, key=lambda name: ("+" in name, name))
    counts = Counter(found)
    lines = ["| label \\ verdict | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for label in sorted({label for label, _ in found}, key=lambda name: ("+" in name, name)):
        cells = [str(counts[label, name] or "·") for name in names]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_accuracy(found: Sequence[tuple[str, str]]) -> str:
    """The table, and how many it has right."""
    right = sum(label == verdict for label, verdict in found)
    share = f"{right} of {len(found)} are right ({right / len(found):.0%})."
    return f"{share}\n\n{format_confusion_table(found)}\n"


def build_tables() -> dict[str, str]:
    """The measured parts of the page, by name."""
    label = {case.name: case.label for case in load_cases()}
    looks = {
        half: [(label[name], said) for name, said in found.items()]
        for half, found in read_verdicts_before_tuning().items()
    }
    now = [(case.label, case.verdict().name) for case in load_cases()]
    blind = [(case.label, case.verdict(seen=False).name) for case in load_cases()]
    halves = Counter(case.half for case in load_cases())
    decoys = Counter(case.half for case in load_cases() if case.decoy)
    counts = [f"| {half} | {halves[half]} | {decoys[half]} |\n" for half in halves]
    return {
        "counts": "| set | scripts | decoys among them |\n|---|--:|--:|\n" + "".join(counts),
        "held out": format_accuracy(looks["held-out"]),
        "fresh": format_accuracy(looks["fresh"]),
        "now": format_accuracy(now),
        "blind": format_accuracy(blind),
    }


def update_page(text: str) -> str:
    found = build_tables()
    return MEASURED_SECTION.sub(lambda part: f"{part[1]}{found[part[2]]}{part[3]}", text)


if __name__ == "__main__":
    ROUTES_PAGE.write_text(update_page(ROUTES_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
