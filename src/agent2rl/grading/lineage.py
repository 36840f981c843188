"""Whose weights are these? Every submission is held against the base, tensor by tensor (`comparison`).

    copied    every tensor has the base's values
    derived   the base is in every matrix, nearly whole, and less was added than there was
    foreign   most matrices hold nothing of the base, or little of it is left anywhere
    unknown   all else: a mixture, a part replaced, noise above the weights, the base rearranged

Matrices alone decide: norms and biases of unrelated models agree too. Not covered: weights know only their
ancestors, so a stranger's fine-tune of the very same base is a child of it like any other.
docs/design/lineage.md has the method, and how often it errs.
"""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Literal

from agent2rl.core.records import Lineage, Record
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.comparison import READABLE, Fit, NotFinite, fit, matrix_shape, moved
from agent2rl.grading.untrusted import listed
from agent2rl.grading.weights import Tensor, tensor_sha256, tensors

SIDE, VALUES = 8, 1024
"""The least size of a matrix that decides: below it, chance does."""
CHANCE, DEVIATIONS = 0.05, 4
"""A cosine that unrelated matrices do not reach; for small ones, so many standard deviations."""
REMOVED, SHRINKING = -0.35, -0.9
"""Pull between which the base was replaced by something else. Training is near 0, a mixture with a model of
equal length at -0.71 whatever its share; weight decay alone is at -1."""
LEFT, WHOLE = 0.25, 0.99
"""A mixture that retains less of the base is the other model; one that retains more is rounding."""
ADDED = 1.0
"""More than the base's own length was added: it hides what was there before."""
RESCALED, LINED = 0.7, 0.9
"""Of a rescaled matrix, scaled lines explain such a share of the difference and reach such a cosine."""
GROWN, SHRUNK = 0.02, 0.25
"""Distances from which on a rescaled matrix is told: weight decay shrinks, and no training only grows."""
MOSTLY = 0.5

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


class LineageReport(Record):
    verdict: Lineage
    reason: str
    """One sentence for people."""
    statistic: str
    """The figure that decided, with its value and the threshold it was held against."""
    value: float | None
    threshold: float | None
    unchanged_tensors: float
    """Share of tensors whose values are all the base's."""
    retained: float | None
    """Median over the matrices that changed, like those below."""
    added: float | None
    pull: float | None
    tensors: tuple[TensorLineage, ...]

    @property
    def message(self) -> str:
        """What the agent is told: nothing where all is well."""
        if self.verdict == "foreign":
            return (
                f"These are not the base model's weights, trained further. {self.reason} They are scored, "
                "but cannot be the best. Load the model in $MODEL_PATH, train that, and submit it."
            )
        return f"Lineage unknown: {self.reason}" if self.verdict == "unknown" else ""


def lineage(submission: Path, base: BaseModel) -> LineageReport:
    """Say where the weights of a submission come from. It has passed the checks."""
    found = tensors(submission)
    common = sorted(found.keys() & base.tensors.keys())
    seen = tuple(_tensor(name, found[name], base.tensors[name]) for name in common)
    grown = any(found[name].shape != base.tensors[name].shape for name in common)
    evidence = _Evidence(seen, grown)
    decision = _decide(evidence)
    return LineageReport(
        verdict=decision.verdict,
        reason=decision.reason,
        statistic=decision.statistic,
        value=decision.value,
        threshold=decision.threshold,
        unchanged_tensors=evidence.unchanged,
        retained=evidence.median("retained"),
        added=evidence.median("added"),
        pull=evidence.median("pull"),
        tensors=seen,
    )


def _tensor(name: str, found: Tensor, base: Tensor) -> TensorLineage:
    if not {found.dtype, base.dtype} <= READABLE.keys():
        return _by_digest(name, found, base)
    try:
        measured = fit(found, base)
    except NotFinite:
        return TensorLineage(name=name, state="unmeasured")
    if measured is None:
        return _by_digest(name, found, base)
    decides = base.parameters >= VALUES and min(matrix_shape(base)) >= SIDE
    return TensorLineage(
        name=name,
        state=_state(measured, found, base) if decides else "small",
        unchanged=measured.unchanged,
        distance=measured.distance,
        cosine=measured.cosine,
        retained=measured.retained,
        added=measured.added,
        pull=measured.pull,
    )


