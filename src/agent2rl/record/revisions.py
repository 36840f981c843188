"""Revisions of the agent's code, as commits of a bare git repository outside the agent's reach.

Contents are deduplicated by git, and `git log` and `git diff` work on the repository. Each commit message
says why the revision was taken. The workspace's own git repositories are never read or run.
"""

import hashlib
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dulwich.diff_tree import tree_changes
from dulwich.objects import Blob, Commit, ObjectID, ShaFile, Tree
from dulwich.refs import Ref
from dulwich.repo import Repo

from agent2rl.core.errors import UserError
from agent2rl.core.records import Record
from agent2rl.record.code_diff import diff_trees, escape_path
from agent2rl.record.git_objects import InvalidObjects, check_repository
from agent2rl.record.workspace_reader import SnapshotFile, WorkspaceReader, make_placeholder

BRANCH = Ref(b"refs/heads/main")
WHO = b"agent2rl <agent2rl@localhost>"
FOLDER = 0o040000
MOST_TEXTS, TEXT_CHARACTERS, MOST_ASKED = 400, 4 << 20, 1000
"""Limits of one revision: texts, their characters, and files examined to find them."""
MOST_HELD = 64 << 20
"""Characters kept in memory for all revisions together."""
MOST_PACKED_BYTES = 128 << 20
MOST_BYTES, MORE_BYTES, SMALL_BYTES = 512 << 20, 128 << 20, 64 << 10
"""Bytes that one run may add, and further bytes for small files. Beyond the first limit, large files are
replaced by their hash. Beyond both, all new content is left out."""
BLOCK_BYTES = 4096
"""Minimum disk space of an object."""
FULL = b"agent2rl: not kept: the record of code is full\n"
LEADING_ELSEWHERE = frozenset({b"", b".", b"..", b".git"})
"""Parts of names that git refuses and its objects may have all the same."""
LINE = re.compile(r"[^\x20-\x7e]")


class Revision(Record):
    number: int
    commit: str
    at: float
    reason: str
    files: int
    changed: int
    """Files added, changed or removed since the previous revision."""


@dataclass(frozen=True)
class NamedRevision:
    """A revision that is named in a run's record."""

    number: int
    commit: str
    named_by: str
    """Such as `ledger record 12`."""


class RevisionRecorder:
    """Takes revisions during a run."""

    def __init__(self, path: Path, reader: WorkspaceReader) -> None:
        self._repo = Repo(str(path)) if path.exists() else Repo.init_bare(str(path), mkdir=True)
        self._reader = reader
        self._lock = threading.Lock()
        revisions = list(list_revisions(path)) if path.exists() else []
        self._number = len(revisions)
        self._last = ObjectID(revisions[-1].commit.encode()) if revisions else None
        self._bytes = sum(each.stat().st_size for each in path.rglob("*"))  # also of earlier sessions

    @property
    def full(self) -> bool:
        """Whether the limits of the run were exceeded."""
        return self._bytes > MOST_BYTES

    def take_revision(self, reason: str) -> Revision:
        """Return the newest revision; a new one is taken if anything changed."""
        with self._lock:
            reading = self._reader.take_snapshot()
            tree = self._write_tree(reading.files)
            if self._last is None or tree != _read_commit(self._repo, self._last).tree:
                note = "" if reading.whole else "\n\nNot whole: there was more than is kept."
                self._add_commit(tree, _sanitize_message(reason) + note)
            assert self._last
            return _describe_revision(self._repo, self._last, self._number)

    def close(self) -> None:
        """Pack the objects into one file, unless they are too large for memory."""
        store = self._repo.object_store
        if sum(path.stat().st_size for path in Path(store.path).glob("??/*")) < MOST_PACKED_BYTES:
            store.pack_loose_objects()
        self._repo.close()

    def _write_tree(self, files: list[SnapshotFile]) -> ObjectID:
        """Write the folders from the deepest up; each object is written once."""
        store = self._repo.object_store
        trees: dict[tuple[bytes, ...], Tree] = {(): Tree()}
        for file in files:
            blob = self._write_blob(file.content)
            for depth in range(len(file.path)):
                trees.setdefault(file.path[:depth], Tree())
            trees[file.path[:-1]].add(file.path[-1], file.mode, blob.id)
        # A folder's id depends on what is in it, so the deepest ones come first.
        for path in sorted(trees, key=len, reverse=True):
            tree = trees[path]
            if tree.id not in store:
                self._bytes += max(BLOCK_BYTES, len(tree.as_raw_string()))
                store.add_object(tree)
            if path:
                trees[path[:-1]].add(path[-1], FOLDER, tree.id)
        return trees[()].id

    def _write_blob(self, content: bytes) -> Blob:
        """Write a blob unless it exists or the limit is reached."""
        store, blob = self._repo.object_store, Blob.from_string(content)
        if blob.id in store:
            return blob
        size = max(BLOCK_BYTES, len(content))
        if self._bytes + size > MOST_BYTES and len(content) > SMALL_BYTES:
            # From here on the record counts as full.
            self._bytes = max(self._bytes, MOST_BYTES + 1)
            return self._write_blob(make_placeholder(content))
        if self._bytes + size > MOST_BYTES + MORE_BYTES and content != FULL:
            return self._write_blob(FULL)
        self._bytes += size
        store.add_object(blob)
        return blob

    def _add_commit(self, tree: ObjectID, message: str) -> None:
        commit = Commit()
        commit.tree = tree
        commit.parents = [self._last] if self._last else []
        commit.author = commit.committer = WHO
        commit.author_time = commit.commit_time = int(time.time())
        commit.author_timezone = commit.commit_timezone = 0
        commit.encoding = b"UTF-8"
        commit.message = message.encode() + b"\n"
        # The object comes first: a branch must not name one that is missing after a crash.
        self._repo.object_store.add_object(commit)
        self._repo.refs[BRANCH] = commit.id
        self._last, self._number = commit.id, self._number + 1


