"""Determine the origin of a submission's weights by comparing each tensor with the base
(`tensor_comparison`).

    copied    every tensor has the base's values; there may be rows for added tokens
    derived   the base is in every matrix, nearly whole, and less was added than there was
    foreign   most matrices hold nothing of the base, little of it is left anywhere, or a longer, unrelated
              model was added to it
    unknown   all else: a mixture, a part replaced, another model added, much noise, the base rearranged

Only matrices decide, because norms and biases of unrelated models also agree. Limitation: weights only show
their ancestors, so somebody else's fine-tune of the same base also counts as derived.
docs/design/lineage.md has the method, and how often it errs.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import Lineage, SiblingDistance
from agent2rl.core.records import Record
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.tensor_comparison import (
    READABLE,
    AddedRows,
    NotFinite,
    RestGeometry,
    TensorFit,
    differs_in_sample,
    is_rearranged,
    matrix_shape,
    measure_added_rows,
    measure_rest,
    measure_tensor,
)
from agent2rl.grading.untrusted_model_files import (
    DTYPE_BYTES,
    Tensor,
    format_values,
    read_tensors,
    tensor_sha256,
    weights_sha256,
)

SIDE, VALUES = 8, 1024
"""Minimum size of a matrix that decides; smaller ones agree by chance."""
CHANCE, DEVIATIONS = 0.05, 4
"""A cosine that unrelated matrices do not reach; for small ones, a number of standard deviations."""
REMOVED, SHRINKING = -0.35, -0.9
"""Pull between which the base was replaced by something else. Training is near 0, a mixture with a model of
equal length at -0.71 whatever its share; weight decay alone is at -1."""
LEFT, WHOLE = 0.25, 0.99
"""A mixture that retains less of the base is the other model; one that retains more is rounding."""
ADDED = 1.0
"""Above this length (in units of the base) the added part hides the base."""
REST_ADDED = 0.25
"""Above this length, check whether the added part is related to the base."""
ALIGNED, ALIGNED_CHANCES = 0.05, 1.5
"""What training adds is aligned with the base by at least so much, and by so many times what chance gives."""
STRUCTURED, FULL_RANK = 2.0, 0.02
"""Standard deviations from which on what was added is not white noise, and the share of it in the weaker half
of its directions from which on it is not of low rank."""
RESCALED, LINED = 0.7, 0.9
"""Of a rescaled matrix, scaled lines explain such a share of the difference and reach such a cosine."""
GROWN, SHRUNK = 0.02, 0.25
"""Distances from which on a rescaled matrix is told: weight decay shrinks, and no training only grows."""
MOSTLY = 0.5
EDITED = 1e-5
"""Training changes a larger share of all values; an edit by hand need not."""

MOST_WORKERS = 16
"""Tensors that are compared at once, if there are so many cores."""

T = TypeVar("T")
State = Literal["unchanged", "kept", "lost", "rescaled", "rearranged", "unmeasured", "small"]


class TensorLineage(Record):
    """One tensor against the base's. Lengths are in units of the base tensor's; None where it has none."""

    name: str
    state: State
    """What became of the base's matrix; norms, biases and the like are `small` and decide nothing."""
    unchanged: float | None = None
    """Share of values that are the base's, exactly."""
    distance: float | None = None
    """Length of the difference."""
    cosine: float | None = None
    retained: float | None = None
    """How much of the base is in it."""
    added: float | None = None
    """Length of what is orthogonal to the base."""
    pull: float | None = None
    """Cosine of the difference with the base."""
    alignment: float | None = None
    """Cosine of the angles between the columns of what was added with those of the base. Measured where much
    was added, like the next."""
    structure: float | None = None
    """Standard deviations by which what was added differs from white noise."""
    added_rows: int = 0
    """Rows beyond the base's, one per added token."""
    added_row_length: float | None = None
    """Their median length, in units of the base rows' median length."""


class LineageReport(Record):
    verdict: Lineage
    reason: str
    """The reason in one sentence."""
    statistic: str
    """The deciding statistic, with its value and threshold."""
    value: float | None
    threshold: float | None
    unchanged_tensors: float
    """Share of tensors whose values are all the base's."""
    changed_values: float | None = None
    """Share of all values that differ from the base's."""
    retained: float | None
    """Median over the matrices that changed, like those below."""
    added: float | None
    pull: float | None
    alignment: float | None = None
    """Root mean square over the same matrices, like the next; None where little was added."""
    structure: float | None = None
    added_rows: int = 0
    """Added tokens: the most rows that were added to a tensor."""
    added_row_length: float | None = None
    """Of the tensor whose added rows are the longest, relative to the base's."""
    tensors: tuple[TensorLineage, ...]
    siblings: tuple[SiblingDistance, ...] = ()
    """Distances to known siblings of the base model (`grading/siblings.py`), the closest first."""

    @property
    def message(self) -> str:
        """The message for the agent; empty if there is no problem."""
        if self.verdict == "foreign":
            return (
                f"These weights do not come from the base model. {self.reason} They are scored, "
                "but cannot be the best. Load the model in $MODEL_PATH, train that, and submit it."
            )
        return f"Lineage unknown: {self.reason}" if self.verdict == "unknown" else ""


