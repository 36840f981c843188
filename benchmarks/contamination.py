"""How often the contamination check errs, and how fast it is: the tables of docs/design/contamination.md.

    python -m benchmarks.contamination DATA

DATA holds gsm8k/{train,test}.jsonl and humaneval/HumanEval.jsonl.gz, whose first half stands for a training
set. Every training document (question and answer) is checked against the test set: with nothing discounted,
and with the other half of the training set as what the agent was given. Then copies of test examples are
made worse in several ways, with the whole training set given.
"""

import gzip
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent2rl import registry
from agent2rl.analysis.contamination import (
    RULE,
    ContaminationRule,
    ExamplePart,
    NgramIndex,
    search_chunks,
    split_words,
)

Texts = tuple[str, ...]
NAMES = ("Oren", "Ilse", "Tariq", "Wanda", "Bogdan", "Keiko", "Pilar", "Anselm", "Ngozi", "Ravi")
PLAIN = re.compile(
    "How|What|The|She|They|His|Her|Their|Then|For|Each|Every|When|After|Before|There|And|But|This|That|Since|With"
    "|From|During|All|Not|Are|Does|Find|Calculate|Given|Out|Some|Half|While|Because"
)
"""Words that begin sentences and are no names."""


def data_sets(data: Path) -> Iterator[tuple[str, list[Texts], list[Texts]]]:
    """A name, the training set and the test set; each example is its texts, the question first."""
    rows = [
        [json.loads(line) for line in (data / "gsm8k" / f"{split}.jsonl").read_text().splitlines()]
        for split in ("train", "test")
    ]
    train, test = (texts_of(split, ("question", "answer")) for split in rows)
    yield "gsm8k", train, test
    with gzip.open(data / "humaneval" / "HumanEval.jsonl.gz", "rt") as file:
        programs = [json.loads(line) for line in file]
    texts = texts_of(programs, ("prompt", "canonical_solution", "test"))
    yield "humaneval", texts[:82], texts[82:]
    splits = registry.find_task("gsm8k-mini").load(None)
    train, test = (
        texts_of([vars(example) for example in split], ("prompt", "target"))
        for split in (splits.train, (*splits.feedback, *splits.heldout))
    )
    yield "gsm8k-mini", train, test