def _open_repository(path: Path) -> Repo:
    """Open a repository that may be somebody else's."""
    try:
        check_repository(path)
    except InvalidObjects as error:
        raise UserError(
            f"The record of code in {path} is not read: {error}.",
            "No harness writes this. `agent2rl verify` checks the rest of the run.",
        ) from error
    return Repo(str(path))


def list_revisions(path: Path) -> list[Revision]:
    """Return all revisions of a run, oldest first."""
    if not path.exists():
        return []
    with _open_repository(path) as repo:
        if BRANCH not in repo.refs:
            return []
        commits = [repo.refs[BRANCH]]
        while parents := _read_commit(repo, commits[-1]).parents:
            commits.append(parents[0])
        return [
            _describe_revision(repo, commit, number)
            for number, commit in enumerate(reversed(commits), start=1)
        ]


def check_revisions(
    path: Path, named: Sequence[NamedRevision], head: str | None = None
) -> Iterator[str | None]:
    """Yield None for each intact revision and a sentence for each fault.

    Every reachable object is read, and its content must hash to its name, because git does not check that
    itself. Each named revision must be in the history at its number. `head` is the last revision, if known.
    """
    if not path.exists():
        if named:
            yield f"{path.name} is missing, but {named[0].named_by} names revision {named[0].number}"
        return
    try:
        with _open_repository(path) as repo:
            yield from _check_repository(path, repo, named, head)
    except Exception as error:  # a damaged repository can raise anything
        yield f"{path.name} cannot be read: {type(error).__name__}: {_sanitize_message(str(error))}"


def _check_repository(
    path: Path, repo: Repo, named: Sequence[NamedRevision], head: str | None
) -> Iterator[str | None]:
    last: ObjectID | None = None
    with suppress(KeyError):
        last = repo.refs[BRANCH]
    if head is not None and (last is None or last.decode() != head):
        place = f"{path.name}/{BRANCH.decode()}"
        yield f"{place} was changed: the ledger says that the last revision is {head}"
        return
    seen: set[bytes] = set()
    history: list[str] = []
    while last is not None:
        fault, commit = _read_checked(repo, last)
        if not isinstance(commit, Commit):
            yield f"{path.name}: {fault or f'the object {last.decode()} is not a commit'}"
            return
        if fault := _check_tree(repo, commit.tree, seen):
            yield f"{path.name}: {fault}"
            return
        yield None
        history.append(last.decode())
        last = commit.parents[0] if commit.parents else None
    history.reverse()
    for one in named:
        there = 0 < one.number <= len(history) and history[one.number - 1] == one.commit
        if not there:
            yield f"{path.name}: revision {one.number} ({one.commit}), which {one.named_by} names, is missing"


def _check_tree(repo: Repo, root: ObjectID, seen: set[bytes]) -> str | None:
    """Return the first fault of a tree and everything below it; objects in `seen` are already checked."""
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        fault, item = _read_checked(repo, name)
        if fault:
            return fault
        seen.add(name)
        if isinstance(item, Tree):
            waiting += [entry.sha for entry in item.iteritems()]
    return None