@dataclass(frozen=True)
class WeightsOrigin:
    """What a full pass over a submission's weights finds out."""

    sha256: str
    lineage: LineageReport | None
    """None if they are the base's weights, byte by byte."""

    @property
    def copied(self) -> bool:
        return self.lineage is None or self.lineage.verdict == "copied"


def trace_weights(submission: Path, base: BaseModel, stop: threading.Event | None = None) -> WeightsOrigin:
    """Hash a submission's weights and determine their origin, side by side."""
    with ThreadPoolExecutor(1, "weights") as pool:
        hashing = pool.submit(weights_sha256, submission)
        if not differs_from_base(submission, base) and hashing.result() == base.weights_sha256:
            return WeightsOrigin(base.weights_sha256, None)
        lineage = trace_lineage(submission, base, stop)
        return WeightsOrigin(hashing.result(), lineage)


def differs_from_base(submission: Path, base: BaseModel) -> bool:
    """Return whether a sample of the weights shows that they are not the base's.

    True is certain. False is not: then only a full comparison tells.
    """
    submitted = read_tensors(submission)
    common = submitted.keys() & base.tensors.keys()
    return any(differs_in_sample(submitted[name], base.tensors[name]) for name in sorted(common))


def trace_lineage(submission: Path, base: BaseModel, stop: threading.Event | None = None) -> LineageReport:
    """Determine the origin of a submission's weights. The submission must have passed the checks.

    `stop` ends it early with a GradingError.
    """
    submitted = read_tensors(submission)
    common = sorted(submitted.keys() & base.tensors.keys())
    tensors = {name: _leading_rows(submitted[name], base.tensors[name]) for name in common}
    workers = _TensorWorkers({name: base.tensors[name].parameters for name in common}, stop)

    def compare(name: str) -> TensorLineage:
        one = _compare_tensor(name, tensors[name], base.tensors[name])
        return _with_added_rows(one, submitted[name], base.tensors[name])

    seen = tuple(workers.measure(compare, common).values())
    rests = _measure_rests(seen, tensors, base.tensors, workers)
    evidence = _Evidence(seen, rests)
    changed = _changed_values(seen, base)
    decision = _decide_verdict(evidence)
    if decision.verdict == "derived" and changed < EDITED:
        reason = f"Only {changed * base.parameters:.0f} of {base.parameters:,} values differ from the base's."
        decision = _Decision("unknown", reason, "changed_values", changed, EDITED)
    added_lengths = [one.added_row_length for one in seen if one.added_row_length is not None]
    return LineageReport(
        verdict=decision.verdict,
        reason=decision.reason,
        statistic=decision.statistic,
        value=decision.value,
        threshold=decision.threshold,
        unchanged_tensors=evidence.unchanged,
        changed_values=changed,
        retained=evidence.median_of("retained"),
        added=evidence.median_of("added"),
        pull=evidence.median_of("pull"),
        alignment=evidence.alignment,
        structure=evidence.structure,
        added_rows=evidence.added_rows,
        added_row_length=max(added_lengths, default=None),
        tensors=tuple(_with_rest(one, rests.get(one.name)) for one in seen),
    )


class _TensorWorkers:
    """Measure several tensors at once. Each worker holds a few chunks of one tensor in memory."""

    def __init__(self, sizes: Mapping[str, int], stop: threading.Event | None) -> None:
        self._sizes = sizes
        self._stop = stop or threading.Event()

    def measure(self, measure: Callable[[str], T], names: Sequence[str]) -> dict[str, T]:
        """Return the measurement of each tensor, by name, in the order of the names."""
        workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(workers, "lineage") as pool:
            # The largest come first, so that no worker is left with one at the end.
            by_size = sorted(names, key=lambda name: -self._sizes[name])
            futures = {name: pool.submit(self._measure_one, measure, name) for name in by_size}
            try:
                return {name: futures[name].result() for name in names}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _measure_one(self, measure: Callable[[str], T], name: str) -> T:
        if self._stop.is_set():
            raise GradingError("The run was stopped before the weights were compared.")
        return measure(name)


