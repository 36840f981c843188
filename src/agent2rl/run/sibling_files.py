"""Find the fingerprints that submissions of a run are compared with: those named, and those in the cache."""

from collections.abc import Iterable
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.fingerprint import SUFFIX, Fingerprint, read_fingerprint

MOST_SIBLINGS = 200
FOLDER = "siblings"


def siblings_folder(cache: Path) -> Path:
    """Return the folder of the cache whose fingerprints are compared in every run."""
    return cache / FOLDER


def load_siblings(named: Iterable[str], cache: Path, base: BaseModel) -> tuple[Fingerprint, ...]:
    """Read all fingerprints of models that can be compared with the base, sorted by name.

    One that was named and cannot be compared is an error. The cache may hold those of other families.
    """
    found: dict[str, Fingerprint] = {}
    for path in map(Path, named):
        sibling = read_fingerprint(path)
        if not _is_comparable(sibling, base):
            raise UserError(
                f"{path} has no matrix in common with the base model: no name with the same shape.",
                "Leave it out. Siblings have the base model's architecture.",
            )
        _add_sibling(found, sibling, path)
    for path in sorted(siblings_folder(cache).glob(f"*{SUFFIX}")):
        sibling = read_fingerprint(path)
        if _is_comparable(sibling, base):
            _add_sibling(found, sibling, path)
    if len(found) > MOST_SIBLINGS:
        raise UserError(
            f"There are {len(found)} fingerprints to compare with; at most {MOST_SIBLINGS} are possible.",
            f"Remove some from {siblings_folder(cache)}.",
        )
    return tuple(found[name] for name in sorted(found))


def _add_sibling(found: dict[str, Fingerprint], sibling: Fingerprint, path: Path) -> None:
    known = found.setdefault(sibling.name, sibling)
    if known.sha256 != sibling.sha256:
        raise UserError(
            f"{path} is another fingerprint with the name {sibling.name!r}.",
            "Remove one, or make it again with another --name.",
        )


def _is_comparable(sibling: Fingerprint, base: BaseModel) -> bool:
    """Return whether it has a matrix of the base model and is not the base model itself."""
    if sibling.header.weights_sha256 == base.weights_sha256:
        return False
    return any(
        name in base.tensors and base.tensors[name].shape == shape for name, shape in sibling.shapes.items()
    )
