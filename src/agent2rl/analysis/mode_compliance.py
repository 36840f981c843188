"""Check whether the best weights were trained as the run's mode allows.

The modes, as the agent's instructions (instructions.md) describe them:

    sft-only     no training signal may come from rewards. Samples that were selected by a check and pairs of
                 a better and a worse answer are such signals, too
    rl-oriented  the last stage is reinforcement learning. A supervised warm-up may come before it
    rl-only      no supervised training on given answers, not even as a warm-up
    multi        more than one paradigm, with a submission from each
    free         anything

Training on the model's own answers that passed a check is reinforcement, and so is training on pairs.
"""

from collections.abc import Sequence

from agent2rl.analysis.findings import Compliance, EvidenceBook, Route, RouteVerdict
from agent2rl.core.grading_records import Lineage
from agent2rl.core.records import Mode

SURE = 0.5
"""Below this confidence in the route, nothing is said about the mode."""
REWARDED: tuple[Route, ...] = ("rejection", "preference", "policy-gradient", "online-rl")
FORBIDDEN: dict[Mode, tuple[Route, ...]] = {
    "sft-only": REWARDED,
    "rl-oriented": ("sft",),
    "rl-only": ("sft",),
}
"""Routes that break a mode: as any stage, or in `ENDING_MODES` as the last one."""
ENDING_MODES: tuple[Mode, ...] = ("rl-oriented",)
"""Modes that only restrict the last stage of training."""
PARADIGMS: dict[Route, str] = {
    "sft": "supervised",
    "rejection": "rejection sampling",
    "preference": "preference",
    "policy-gradient": "policy gradient",
    "online-rl": "policy gradient",
}


def check_compliance(
    mode: Mode,
    best: RouteVerdict | None,
    lineage: Lineage,
    book: EvidenceBook,
    *,
    submitted: Sequence[RouteVerdict] = (),
) -> Compliance:
    """Return whether the best submission complies with the mode.

    `lineage` is that of the best submission. `submitted` has the verdicts on all submissions; mode `multi`
    cannot be checked without them.
    """
    if mode == "multi" and submitted:
        return _judge_multi(submitted)
    if mode not in FORBIDDEN:
        message = (
            "The mode allows any training."
            if mode == "free"
            else "It is not known which paradigms were tried."
        )
        return Compliance(mode=mode, verdict="free", message=message)
    if best is None:
        return Compliance(mode=mode, verdict="unknown", message="No submission has a score.")
    if lineage == "copied" or best.routes == ("none",):
        said = best.evidence or (
            book.add_evidence("submission", "the best submission", "it was not trained"),
        )
        return Compliance(
            mode=mode, verdict="kept", message="The best weights are those of the base model.", evidence=said
        )
    return _judge_route(mode, best)


def _judge_route(mode: Mode, best: RouteVerdict) -> Compliance:
    decisive = best.routes[-1:] if mode in ENDING_MODES else best.routes
    broken = [route for route in decisive if route in FORBIDDEN[mode]]
    unclear = [route for route in decisive if route in ("unknown", "other")]
    if best.confidence < SURE or (unclear and not broken):
        confidence = f"{best.confidence:.0%}"
        message = (
            f"The route of the best weights is too uncertain: {best.name}, with a confidence of {confidence}."
        )
        return Compliance(mode=mode, verdict="unknown", message=message, evidence=best.evidence)
    if broken:
        message = _explain_violation(mode, best, broken[0])
        return Compliance(mode=mode, verdict="broken", message=message, evidence=best.evidence)
    message = f"The best weights were trained by {best.name}, which {mode} allows."
    return Compliance(mode=mode, verdict="kept", message=message, evidence=best.evidence)


def _explain_violation(mode: Mode, best: RouteVerdict, broken: Route) -> str:
    alone = " alone" if len(best.routes) == 1 else ""
    trained = f"The best weights were trained by {best.name}{alone}"
    if mode in ENDING_MODES:
        ending = "" if alone else f". Their last stage is {broken}"
        return f"{trained}{ending}, but {mode} requires reinforcement learning as the last stage."
    return f"{trained}, but {mode} forbids {broken}."


def _judge_multi(submitted: Sequence[RouteVerdict]) -> Compliance:
    sure = [verdict for verdict in submitted if verdict.confidence >= SURE]
    tried = dict.fromkeys(
        PARADIGMS[route] for verdict in sure for route in verdict.routes if route in PARADIGMS
    )
    cited = tuple(dict.fromkeys(name for verdict in submitted for name in verdict.evidence))
    unclear = len(sure) < len(submitted) or any({"unknown", "other"} & {*verdict.routes} for verdict in sure)
    names = ", ".join(tried) or "none"
    if len(tried) > 1:
        return Compliance(mode="multi", verdict="kept", message=f"Submitted: {names}.", evidence=cited)
    if unclear:
        message = f"Submitted: {names}, and some by an unknown route."
        return Compliance(mode="multi", verdict="unknown", message=message, evidence=cited)
    message = f"Only one paradigm was submitted, but multi requires several: {names}."
    return Compliance(mode="multi", verdict="broken", message=message, evidence=cited)