def _changed_values(seen: tuple[TensorLineage, ...], base: BaseModel) -> float:
    """Return the share of all values that differ; all values of unmeasured tensors count as different."""
    changed = sum((1 - (one.unchanged or 0.0)) * base.tensors[one.name].parameters for one in seen)
    return changed / max(1, base.parameters)


def _leading_rows(submitted: Tensor, base: Tensor) -> Tensor:
    """Return the rows of a submitted tensor that the base also has; the vocabulary may have grown."""
    if submitted.shape == base.shape:
        return submitted
    begin = submitted.offsets[0]
    end = begin + base.parameters * DTYPE_BYTES[submitted.dtype]
    return replace(submitted, shape=base.shape, offsets=(begin, end))


def _with_added_rows(one: TensorLineage, submitted: Tensor, base: Tensor) -> TensorLineage:
    added: AddedRows | None = measure_added_rows(submitted, base)
    if added is None:
        return one
    return one.model_copy(update={"added_rows": added.count, "added_row_length": added.length})


def _with_rest(one: TensorLineage, rest: RestGeometry | None) -> TensorLineage:
    if rest is None:
        return one
    return one.model_copy(update={"alignment": rest.alignment, "structure": rest.structure})


def _measure_rests(
    seen: tuple[TensorLineage, ...],
    submitted: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    workers: _TensorWorkers,
) -> dict[str, RestGeometry]:
    """A second pass over the matrices, only where so much was added that it could be another model.

    Rearranged matrices are left out: what they differ by is unrelated to the base in the same way.
    """
    changed = _changed_throughout(seen)
    kept_tensors = [one for one in changed if one.state == "kept"]
    if not kept_tensors or len(kept_tensors) <= MOSTLY * len(changed):
        return {}
    if median(one.added or 0.0 for one in kept_tensors) <= REST_ADDED:
        return {}
    retained = {one.name: one.retained or 0.0 for one in kept_tensors}
    rests = workers.measure(
        lambda name: measure_rest(submitted[name], base[name], retained[name]), list(retained)
    )
    return {name: rest for name, rest in rests.items() if rest is not None}


def _changed_throughout(seen: tuple[TensorLineage, ...]) -> list[TensorLineage]:
    """Return the matrices with few unchanged values; if most are unchanged, the others may differ much."""
    return [
        one for one in seen if one.state != "small" and one.unchanged is not None and one.unchanged < MOSTLY
    ]


def _compare_tensor(name: str, submitted: Tensor, base: Tensor) -> TensorLineage:
    if not {submitted.dtype, base.dtype} <= READABLE.keys():
        return _compare_digests(name, submitted, base)
    try:
        measured = measure_tensor(submitted, base)
    except NotFinite:
        return TensorLineage(name=name, state="unmeasured")
    if measured is None:
        return _compare_digests(name, submitted, base)
    decides = base.parameters >= VALUES and min(matrix_shape(base)) >= SIDE
    return TensorLineage(
        name=name,
        state=_classify_tensor(measured, submitted, base) if decides else "small",
        unchanged=measured.unchanged,
        distance=measured.distance,
        cosine=measured.cosine,
        retained=measured.retained,
        added=measured.added,
        pull=measured.pull,
    )


def _compare_digests(name: str, submitted: Tensor, base: Tensor) -> TensorLineage:
    """Compare a tensor without a measurable length: it is the same or not."""
    same = (submitted.dtype, submitted.shape) == (base.dtype, base.shape) and tensor_sha256(
        submitted
    ) == tensor_sha256(base)
    return TensorLineage(name=name, state="small", unchanged=float(same))


def _classify_tensor(measured: TensorFit, submitted: Tensor, base: Tensor) -> State:
    if measured.unchanged == 1:
        return "unchanged"
    threshold = GROWN if measured.retained > 1 else SHRUNK
    if measured.distance > threshold and measured.rescaled >= RESCALED and measured.line_cosine >= LINED:
        return "rescaled"
    if is_rearranged(submitted, base, measured.astray):
        return "rearranged"
    if measured.unchanged >= MOSTLY:
        return "kept"
    by_chance = measured.cosine < max(CHANCE, DEVIATIONS / sqrt(base.parameters))
    return "lost" if by_chance or (measured.retained < LEFT and measured.pull < REMOVED) else "kept"


