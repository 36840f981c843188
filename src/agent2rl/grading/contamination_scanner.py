"""The scanning child: search an agent's workspace for evaluation examples.

It starts in its own sandbox, in a directory with `job.json` and a file of examples for each split. The
workspace is read-only, at the path in the job. It writes `result.json`. Its log may quote examples; the agent
has ended by then and sees neither.
"""

import sys
import traceback
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from agent2rl.analysis.contamination import (
    ExamplePart,
    NgramIndex,
    PassageMatch,
    overlap_chunks,
    search_chunks,
    split_example,
)
from agent2rl.core.grading_records import Contamination, ContaminationFinding, SkippedFiles, Split
from agent2rl.core.records import Record
from agent2rl.grading.worker import JOB, RESULT, ExampleRow
from agent2rl.grading.workspace_documents import ReadBounds, WorkspaceDocuments
from agent2rl.record.files import write_record

DATA = "data"
"""The folder of the workspace with training data, which was read-only for the agent."""
MOST_FINDINGS = 100
TEXT_CHARACTERS = 300
PATH_CHARACTERS = 1000


class ScanJob(Record):
    """The workspace to search, and the texts to ignore."""

    workspace: str
    splits: tuple[Split, ...]
    given: tuple[str, ...]
    """Texts that the harness gave to the agent."""
    seconds: float


class ScanOutcome(Record):
    found: Contamination | None = None
    error: str = ""


class FindingTally:
    """Counts all findings and keeps the strongest."""

    def __init__(self) -> None:
        self.found = 0
        self.files = 0
        self.examples: dict[Split, set[str]] = {"feedback": set(), "heldout": set()}
        self._findings: list[ContaminationFinding] = []

    def add_matches(self, file: str, matches: list[PassageMatch]) -> None:
        """Add the matches of one file, best first; an example counts once, by its best part."""
        best: dict[tuple[str, str], PassageMatch] = {}
        for match in matches:
            best.setdefault((match.part.split, match.part.example), match)
        self.files += bool(best)
        self.found += len(best)
        for match in best.values():
            finding = _make_finding(file, match)
            self.examples[finding.split].add(finding.example)
            self._findings.append(finding)
        # An agent may have left millions of matches: keep the memory bounded, and sort seldom.
        if len(self._findings) > 10 * MOST_FINDINGS:
            self._findings = list(self.findings)

    @property
    def findings(self) -> tuple[ContaminationFinding, ...]:
        # The ranking comes from the held-out split, so its matches are the last to be cut off.
        order = sorted(self._findings, key=lambda each: (each.split != "heldout", -each.words))
        return tuple(order[:MOST_FINDINGS])


def scan_workspace(here: Path) -> Contamination:
    job = ScanJob.model_validate_json((here / JOB).read_bytes())
    sought = [part for split in job.splits for part in _read_parts(here, split)]
    index = NgramIndex(sought, chain(job.given, _read_training_data(job)))
    leftovers = WorkspaceDocuments(
        Path(job.workspace), ReadBounds(seconds=job.seconds), skipped=frozenset({DATA})
    )
    tally = FindingTally()
    for document in leftovers.read_documents():
        if matches := search_chunks(index, document.chunks):
            tally.add_matches(document.path, matches)
    left_out = [
        SkippedFiles(reason=reason, files=unread.files, bytes=unread.bytes)
        for reason, unread in sorted(leftovers.left_out.items())
    ]
    return Contamination(
        done=True,
        files=leftovers.read_files,
        bytes=leftovers.read_bytes,
        left_out_files=sum(unread.files for unread in left_out),
        left_out_bytes=sum(unread.bytes for unread in left_out),
        flagged={split: len(tally.examples[split]) for split in job.splits},
        flagged_files=tally.files,
        ngram_words=index.rule.n,
        share=index.rule.share,
        run_words=index.rule.run_words,
        examples=index.examples,
        unchecked=index.unchecked,
        tensor_bytes=leftovers.texts.tensor_bytes,
        left_out=tuple(left_out),
        found=tally.found,
        findings=tally.findings,
    )


def _read_training_data(job: ScanJob) -> Iterator[str]:
    """Yield the training data. The agent could not write there, so its text does not count as a match."""
    folder = Path(job.workspace) / DATA
    if folder.is_dir():
        for document in WorkspaceDocuments(folder, ReadBounds(seconds=job.seconds)).read_documents():
            yield from overlap_chunks(document.chunks)


def examples_file(split: Split) -> str:
    return f"{split}.jsonl"


def _read_parts(here: Path, split: Split) -> list[ExamplePart]:
    lines = (here / examples_file(split)).read_bytes().splitlines()
    rows = [ExampleRow.model_validate_json(line) for line in lines]
    return [part for row in rows for part in split_example(split, row.id, row.prompt, row.target, row.meta)]


def _make_finding(file: str, match: PassageMatch) -> ContaminationFinding:
    return ContaminationFinding(
        file=file[:PATH_CHARACTERS],
        split="heldout" if match.part.split == "heldout" else "feedback",
        example=match.part.example,
        part=match.part.name,
        words=match.words,
        share=match.share,
        text=match.text[:TEXT_CHARACTERS],
    )


def main() -> int:
    here = Path.cwd()
    try:
        outcome = ScanOutcome(found=scan_workspace(here))
    except Exception as error:
        traceback.print_exc()
        outcome = ScanOutcome(error=f"The check crashed ({type(error).__name__}).")
    write_record(here / RESULT, outcome)
    return 1 if outcome.error else 0


if __name__ == "__main__":
    sys.exit(main())