def texts_of(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[Texts]:
    return [tuple(row[name] for name in names) for row in rows]


def index(test: Sequence[Texts], given: Sequence[Texts], rule: ContaminationRule) -> NgramIndex:
    sought = [
        ExamplePart("test", str(i), str(k), text) for i, row in enumerate(test) for k, text in enumerate(row)
    ]
    return NgramIndex(sought, [text for row in given for text in row], rule)


def rules() -> Iterator[ContaminationRule]:
    for n in (8, 10, 13):
        for share in (0.2, 0.3, 0.5, 0.7):
            yield replace(RULE, n=n, share=share)


def honest(name: str, train: list[Texts], test: list[Texts]) -> None:
    """Documents that are flagged and should not be, and the test examples that they are taken for."""
    for rule in rules():
        cells = []
        for given, checked in (([], train), (train[::2], train[1::2]), (train[1::2], train[::2])):
            sought = index(test, given, rule)
            matches = [search_chunks(sought, ["\n".join(row)]) for row in checked]
            taken = {match.part.example for found in matches for match in found}
            cells.append(f"{sum(map(bool, matches))} of {len(checked)} ({len(taken)})")
        short = index(test, train, rule).unchecked
        print(
            f"| {name} | {rule.n} | {rule.share:.0%} | {' | '.join(cells)} | {short} of {len(test)} |",
            flush=True,
        )


def renamed(text: str) -> str:
    chosen: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        word = match[0]
        return word if PLAIN.fullmatch(word) else chosen.setdefault(word, NAMES[len(chosen) % len(NAMES)])

    return re.sub(r"\b[A-Z][a-z]{2,}\b", other, text)


def renumbered(text: str) -> str:
    return re.sub(r"\d+", lambda match: str(int(match[0]) + 1 + len(match[0])), text)


def thinned(text: str) -> str:
    dice = random.Random(len(text))
    return " ".join(word for word in text.split(" ") if dice.random() > 0.05)


def scrambled(text: str) -> str:
    """Another case, other punctuation and other white space."""
    return " \n* ".join(word.upper() if n % 2 else word.title() for n, word in enumerate(split_words(text)))


COPIES: dict[str, Callable[[Texts], str]] = {
    "question, verbatim": lambda row: row[0],
    "answer alone, verbatim": lambda row: row[1],
    "question in other text": lambda row: f"{'lorem ipsum dolor ' * 40}{row[0]}{' sit amet' * 40}",
    "question, other case, punctuation and spaces": lambda row: scrambled(row[0]),
    "row of JSON": lambda row: json.dumps({"q": row[0], "a": row[1]}),
    "JSON in JSON": lambda row: json.dumps([json.dumps({"q": row[0]})]),
    "CSV": lambda row: ",".join('"' + text.replace('"', '""') + '"' for text in row),
    "Python string": lambda row: repr(row[0]),
    "question, a word in twenty left out": lambda row: thinned(row[0]),
    "first half of the question": lambda row: " ".join(row[0].split(" ")[: len(row[0].split(" ")) // 2]),
    "question, other names": lambda row: renamed(row[0]),
    "question, other numbers": lambda row: renumbered(row[0]),
    "question, other names and numbers": lambda row: renumbered(renamed(row[0])),
}


def copied(name: str, train: list[Texts], test: list[Texts]) -> None:
    """The share of test examples that are found in a copy."""
    for n in (8, 10, 13):
        sought = [index(test, train, replace(RULE, n=n, share=share)) for share in (0.3, 0.5)]
        for kind, copy in COPIES.items():
            shares = []
            for each in sought:
                hits = sum(
                    any(match.part.example == str(i) for match in search_chunks(each, [copy(row)]))
                    for i, row in enumerate(test)
                )
                shares.append(f"{100 * hits / len(test):.1f}%")
            print(f"| {name} | {n} | {kind} | {' | '.join(shares)} |", flush=True)


def rival(test: list[Texts], chunks: list[str]) -> int:
    """The same n-grams, looked up one by one as tuples of words; no passages, no shares."""
    sought = {
        gram
        for row in test
        for text in row
        for gram in zip(*(split_words(text)[k:] for k in range(RULE.n)), strict=False)
    }
    found = 0
    for chunk in chunks:
        spelled = re.findall(r"[^\W_]+", chunk.lower())
        found += sum(gram in sought for gram in zip(*(spelled[k:] for k in range(RULE.n)), strict=False))
    return found


def speed(data: Path, train: list[Texts], test: list[Texts]) -> None:
    text = (data / "gsm8k" / "train.jsonl").read_text()
    plain = text.encode("ascii", "replace").decode().replace("\\u", " ")
    began = time.process_time()
    sought = index(test, train, RULE)
    print("\nSeconds are of one core's time, so that a busy machine changes little.")
    print(f"index of {len(test)} examples, {len(train)} given: {time.process_time() - began:.1f} s")
    for name, kind in (("as it is, some of it not ASCII", text), ("ASCII", plain)):
        chunks = [kind[at : at + (1 << 20)] for at in range(0, len(kind), 1 << 20)]
        for what, run in (
            ("check", lambda c=chunks: search_chunks(sought, c)),
            ("plain Python", lambda c=chunks: rival(test, c)),
        ):
            best = min(_timed(run) for _ in range(5))
            print(f"{what}, GSM8K's training set, {name}: {len(kind) / best / 1e6:.1f} MB/s")


def _timed(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def main(data: Path) -> None:
    sets = list(data_sets(data))
    print(
        "| training set | n | share | nothing given | odd rows, even given | even rows, odd given "
        "| cannot be told |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for each in sets:
        honest(*each)
    print("\n| test set | n | copy | found at 30% | at 50% |\n|---|--:|---|--:|--:|")
    for each in sets:
        copied(*each)
    speed(data, *sets[0][1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
