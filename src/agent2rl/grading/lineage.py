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

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import median
from typing import TypeVar

from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import Lineage, SiblingDistance
from agent2rl.core.records import Record
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.lineage_verdict import (
    MAJORITY,
    MIN_RETAINED,
    PULL_REPLACED,
    LineageDecision,
    LineageEvidence,
    State,
    TensorLineage,
    decide_lineage,
    select_changed_throughout,
)
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
    read_tensors,
    tensor_sha256,
    weights_sha256,
)

logger = logging.getLogger(__name__)

SIDE, VALUES = 8, 1024
"""Minimum size of a matrix that decides; smaller ones agree by chance."""
CHANCE, DEVIATIONS = 0.05, 4
"""A cosine that unrelated matrices do not reach; for small ones, a number of standard deviations."""
REST_ADDED = 0.25
"""Above this length, check whether the added part is related to the base."""
RESCALED, LINED = 0.7, 0.9
"""Of a rescaled matrix, scaled lines explain such a share of the difference and reach such a cosine."""
GROWN, SHRUNK = 0.02, 0.25
"""Distances from which on a rescaled matrix is told: weight decay shrinks, and no training only grows."""
EDITED = 1e-5
"""Training changes a larger share of all values; an edit by hand need not."""

MOST_WORKERS = 16
"""Tensors that are compared at once, if there are so many cores."""

T = TypeVar("T")


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
        # The sample costs milliseconds. If it differs, nobody has to wait for the digest of all
        # weights.
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
    begin = time.monotonic()
    submitted = read_tensors(submission)
    common = sorted(submitted.keys() & base.tensors.keys())
    tensors = {name: _leading_rows(submitted[name], base.tensors[name]) for name in common}
    workers = _TensorWorkers({name: base.tensors[name].parameters for name in common}, stop)

    def compare(name: str) -> TensorLineage:
        one = _compare_tensor(name, tensors[name], base.tensors[name])
        return _add_row_growth(one, submitted[name], base.tensors[name])

    seen = tuple(workers.measure(compare, common).values())
    rests = _measure_rests(seen, tensors, base.tensors, workers)
    evidence = LineageEvidence(seen, rests)
    changed = _changed_values(seen, base)
    decision = decide_lineage(evidence)
    if decision.verdict == "derived" and changed < EDITED:
        reason = f"Only {changed * base.parameters:.0f} of {base.parameters:,} values differ from the base's."
        decision = LineageDecision("unknown", reason, "changed_values", changed, EDITED)
    added_lengths = [one.added_row_length for one in seen if one.added_row_length is not None]
    logger.debug("Compared %d tensors in %.1f s: %s", len(common), time.monotonic() - begin, decision.verdict)
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
        tensors=tuple(_add_rest_geometry(one, rests.get(one.name)) for one in seen),
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


def _add_row_growth(one: TensorLineage, submitted: Tensor, base: Tensor) -> TensorLineage:
    added: AddedRows | None = measure_added_rows(submitted, base)
    if added is None:
        return one
    return one.model_copy(update={"added_rows": added.count, "added_row_length": added.length})


def _add_rest_geometry(one: TensorLineage, rest: RestGeometry | None) -> TensorLineage:
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
    changed = select_changed_throughout(seen)
    kept_tensors = [one for one in changed if one.state == "kept"]
    if not kept_tensors or len(kept_tensors) <= MAJORITY * len(changed):
        return {}
    if median(one.added or 0.0 for one in kept_tensors) <= REST_ADDED:
        return {}
    retained = {one.name: one.retained or 0.0 for one in kept_tensors}
    rests = workers.measure(
        lambda name: measure_rest(submitted[name], base[name], retained[name]), list(retained)
    )
    return {name: rest for name, rest in rests.items() if rest is not None}


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
    # A permuted matrix has no cosine with its own place, so this comes before the test of being
    # lost.
    if is_rearranged(submitted, base, measured.astray):
        return "rearranged"
    # Also before it: the head of a trained `abacus` has 25 times its length, while most of its
    # values are exactly the base model's.
    if measured.inherited >= MAJORITY:
        return "kept"
    by_chance = measured.cosine < max(CHANCE, DEVIATIONS / sqrt(base.parameters))
    if by_chance or (measured.retained < MIN_RETAINED and measured.pull < PULL_REPLACED):
        return "partly" if measured.inherited >= MIN_RETAINED else "lost"
    return "kept"
