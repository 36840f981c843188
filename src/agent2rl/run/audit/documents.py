"""The documents of a run that a judge reads: the record, commands, requests, code, transcript, log.

All text is untrusted. It is shown line by line, and each line begins with a number that the harness writes,
so that no text can pass for anything else. Control characters, invisible ones and the beginnings of special
tokens are spelt out.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from agent2rl.core.audit_records import AuditQuote
from agent2rl.core.events import TimelineEvent
from agent2rl.core.self_reports import Transcript
from agent2rl.evaluators.judge import TURNS
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import (
    RunView,
    read_claims,
    read_events,
    read_network_record,
    read_run,
    read_transcript,
)
from agent2rl.record.revisions import MOST_ASKED, MOST_TEXTS, RevisionReader, list_revisions
from agent2rl.record.untrusted_files import open_plain_file, sanitize_line

LINE_CHARACTERS = 1000
"""A longer line is shown as several."""
NAME_CHARACTERS = 200
LOG_BYTES = 8 << 20
"""Of the log, half from its beginning and half from its end."""
MOST_REVISIONS = 200
MOST_CODE_CHARACTERS = 2_000_000
MOST_LISTED = 200
"""Names of files that are not shown."""
LEAST_QUOTE = 15
"""Characters of a quote, without spaces: a shorter one may be anywhere."""
QUOTE_CHARACTERS = 300
LINE_NUMBER = re.compile(r"^\s*\d+\| ", re.MULTILINE)
"""As the harness writes it before each line."""


@dataclass(frozen=True)
class AuditDocument:
    """One text of the record, as lines that a judge is shown."""

    name: str
    lines: tuple[str, ...]
    left_out: int = 0
    """Characters that were too many to keep, so that nobody can be shown them."""

    @classmethod
    def from_text(cls, name: str, text: str) -> "AuditDocument":
        return cls(sanitize_line(name, NAME_CHARACTERS), tuple(_split_lines(text)))

    @property
    def characters(self) -> int:
        return sum(map(len, self.lines)) + self.left_out

    def find_quote(self, quote: str) -> AuditQuote | None:
        """Find a quote, whatever its spaces and line breaks; None if it is not there or too short."""
        plain = LINE_NUMBER.sub("", quote)
        for text in dict.fromkeys((normalize_spaces(plain), normalize_spaces(_show_lines(plain)))):
            place = self._joined.find(text) if len(text.replace(" ", "")) >= LEAST_QUOTE else -1
            if place >= 0:
                line = bisect_right(self._starts, place)
                return AuditQuote(document=self.name, line=line, text=text[:QUOTE_CHARACTERS])
        return None

    @cached_property
    def _normal_lines(self) -> list[str]:
        return [normalize_spaces(line) for line in self.lines]

    @cached_property
    def _joined(self) -> str:
        return " ".join(self._normal_lines)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each line begins in the joined text."""
        return [0, *accumulate(len(line) + 1 for line in self._normal_lines)][:-1]


def normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def show_text(text: str) -> str:
    """Return a line of untrusted text without control characters, invisible characters and special tokens."""
    spelt = TURNS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return "".join(sign if sign.isprintable() or sign == "\t" else json.dumps(sign)[1:-1] for sign in spelt)


def _show_lines(text: str) -> str:
    return "\n".join(map(show_text, text.splitlines()))


def read_documents(paths: RunPaths) -> list[AuditDocument]:
    """Read everything that a judge is to see, the most telling first."""
    view, notes = read_run(paths), list[str]()
    documents = [AuditDocument.from_text("record", _describe_record(view))]
    events = read_events(paths, notes)
    documents.append(AuditDocument.from_text("commands", "\n".join(_list_commands(events))))
    requests = "\n".join(
        each.model_dump_json(exclude_none=True, exclude={"id"})
        for each in read_network_record(paths, notes).requests
    )
    documents.append(AuditDocument.from_text("network requests", requests))
    claims = read_claims(paths, notes)
    documents.append(
        AuditDocument.from_text("claims of the agent", claims.model_dump_json(indent=1) if claims else "")
    )
    documents += _read_code(paths)
    if transcript := read_transcript(paths):
        documents.append(AuditDocument.from_text("transcript", "\n".join(_list_said(transcript))))
    documents.append(AuditDocument.from_text("agent.log", _read_log(paths)))
    return [document for document in documents if any(line.strip() for line in document.lines)]


def _split_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        shown = show_text(line)
        yield from (shown[at : at + LINE_CHARACTERS] for at in range(0, max(1, len(shown)), LINE_CHARACTERS))


