"""Compare a submission with known relatives of the base model, by their fingerprints.

A sibling is another model with the base's architecture: an Instruct version of it, somebody's fine-tune, a
model of another family. Seen from the base, a submission and a sibling are two directions, both taken
orthogonal to the base so that weight decay is none. Training finds a direction of its own. On other data it
is nearly orthogonal to the sibling's; on the sibling's own data it is similar, in some matrices more than in
others. A submission that contains the sibling has its direction (`direction`) or, if it was trained further
or hidden in noise, the same share of it in every matrix (`share`).

Where the lines of a matrix moved, directions say nothing. Then the sorted norms are compared: those of a
rearranged sibling are the sibling's (`norms`). docs/design/lineage.md has the error rates.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import Resemblance, SiblingDistance
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.fingerprint import Fingerprint
from agent2rl.grading.lineage import LineageReport, WeightsOrigin, trace_weights
from agent2rl.grading.lineage_verdict import MAJORITY
from agent2rl.grading.tensor_comparison import Floats
from agent2rl.grading.untrusted_model_files import Tensor, read_tensors
from agent2rl.grading.weight_sketch import (
    ChangeSketch,
    MatrixSketch,
    SortedNorms,
    can_sketch,
    find_input_norm,
    sketch_change,
)

SAME_DIRECTION_COSINE = 0.85
"""A cosine that training from the base does not reach, on the sibling's own data either."""
MIN_MATCHED_SHARE = 0.2
"""Share of the matrices that must reach it; the others may have been replaced or trained since."""
MIN_MATCHED_MATRICES = 2
"""One matrix alone, as in a linear model, may reach the same optimum by any training."""
MAX_EVEN_SPREAD = 0.1
"""Training from the base has a wider interquartile range of the sibling's share over the matrices, relative
to its median."""
MIN_EVEN_COSINE, MIN_EVEN_MATRICES = 0.2, 8
"""Below this median cosine, or with fewer matrices, the share is not known well enough."""
MAX_NORMS_DISTANCE = 0.3
"""Distance of the sorted norms to the sibling's, in units of that between the base's and the sibling's."""
MIN_MOVED_CHANGE = 0.3
"""Length of a change from which on the lines of a matrix may have moved, so that its norms are compared.
Little training changes the norms of two children in much the same way."""
MAX_ROUNDING_CHANGE = 2e-6
"""A shorter change, in units of the base's, is only rounding to the fingerprint's 32 bits."""
MAX_CHANGE = 1e100
"""A longer change, in units of the base's, cannot come from weights: its square may be infinite."""
MOST_WORKERS = 8


@dataclass(frozen=True)
class MatrixDistance:
    """One matrix of a submission against a sibling's. Lengths are in units of the base's."""

    cosine: float | None
    """Of the two changes; None if one of them is nothing."""
    share: float | None
    """How much of the sibling's change is in the submission's."""
    changed: float
    sibling_changed: float
    distance: float
    """Distance of the submission from the sibling."""
    norms: float | None
    """Distance of the sorted norms; None if the sibling's are the base's, or if no line can have moved."""


def trace_origin(
    submission: Path,
    base: BaseModel,
    siblings: Sequence[Fingerprint] = (),
    stop: threading.Event | None = None,
) -> WeightsOrigin:
    """Determine where a submission's weights come from, with siblings in view."""
    origin = trace_weights(submission, base, stop)
    if origin.lineage is None or origin.copied or not siblings:
        return origin
    distances = compare_with_siblings(submission, base, siblings, stop)
    return replace(origin, lineage=judge_by_siblings(origin.lineage, distances))


