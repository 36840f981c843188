"""An agent's code at any point of its run, and what changed between any two."""

from dataclasses import dataclass

from agent2rl.core.errors import UserError
from agent2rl.report import code_diffs
from agent2rl.store import ledger
from agent2rl.store.paths import RunPaths
from agent2rl.store.revisions import Revision, RevisionReader, list_revisions

LONGEST_CODE = 1 << 18


@dataclass(frozen=True)
class CodeView:
    revisions: tuple[Revision, ...]
    submissions: dict[int, list[int]]
    """Revision → the submissions that were made from it."""
    at: Revision | None
    since: Revision | None
    """None: the one before; of the first, nothing."""
    changes: code_diffs.CodeDiff | None
    files: tuple[str, ...]
    file: str
    text: str
    cut: int
    """Characters of the text that are left out."""


def read_code_view(paths: RunPaths, at: int | None, since: int | None, file: str) -> CodeView:
    try:
        revisions = list_revisions(paths.revisions)
    except Exception as error:  # whatever dulwich makes of a damaged repository
        raise UserError("The record of this run's code is damaged.") from error
    by_number = {each.number: each for each in revisions}
    made_from = _map_submissions(ledger.read_ledger(paths.ledger, paths.ledger_head))
    if not revisions:
        return CodeView((), {}, None, None, None, (), "", "", 0)
    number = at if at is not None else max((*made_from, 0)) or revisions[-1].number
    before = since if since is not None else number - 1
    for wanted in (number, before):
        if wanted and wanted not in by_number:
            raise UserError(f"There is no revision {wanted}: the run has {len(revisions)}.")
    now, then = by_number.get(number), by_number.get(before)
    return _read_revision(paths, tuple(revisions), made_from, now, then, file)


def _read_revision(
    paths: RunPaths,
    revisions: tuple[Revision, ...],
    made_from: dict[int, list[int]],
    now: Revision | None,
    then: Revision | None,
    file: str,
) -> CodeView:
    if now is None:
        return CodeView(revisions, made_from, None, None, None, (), "", "", 0)
    code = RevisionReader(paths.revisions)
    try:
        texts = code.read_texts(now.commit)
        changed = code.diff_commits(then.commit if then else None, now.commit, LONGEST_CODE)
    except Exception as error:
        raise UserError("The record of this run's code is damaged.") from error
    finally:
        code.close()
    if file and file not in texts:
        raise UserError(f"Revision {now.number} has no text {file!r}.")
    name = file or next((each for each in texts if each.endswith(".py")), next(iter(texts), ""))
    text = texts.get(name, "")
    found = code_diffs.parse_diffs({0: changed[:LONGEST_CODE]}).get(0)
    return CodeView(
        revisions,
        made_from,
        now,
        then,
        found,
        tuple(texts),
        name,
        text[:LONGEST_CODE],
        max(0, len(text) - LONGEST_CODE),
    )


def _map_submissions(chain: ledger.LedgerReading) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in chain.entries:
        revision, submission = entry.data.get("number"), entry.data.get("submission")
        if entry.kind == "revision_of" and isinstance(revision, int) and isinstance(submission, int):
            found.setdefault(revision, []).append(submission)
    return found