def _by_digest(name: str, found: Tensor, base: Tensor) -> TensorLineage:
    """A tensor without a length to measure by: whether it is the same is all there is to say."""
    same = (found.dtype, found.shape) == (base.dtype, base.shape) and tensor_sha256(found) == tensor_sha256(
        base
    )
    return TensorLineage(name=name, state="small", unchanged=float(same))


def _state(measured: Fit, found: Tensor, base: Tensor) -> State:
    if measured.unchanged == 1:
        return "unchanged"
    told = GROWN if measured.retained > 1 else SHRUNK
    if measured.distance > told and measured.rescaled >= RESCALED and measured.line_cosine >= LINED:
        return "rescaled"
    if moved(found, base, measured.astray):
        return "rearranged"
    if measured.unchanged >= MOSTLY:
        return "kept"
    by_chance = measured.cosine < max(CHANCE, DEVIATIONS / sqrt(base.parameters))
    return "lost" if by_chance or (measured.retained < LEFT and measured.pull < REMOVED) else "kept"


class _Evidence:
    """All tensors; `matrices` decide."""

    def __init__(self, seen: tuple[TensorLineage, ...], grown: bool) -> None:
        self.unchanged = sum(tensor.unchanged == 1 for tensor in seen) / max(1, len(seen))
        self.copied = self.unchanged == 1 and not grown
        self.matrices = [tensor for tensor in seen if tensor.state != "small"]

    def share(self, *states: State) -> float:
        return sum(tensor.state in states for tensor in self.matrices) / len(self.matrices)

    def names(self, *states: State) -> str:
        return listed([tensor.name for tensor in self.matrices if tensor.state in states])

    def median(self, figure: Literal["retained", "added", "pull"]) -> float | None:
        changed = [tensor for tensor in self.matrices if tensor.unchanged not in (1, None)]
        if figure == "added":
            # Where most values stayed as they were, the few others may go as far as they like.
            changed = [tensor for tensor in changed if (tensor.unchanged or 0) < MOSTLY]
        return median(getattr(tensor, figure) for tensor in changed) if changed else None


@dataclass(frozen=True)
class _Decision:
    verdict: Lineage
    reason: str
    statistic: str
    value: float | None = None
    threshold: float | None = None


def _decide(evidence: _Evidence) -> _Decision:
    """The first rule that applies."""
    if evidence.copied:
        return _Decision("copied", "Every tensor has the base's values.", "unchanged_tensors", 1.0, 1.0)
    if not evidence.matrices:
        return _Decision("unknown", "No matrix is large enough to measure.", "matrices", 0.0, 1.0)
    lost = evidence.share("lost")
    if lost > MOSTLY:
        reason = f"{lost:.0%} of the matrices hold nothing of the base."
        return _Decision("foreign", reason, "lost_matrices", lost, MOSTLY)
    if rearranged := evidence.share("rearranged", "rescaled"):
        reason = (
            "The base's weights rearranged: permuted, turned, flipped or scaled in "
            f"{evidence.names('rearranged', 'rescaled')}."
        )
        return _Decision("unknown", reason, "rearranged_matrices", rearranged, 0.0)
    if unmeasured := evidence.share("unmeasured"):
        reason = f"There is NaN or infinity in {evidence.names('unmeasured')}."
        return _Decision("unknown", reason, "unmeasured_matrices", unmeasured, 0.0)
    if lost:
        reason = f"Nothing of the base is left in {evidence.names('lost')}."
        return _Decision("unknown", reason, "lost_matrices", lost, 0.0)
    return _by_medians(evidence)


def _by_medians(evidence: _Evidence) -> _Decision:
    retained, added, pull = (evidence.median(figure) for figure in ("retained", "added", "pull"))
    if retained is not None and pull is not None and pull <= REMOVED and retained < WHOLE:
        reason = f"About {1 - retained:.0%} of the base was replaced by something else, throughout."
        if retained < LEFT:
            return _Decision("foreign", reason, "retained", retained, LEFT)
        if pull > SHRINKING:
            return _Decision("unknown", reason, "pull", pull, REMOVED)
    if added is not None and added > ADDED:
        reason = f"What was added is {added:.1f} times as large as the base. Lower the learning rate."
        return _Decision("unknown", reason, "added", added, ADDED)
    return _Decision("derived", "The base is in every matrix.", "added", added, ADDED)