def _describe_record(view: RunView) -> str:
    """Return what the harness itself recorded: what was asked for, every verdict, and every check."""
    spec = view.spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    facts: dict[str, object] = {"specification": spec, "state": view.state}
    if view.baseline:
        facts["score of the untouched model"] = view.baseline.value
    for each in view.submissions:
        fields = {"path", "verdict", "lineage", "improvement", "same_as", "left_out", "message"}
        answer = each.model_dump(mode="json", include=fields, exclude_none=True)
        facts[f"submission {each.id}"] = {**answer, "score": each.score.value if each.score else None}
    for number, distance in view.sibling_distances:
        facts[f"submission {number} and {distance.name}"] = distance.model_dump(
            mode="json", exclude_none=True
        )
    if view.result:
        fields = {"ending", "reason", "score", "improvement", "optimism_gap", "clock", "rollouts", "rounds"}
        facts["result"] = view.result.model_dump(mode="json", include=fields, exclude_none=True)
    if view.contamination_summary:
        facts["search for evaluation data"] = view.contamination_summary.model_dump(mode="json")
    return json.dumps(facts, indent=1, ensure_ascii=False)


def _list_commands(events: Iterable[TimelineEvent]) -> Iterator[str]:
    """Yield what the harness saw of the agent: processes, files that appeared, refusals."""
    for event in events:
        match event.kind:
            case "began":
                yield f"process: {event.data.get('command')}"
            case "file":
                what, size = event.data.get("what"), event.data.get("bytes")
                yield f"file: {event.data.get('path')} ({what}, {size} bytes)"
            case "refused" | "warning":
                yield f"{event.kind}: {event.data.get('why') or event.data.get('text')}"


def _list_said(transcript: Transcript) -> Iterator[str]:
    for number, step in enumerate(transcript.steps, start=1):
        for kind, text in (("thinks", step.reasoning), ("says", step.text)):
            if text:
                yield f"[step {number}] {step.source} {kind}: {text}"
        yield from (f"[step {number}] calls {call.name}: {call.shown}" for call in step.calls)
        yield from (f"[step {number}] gets back: {result.text}" for result in step.observations)


def _read_code(paths: RunPaths) -> Iterator[AuditDocument]:
    """Yield every text file of every code revision once per content, the last revision first.

    A script that was deleted or rewritten before the end is still in an earlier revision.
    """
    unread: dict[str, int] = {}
    if paths.revisions.exists():
        try:
            yield from _read_revisions(paths.revisions, unread)
        except Exception as error:  # a damaged repository can raise anything
            unread[f"the rest cannot be read ({type(error).__name__})"] = 1
    if unread:
        document = AuditDocument.from_text("code that is not shown", "\n".join([*unread][:MOST_LISTED]))
        yield replace(document, left_out=sum(unread.values()))


def _read_revisions(path: Path, unread: dict[str, int]) -> Iterator[AuditDocument]:
    """Yield the texts; add to `unread` what is not among them, with its characters, or 1 if unknown."""
    revisions = list_revisions(path)[::-1]
    reader = RevisionReader(path)
    seen, room = set[tuple[str, int]](), MOST_CODE_CHARACTERS
    try:
        for revision in revisions[:MOST_REVISIONS]:
            texts = reader.read_texts(revision.commit)
            if len(texts) >= MOST_TEXTS or revision.files > MOST_ASKED:
                unread[f"revision {revision.number} has {revision.files} files, and not all were read"] = 1
            for name, text in texts.items():
                title, content_key = f"{name} at revision {revision.number}", (name, hash(text))
                if content_key not in seen and len(text) <= room:
                    room -= len(text)
                    yield AuditDocument.from_text(title, text)
                elif content_key not in seen:
                    unread[title] = len(text)
                seen.add(content_key)
    finally:
        reader.close()
    if len(revisions) > MOST_REVISIONS:
        unread[f"the first {len(revisions) - MOST_REVISIONS} revisions"] = 1


def _read_log(paths: RunPaths) -> str:
    try:
        with open_plain_file(paths.root, paths.agent_log.name) as file:  # a link may lead to anything
            size = file.seek(0, 2)
            file.seek(0)
            if size <= LOG_BYTES:
                return file.read().decode(errors="replace")
            begin = file.read(LOG_BYTES // 2)
            file.seek(size - LOG_BYTES // 2)
            return (begin + b"\n[cut]\n" + file.read()).decode(errors="replace")
    except OSError:
        return ""
