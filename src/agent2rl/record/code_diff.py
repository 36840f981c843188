"""Make a unified diff of two trees of untrusted code.

Long files that differ much are not compared line by line, which can take hours: everything between their
common beginning and end is shown as replaced. Names are escaped, so that none looks like a line of a diff.
"""

import difflib
from collections.abc import Iterator, Sequence

from dulwich.diff_tree import tree_changes
from dulwich.object_store import BaseObjectStore
from dulwich.objects import Blob, ObjectID, TreeEntry

MOST_COMPARED = 4000
"""Lines of both sides together, without their common beginning and end."""
CONTEXT = 3


def escape_path(path: bytes) -> str:
    """Escape a path to printable text; different paths stay different."""
    text = path.decode(errors="backslashreplace") if b"\\" not in path else _double_backslashes(path)
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else _escape_character(each) for each in text)
    )


def diff_trees(
    store: BaseObjectStore, old: ObjectID | None, new: ObjectID | None, most: int
) -> Iterator[str]:
    """Yield the lines of the diff without line ends, up to a number of characters."""
    characters = 0
    for change in tree_changes(store, old, new):
        for line in _diff_file(store, change.old, change.new):
            if characters > most:
                yield "[… the rest is left out …]"
                return
            characters += len(line) + 1
            yield line


def _diff_file(store: BaseObjectStore, old: TreeEntry | None, new: TreeEntry | None) -> Iterator[str]:
    before, after = (
        f"{side}/{_escape_entry_path(each or other)}"
        for side, each, other in (("a", old, new), ("b", new, old))
    )
    yield f"diff --git {before} {after}"
    if old is None or new is None:
        one = new or old
        assert one
        yield f"{'new' if old is None else 'deleted'} file mode {one.mode or 0:o}"
    elif old.mode != new.mode:
        yield from (f"old mode {old.mode or 0:o}", f"new mode {new.mode or 0:o}")
    was, now = _read_blob(store, old), _read_blob(store, new)
    if was == now:
        return
    # As in git, a zero byte near the beginning makes a file binary.
    if b"\0" in was[:8192] or b"\0" in now[:8192]:
        yield f"Binary files {before} and {after} differ"
        return
    yield f"--- {before if old else '/dev/null'}"
    yield f"+++ {after if new else '/dev/null'}"
    yield from _diff_hunks(_split_lines(was), _split_lines(now))


def _diff_hunks(was: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    head, tail = _count_shared_lines(was, now)
    if len(was) + len(now) - 2 * (head + tail) <= MOST_COMPARED:
        begin = max(0, head - CONTEXT)
        end = max(0, tail - CONTEXT)
        yield from _compare_lines(was[begin : len(was) - end], now[begin : len(now) - end], begin)
        return
    old, new = was[head : len(was) - tail], now[head : len(now) - tail]
    yield f"@@ -{head + 1},{len(old)} +{head + 1},{len(new)} @@ too much to be compared line by line"
    yield from (f"-{line}" for line in old)
    yield from (f"+{line}" for line in new)


def _compare_lines(was: Sequence[str], now: Sequence[str], offset: int) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, was, now)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, low, _, left, _), (_, _, high, _, right) = group[0], group[-1]
        before, after = (low + offset, high + offset), (left + offset, right + offset)
        yield f"@@ -{_format_range(*before)} +{_format_range(*after)} @@"
        for what, low, high, left, right in group:
            if what == "equal":
                yield from (f" {line}" for line in was[low:high])
                continue
            yield from (f"-{line}" for line in was[low:high])
            yield from (f"+{line}" for line in now[left:right])


def _count_shared_lines(was: Sequence[str], now: Sequence[str]) -> tuple[int, int]:
    """Count the common lines at the beginning and at the end."""
    least = min(len(was), len(now))
    head = next((at for at in range(least) if was[at] != now[at]), least)
    rest = least - head
    tail = next((at for at in range(rest) if was[-1 - at] != now[-1 - at]), rest)
    return head, tail


def _format_range(low: int, high: int) -> str:
    """Format a range for the head of a hunk."""
    length = high - low
    first = low + 1 if length else low
    return str(first) if length == 1 else f"{first},{length}"


def _read_blob(store: BaseObjectStore, entry: TreeEntry | None) -> bytes:
    if entry is None or entry.sha is None:
        return b""
    blob = store[entry.sha]
    return bytes(blob.data) if isinstance(blob, Blob) else b""


def _split_lines(content: bytes) -> list[str]:
    """Split into lines; mark a last line without a line end."""
    # Not splitlines, which also splits at characters that end no line of a diff.
    lines = content.decode(errors="replace").split("\n")
    last = lines.pop()
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


def _escape_entry_path(entry: TreeEntry | None) -> str:
    return escape_path(entry.path) if entry and entry.path else ""


def _double_backslashes(path: bytes) -> str:
    return path.replace(b"\\", b"\\\\").decode(errors="backslashreplace")


def _escape_character(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
