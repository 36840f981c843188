"""Decide the lineage of a submission by rules over what was measured of its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Literal

from agent2rl.core.grading_records import Lineage
from agent2rl.core.records import Record
from agent2rl.grading.tensor_comparison import RestGeometry
from agent2rl.grading.untrusted_model_files import format_values

PULL_REPLACED, PULL_WEIGHT_DECAY = -0.35, -0.9
"""Pull between which the base was replaced by something else. Training is near 0, a mixture with a model of
equal length at -0.71 whatever its share; weight decay alone is at -1."""
MIN_RETAINED, NEARLY_ALL = 0.25, 0.99
"""A mixture that retains less of the base is the other model; one that retains more is rounding. A matrix in
which at least so many values are the base's, exactly, is not another model's."""
MAX_ADDED = 1.0
"""Above this length (in units of the base) the added part hides the base."""
ALIGNED, ALIGNED_CHANCES = 0.05, 1.5
"""What training adds is aligned with the base by at least so much, and by so many times what chance gives."""
STRUCTURED, FULL_RANK = 2.0, 0.02
"""Standard deviations from which on what was added is not white noise, and the share of it in the weaker half
of its directions from which on it is not of low rank."""
MAJORITY = 0.5
State = Literal["unchanged", "kept", "lost", "partly", "rescaled", "rearranged", "unmeasured", "small"]


class TensorLineage(Record):
    """One tensor against the base's. Lengths are in units of the base tensor's; None where it has none."""

    name: str
    state: State
    """What became of the base's matrix; norms, biases and the like are `small` and decide nothing. In a
    `partly` kept one many values are the base's, and the others hold nothing of it."""
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


def select_changed_throughout(seen: tuple[TensorLineage, ...]) -> list[TensorLineage]:
    """Return the matrices with few unchanged values; if most are unchanged, the others may differ much."""
    return [
        one for one in seen if one.state != "small" and one.unchanged is not None and one.unchanged < MAJORITY
    ]


class LineageEvidence:
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
            changed = select_changed_throughout(tuple(changed))
        return median(getattr(tensor, figure) for tensor in changed) if changed else None


def _root_mean_square(values: list[float]) -> float | None:
    return sqrt(sum(value**2 for value in values) / len(values)) if values else None


@dataclass(frozen=True)
class LineageDecision:
    verdict: Lineage
    reason: str
    statistic: str
    value: float | None = None
    threshold: float | None = None


def decide_lineage(evidence: LineageEvidence) -> LineageDecision:
    """Return the decision of the first rule that applies."""
    if evidence.copied:
        reason = (
            "Every base value is unchanged; only rows for added tokens are new."
            if evidence.added_rows
            else "Every tensor has the base's values."
        )
        return LineageDecision("copied", reason, "unchanged_tensors", 1.0, 1.0)
    if not evidence.matrices:
        return LineageDecision("unknown", "No matrix is large enough to measure.", "matrices", 0.0, 1.0)
    lost = evidence.share_of("lost")
    if lost > MAJORITY:
        reason = f"{lost:.0%} of the matrices are unrelated to the base model."
        return LineageDecision("foreign", reason, "lost_matrices", lost, MAJORITY)
    unrelated = _decide_unrelated(evidence)
    if unrelated and unrelated.verdict == "foreign":
        return unrelated
    if rearranged := evidence.share_of("rearranged", "rescaled"):
        reason = (
            "These are the base model's weights, rearranged: permuted, rotated, flipped or scaled in "
            f"{evidence.list_names('rearranged', 'rescaled')}."
        )
        return LineageDecision("unknown", reason, "rearranged_matrices", rearranged, 0.0)
    if unmeasured := evidence.share_of("unmeasured"):
        reason = f"There is NaN or infinity in {evidence.list_names('unmeasured')}."
        return LineageDecision("unknown", reason, "unmeasured_matrices", unmeasured, 0.0)
    if lost:
        reason = f"These matrices are unrelated to the base model: {evidence.list_names('lost')}."
        return LineageDecision("unknown", reason, "lost_matrices", lost, 0.0)
    if partly := evidence.share_of("partly"):
        names = evidence.list_names("partly")
        reason = f"In {names}, only some values match the base model; the rest are unrelated."
        return LineageDecision("unknown", reason, "partly_matrices", partly, 0.0)
    return _decide_by_medians(evidence, unrelated)


def _decide_by_medians(evidence: LineageEvidence, unrelated: LineageDecision | None) -> LineageDecision:
    retained, added, pull = (evidence.median_of(figure) for figure in ("retained", "added", "pull"))
    if retained is not None and pull is not None and pull <= PULL_REPLACED and retained < NEARLY_ALL:
        reason = (
            f"About {1 - retained:.0%} of the base model was replaced by something else, in every matrix."
        )
        if retained < MIN_RETAINED:
            return LineageDecision("foreign", reason, "retained", retained, MIN_RETAINED)
        # Nearly -1 is weight decay and no mixture, so it goes on to the next rules.
        if pull > PULL_WEIGHT_DECAY:
            return LineageDecision("unknown", reason, "pull", pull, PULL_REPLACED)
    if unrelated:
        return unrelated
    if added is not None and added > MAX_ADDED:
        reason = f"What was added is {added:.1f} times as large as the base. Lower the learning rate."
        return LineageDecision("unknown", reason, "added", added, MAX_ADDED)
    return LineageDecision(
        "derived", "Every matrix is derived from the base model.", "added", added, MAX_ADDED
    )


def _decide_unrelated(evidence: LineageEvidence) -> LineageDecision | None:
    """Decide whether the added part looks like another model: full rank, structured, unlike the base."""
    alignment, chance, structure = evidence.alignment, evidence.chance_alignment, evidence.structure
    added = evidence.median_of("added")
    if added is None or alignment is None or chance is None or structure is None:
        return None
    by_chance = ALIGNED_CHANCES * chance
    threshold = max(ALIGNED, by_chance)
    if structure <= STRUCTURED or not evidence.full_rank or alignment >= threshold:
        return None
    verdict: Lineage = "foreign" if added > MAX_ADDED and alignment < by_chance else "unknown"
    reason = (
        f"What was added is {added:.1f} times as large as the base and unrelated to it, "
        "as if another model's weights were added."
    )
    return LineageDecision(verdict, reason, "alignment", alignment, threshold)