class _Evidence:
    """The comparison of all tensors; `matrices` decide."""

    def __init__(self, seen: tuple[TensorLineage, ...], rests: Mapping[str, RestGeometry]) -> None:
        self.unchanged = sum(tensor.unchanged == 1 for tensor in seen) / max(1, len(seen))
        self.copied = self.unchanged == 1
        self.added_rows = max((tensor.added_rows for tensor in seen), default=0)
        self.matrices = [tensor for tensor in seen if tensor.state != "small"]
        self.alignment = _root_mean_square([rest.alignment for rest in rests.values()])
        self.chance_alignment = _root_mean_square([rest.chance for rest in rests.values()])
        self.structure = _root_mean_square([rest.structure for rest in rests.values()])
        self.full_rank = bool(rests) and median(rest.weaker_half for rest in rests.values()) > FULL_RANK

    def share_of(self, *states: State) -> float:
        return sum(tensor.state in states for tensor in self.matrices) / len(self.matrices)

    def list_names(self, *states: State) -> str:
        return format_values([tensor.name for tensor in self.matrices if tensor.state in states])

    def median_of(self, figure: Literal["retained", "added", "pull"]) -> float | None:
        changed = [tensor for tensor in self.matrices if tensor.unchanged not in (1, None)]
        if figure == "added":
            changed = _changed_throughout(tuple(changed))
        return median(getattr(tensor, figure) for tensor in changed) if changed else None


def _root_mean_square(values: list[float]) -> float | None:
    return sqrt(sum(value**2 for value in values) / len(values)) if values else None


@dataclass(frozen=True)
class _Decision:
    verdict: Lineage
    reason: str
    statistic: str
    value: float | None = None
    threshold: float | None = None


def _decide_verdict(evidence: _Evidence) -> _Decision:
    """Return the decision of the first rule that applies."""
    if evidence.copied:
        reason = (
            "Every base value is unchanged; only rows for added tokens are new."
            if evidence.added_rows
            else "Every tensor has the base's values."
        )
        return _Decision("copied", reason, "unchanged_tensors", 1.0, 1.0)
    if not evidence.matrices:
        return _Decision("unknown", "No matrix is large enough to measure.", "matrices", 0.0, 1.0)
    lost = evidence.share_of("lost")
    if lost > MOSTLY:
        reason = f"{lost:.0%} of the matrices hold nothing of the base."
        return _Decision("foreign", reason, "lost_matrices", lost, MOSTLY)
    unrelated = _decide_unrelated(evidence)
    if unrelated and unrelated.verdict == "foreign":
        return unrelated
    if rearranged := evidence.share_of("rearranged", "rescaled"):
        reason = (
            "The base's weights rearranged: permuted, turned, flipped or scaled in "
            f"{evidence.list_names('rearranged', 'rescaled')}."
        )
        return _Decision("unknown", reason, "rearranged_matrices", rearranged, 0.0)
    if unmeasured := evidence.share_of("unmeasured"):
        reason = f"There is NaN or infinity in {evidence.list_names('unmeasured')}."
        return _Decision("unknown", reason, "unmeasured_matrices", unmeasured, 0.0)
    if lost:
        reason = f"Nothing of the base is left in {evidence.list_names('lost')}."
        return _Decision("unknown", reason, "lost_matrices", lost, 0.0)
    return _decide_by_medians(evidence, unrelated)


def _decide_by_medians(evidence: _Evidence, unrelated: _Decision | None) -> _Decision:
    retained, added, pull = (evidence.median_of(figure) for figure in ("retained", "added", "pull"))
    if retained is not None and pull is not None and pull <= REMOVED and retained < WHOLE:
        reason = f"About {1 - retained:.0%} of the base was replaced by something else, throughout."
        if retained < LEFT:
            return _Decision("foreign", reason, "retained", retained, LEFT)
        if pull > SHRINKING:
            return _Decision("unknown", reason, "pull", pull, REMOVED)
    if unrelated:
        return unrelated
    if added is not None and added > ADDED:
        reason = f"What was added is {added:.1f} times as large as the base. Lower the learning rate."
        return _Decision("unknown", reason, "added", added, ADDED)
    return _Decision("derived", "The base is in every matrix.", "added", added, ADDED)


def _decide_unrelated(evidence: _Evidence) -> _Decision | None:
    """Decide whether the added part looks like another model: full rank, structured, unlike the base."""
    alignment, chance, structure = evidence.alignment, evidence.chance_alignment, evidence.structure
    added = evidence.median_of("added")
    if added is None or alignment is None or chance is None or structure is None:
        return None
    by_chance = ALIGNED_CHANCES * chance
    threshold = max(ALIGNED, by_chance)
    if structure <= STRUCTURED or not evidence.full_rank or alignment >= threshold:
        return None
    verdict: Lineage = "foreign" if added > ADDED and alignment < by_chance else "unknown"
    reason = (
        f"What was added is {added:.1f} times as large as the base and unrelated to it, "
        "as if another model's weights were added."
    )
    return _Decision(verdict, reason, "alignment", alignment, threshold)