def _read_checked(repo: Repo, name: ObjectID) -> tuple[str | None, ShaFile | None]:
    """Read an object and check its hash; return the fault or the object."""
    try:
        kind, content = repo.object_store.get_raw(name)
        item = ShaFile.from_raw_string(kind, content)
    except KeyError:
        return f"the object {name.decode()} is missing", None
    except Exception as error:
        return f"the object {name.decode()} cannot be read: {type(error).__name__}", None
    header = b"%s %d\0" % (item.type_name, len(content))
    if hashlib.sha1(header + content, usedforsecurity=False).hexdigest() != name.decode():
        return f"the object {name.decode()} was changed", None
    return None, item


def diff_revisions(path: Path, before: int, after: int) -> str:
    """Return a unified diff between two revisions; 0 is the empty tree."""
    with _open_repository(path) as repo:
        old, new = (_find_tree(repo, path, number) for number in (before, after))
        return "".join(f"{line}\n" for line in diff_trees(repo.object_store, old, new, sys.maxsize))


def read_revision_files(path: Path, number: int) -> Iterator[SnapshotFile]:
    """Yield all files of a revision."""
    with _open_repository(path) as repo:
        tree = _find_tree(repo, path, number)
        for entry in repo.object_store.iter_tree_contents(tree) if tree else ():
            parts = tuple(entry.path.split(b"/"))
            if not LEADING_ELSEWHERE.isdisjoint(parts):
                raise UserError(
                    f"Revision {number} has a file that is named {escape_path(entry.path)!r}.",
                    "No harness writes this, and it could lead out of a folder.",
                )
            yield SnapshotFile(parts, entry.mode, repo[entry.sha].as_raw_string())


class RevisionReader:
    """Reads revisions by commit. Shared content is read once. The limits are those of `MOST_TEXTS`."""

    def __init__(self, path: Path) -> None:
        self._repo = _open_repository(path)
        self._texts: dict[bytes, str | None] = {}
        self._held = 0

    def read_texts(self, commit: str) -> dict[str, str]:
        """Return the first text files of a commit by path, in order."""
        tree = _read_commit(self._repo, ObjectID(commit.encode())).tree
        texts: dict[str, str] = {}
        room, reads = TEXT_CHARACTERS, 0
        for entry in self._repo.object_store.iter_tree_contents(tree):
            if entry.mode & 0o170000 != 0o100000:
                continue
            reads += 1
            text = self._read_text(entry.sha)
            if text and len(text) <= room:
                texts[escape_path(entry.path)] = text
                room -= len(text)
            if len(texts) >= MOST_TEXTS or reads >= MOST_ASKED:
                break
        return texts

    def diff_commits(self, before: str | None, after: str, most: int = sys.maxsize) -> str:
        """Return a unified diff from one commit, or from nothing, to another, cut after `most` characters."""
        old = _read_commit(self._repo, ObjectID(before.encode())).tree if before else None
        new = _read_commit(self._repo, ObjectID(after.encode())).tree
        return "".join(f"{line}\n" for line in diff_trees(self._repo.object_store, old, new, most))

    def close(self) -> None:
        self._repo.close()

    def _read_text(self, name: ObjectID) -> str | None:
        if name not in self._texts:
            content = self._repo[name].as_raw_string()
            is_text = b"\0" not in content[:8192] and len(content) <= TEXT_CHARACTERS
            text = content.decode(errors="replace") if is_text else None
            self._held += len(text or "")
            if self._held > MOST_HELD:
                return text
            self._texts[name] = text
        return self._texts[name]


def _find_tree(repo: Repo, path: Path, number: int) -> ObjectID | None:
    if number == 0:
        return None
    revisions = list_revisions(path)
    if not 0 < number <= len(revisions):
        raise UserError(f"There is no revision {number}. The run has {len(revisions)}.")
    tree: ObjectID = _read_commit(repo, ObjectID(revisions[number - 1].commit.encode())).tree
    return tree


def _read_commit(repo: Repo, name: ObjectID) -> Commit:
    commit = repo[name]
    assert isinstance(commit, Commit)
    return commit


def _describe_revision(repo: Repo, commit: ObjectID, number: int) -> Revision:
    content = _read_commit(repo, commit)
    before = _read_commit(repo, content.parents[0]).tree if content.parents else None
    store = repo.object_store
    return Revision(
        number=number,
        commit=commit.decode(),
        at=float(content.commit_time),
        reason=content.message.decode(errors="replace").partition("\n")[0],
        files=len(list(store.iter_tree_contents(content.tree))),
        changed=len(list(tree_changes(store, before, content.tree))),
    )


def _sanitize_message(text: str) -> str:
    return LINE.sub("?", text)[:200]
