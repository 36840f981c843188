"""Paths in an agent's workspace, parts of which may be unknown."""

import posixpath

HOLE = "\0"
"""Placeholder in a text for a part that is not known."""
WORKSPACE = "/workspace"
FOLDERS = ("output", "models", "code", "data")


def normalise_path(path: str) -> str:
    """Return a path relative to the workspace, as far as that is known."""
    path = posixpath.normpath(path.strip().removeprefix("file://") or ".")
    path = path.removeprefix(f"{WORKSPACE}/")
    if path.startswith("/"):
        parts = path.split("/")
        place = next((n for n, part in enumerate(parts) if part in FOLDERS), None)
        path = "/".join(parts[place:]) if place is not None else path
    while path.startswith("../"):
        path = path[3:]
    return path


def path_covers(pattern: str, path: str) -> bool:
    """Whether a path equals a pattern, which may have holes, or is in a folder that equals it."""
    if pattern == HOLE:
        return False
    patterns, parts = pattern.split("/"), path.split("/")
    if len(patterns) > len(parts) or pattern == ".":
        return False
    return all(_part_matches(each, part) for each, part in zip(patterns, parts, strict=False))


def _part_matches(pattern: str, part: str) -> bool:
    if HOLE not in pattern and HOLE not in part:
        return pattern == part
    if HOLE in part:  # both have holes: their known beginnings must agree
        first, second = pattern.partition(HOLE)[0], part.partition(HOLE)[0]
        return first.startswith(second) or second.startswith(first)
    first, *middle, last = pattern.split(HOLE)
    if not (part.startswith(first) and part.endswith(last) and len(part) >= len(first) + len(last)):
        return False
    at = len(first)
    for piece in middle:
        at = part.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