def compare_with_siblings(
    submission: Path,
    base: BaseModel,
    siblings: Sequence[Fingerprint],
    stop: threading.Event | None = None,
) -> tuple[SiblingDistance, ...]:
    """Return the distances to each sibling, the closest first. The base itself is no sibling."""
    others = [each for each in siblings if each.header.weights_sha256 != base.weights_sha256]
    submitted = read_tensors(submission)
    common = [name for name in base.tensors if _is_comparable(name, submitted, base.tensors, others)]
    stop = stop or threading.Event()

    def sketch(name: str) -> ChangeSketch:
        if stop.is_set():
            raise GradingError("The run was stopped before the weights were compared.")
        wanted = {(each.header.sketch_length, each.dtypes[name]) for each in others if name in each.dtypes}
        norms = (find_input_norm(name, submitted), find_input_norm(name, base.tensors))
        return sketch_change(name, submitted[name], base.tensors[name], wanted, norms)

    with ThreadPoolExecutor(min(MOST_WORKERS, len(os.sched_getaffinity(0))), "siblings") as pool:
        changes = dict(zip(common, pool.map(sketch, common), strict=True))
    distances = [_measure_sibling(each, changes) for each in others]
    return tuple(sorted(distances, key=lambda one: (not one.resemblance, -(one.cosine or 0.0), one.name)))


def judge_by_siblings(lineage: LineageReport, distances: tuple[SiblingDistance, ...]) -> LineageReport:
    """Add the distances to a report, and make its verdict `foreign` if the weights look like a sibling's."""
    report = lineage.model_copy(update={"siblings": distances})
    closest = next((each for each in distances if each.resemblance), None)
    if closest is None:
        return report
    how, statistic, value, threshold = _explain_resemblance(closest)
    return report.model_copy(
        update={
            "verdict": "foreign",
            "reason": f"These weights match {closest.name} ({how}) more closely than training can explain.",
            "statistic": statistic,
            "value": value,
            "threshold": threshold,
        }
    )


def _explain_resemblance(distance: SiblingDistance) -> tuple[str, str, float | None, float]:
    """Return the reason, and the deciding statistic with its value and threshold."""
    if distance.resemblance == "norms":
        share = distance.same_norms or 0.0
        return (
            f"rearranged: {share:.0%} of the matrices have its norms",
            "sibling_norms",
            distance.norms,
            MAX_NORMS_DISTANCE,
        )
    if distance.resemblance == "share":
        how = f"{distance.share or 0.0:.0%} of its change is in every matrix"
        return how, "sibling_spread", distance.spread, MAX_EVEN_SPREAD
    how = f"{distance.matched or 0.0:.0%} of the matrices changed in its direction"
    return how, "sibling_matched", distance.matched, MIN_MATCHED_SHARE


def _is_comparable(
    name: str, submitted: Mapping[str, Tensor], base: Mapping[str, Tensor], siblings: Sequence[Fingerprint]
) -> bool:
    mine, theirs = submitted.get(name), base[name]
    return (
        mine is not None
        and can_sketch(mine)
        and can_sketch(theirs)
        and mine.shape == theirs.shape
        and any(each.shapes.get(name) == theirs.shape for each in siblings)
    )


def _measure_sibling(sibling: Fingerprint, changes: Mapping[str, ChangeSketch]) -> SiblingDistance:
    measured = [
        _measure_matrix(sibling.matrices[name], change, (sibling.header.sketch_length, sibling.dtypes[name]))
        for name, change in changes.items()
        if name in sibling.dtypes and sibling.shapes[name] == change.shape
    ]
    return _sum_up(sibling.name, [one for one in measured if one is not None])


def _measure_matrix(
    sibling: MatrixSketch, change: ChangeSketch, key: tuple[int, str]
) -> MatrixDistance | None:
    """Compare in the sketches. None if the sibling's matrix is the base's, or one holds no finite numbers."""
    base, mine = change.bases[key], change.changes[key[0]]
    theirs = sibling.sketch - base
    length = float(np.linalg.norm(base))
    if not length > 0:
        return None
    with np.errstate(all="ignore"):  # values of 64 bits have squares that are infinite
        changed, sibling_changed = (float(np.linalg.norm(each)) / length for each in (mine, theirs))
    # Written with `not`, so that NaN is sorted out too.
    if not changed < MAX_CHANGE or not MAX_ROUNDING_CHANGE <= sibling_changed < MAX_CHANGE:
        return None
    my_rest, their_rest = (each - (each @ base) / length**2 * base for each in (mine, theirs))
    lengths = float(np.linalg.norm(my_rest)), float(np.linalg.norm(their_rest))
    dot, measurable = float(my_rest @ their_rest), min(lengths) > MAX_ROUNDING_CHANGE * length
    return MatrixDistance(
        cosine=dot / (lengths[0] * lengths[1]) if measurable else None,
        share=dot / lengths[1] ** 2 if measurable else None,
        changed=changed,
        sibling_changed=sibling_changed,
        distance=float(np.linalg.norm(mine - theirs)) / length,
        norms=_compare_norms(change.norms, sibling.norms, change.base_norms[key[1]])
        if changed >= MIN_MOVED_CHANGE
        else None,
    )


def _compare_norms(mine: SortedNorms, sibling: SortedNorms, base: SortedNorms) -> float | None:
    """Compare rows and columns separately: a rotation keeps the norms of one of them."""
    ratios = []
    for name in ("rows", "columns"):
        submitted, other, own = (_scale_to_unit(getattr(each, name)) for each in (mine, sibling, base))
        usual = float(np.linalg.norm(own - other))
        if usual > MAX_ROUNDING_CHANGE:
            ratios.append(float(np.linalg.norm(submitted - other)) / usual)
    return min((each for each in ratios if np.isfinite(each)), default=None)


def _scale_to_unit(norms: Floats) -> Floats:
    """A matrix that was scaled as a whole has the same norms."""
    with np.errstate(all="ignore"):
        length = float(np.linalg.norm(norms))
        scaled: Floats = norms / length if length > 0 else norms
    return scaled


def _sum_up(name: str, matrices: Sequence[MatrixDistance]) -> SiblingDistance:
    cosines = [one.cosine for one in matrices if one.cosine is not None]
    shares = [one.share for one in matrices if one.share is not None]
    norms = [one.norms for one in matrices if one.norms is not None]
    distance = SiblingDistance(
        name=name,
        matrices=len(matrices),
        matched=_share_of(matrices, sum(cosine >= SAME_DIRECTION_COSINE for cosine in cosines)),
        cosine=median(cosines) if cosines else None,
        share=median(shares) if shares else None,
        spread=_compute_spread(shares),
        changed=_root_mean_square([one.changed for one in matrices]),
        sibling_changed=_root_mean_square([one.sibling_changed for one in matrices]),
        distance=_root_mean_square([one.distance for one in matrices]),
        norms=median(norms) if norms else None,
        same_norms=_share_of(norms, sum(ratio <= MAX_NORMS_DISTANCE for ratio in norms)),
    )
    return distance.model_copy(update={"resemblance": _decide_resemblance(distance, len(shares), len(norms))})


def _decide_resemblance(distance: SiblingDistance, shares: int, moved: int) -> Resemblance | None:
    matched, cosine, spread = distance.matched or 0.0, distance.cosine or 0.0, distance.spread
    if matched > MIN_MATCHED_SHARE and matched * distance.matrices >= MIN_MATCHED_MATRICES:
        return "direction"
    if (
        spread is not None
        and spread <= MAX_EVEN_SPREAD
        and cosine >= MIN_EVEN_COSINE
        and shares >= MIN_EVEN_MATRICES
    ):
        return "share"
    if (distance.same_norms or 0.0) > MAJORITY and moved >= MIN_MATCHED_MATRICES:
        return "norms"
    return None


def _share_of(values: Sequence[object], count: int) -> float | None:
    return count / len(values) if values else None


def _compute_spread(shares: Sequence[float]) -> float | None:
    """Return the interquartile range relative to the median; None for fewer than four values."""
    if len(shares) < 4 or not (middle := abs(median(shares))) > 0:
        return None
    low, _, high = quantiles(shares, n=4, method="inclusive")
    return (high - low) / middle


def _root_mean_square(values: Sequence[float]) -> float | None:
    return sqrt(sum(value**2 for value in values) / len(values)) if values else None
