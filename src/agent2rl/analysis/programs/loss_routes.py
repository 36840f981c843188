"""What a training is, by what its gradient is taken of."""

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import HOLE, AbstractValue, CodeLocation, collect_marks
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.program_trace import DetectedStage

FROM = "from:"
"""Begins the mark of what one model sampled."""
RouteGuess = tuple[Route, float, tuple[str, ...]]
"""A route, how sure that is, and the marks that say so."""


def record_training(machine: AbstractInterpreter, loss: AbstractValue, place: CodeLocation) -> None:
    """A gradient is taken of this, and followed."""
    marks = collect_marks(loss)
    if kind := classify_loss(machine, marks):
        add_stage(machine, kind, marks, place)


def add_stage(machine: AbstractInterpreter, kind: RouteGuess, marks: Marks, place: CodeLocation) -> None:
    route, confidence, why = kind
    places = [place, *(machine.first[mark] for mark in why if mark in machine.first)]
    stage = DetectedStage(route, confidence, tuple(dict.fromkeys(places))[:4], m.WORLD in marks)
    machine.trace.add_stage(stage, m.select_models(marks))


def classify_loss(machine: AbstractInterpreter, marks: Marks) -> RouteGuess | None:
    """None where it is not the policy that learns."""
    scored = marks & (m.SCORES | {m.PICKED})
    if m.CRITIC in marks and not scored:
        return None
    pair = marks >= {m.CHOSEN, m.REJECTED} and scored
    if (m.PAIRWISE in marks or pair) and m.WEIGHTED not in marks:
        return "preference", 0.9 if m.PAIRWISE in marks else 0.75, (m.PAIRWISE, m.CHOSEN)
    if m.WEIGHTED in marks:
        return classify_policy_gradient(marks, 0.9)
    if m.JUDGED in marks:
        return classify_policy_gradient(marks, 0.6) if scored or m.PAIRWISE in marks else None
    if m.KL in marks and m.NLL not in marks:
        return "other", 0.7, (m.KL,)
    if m.NLL in marks or marks >= {m.LOGPROB, m.PICKED}:
        return classify_imitation(machine, marks, 0.9)
    if m.LOGPROB in marks:
        return (
            ("other", 0.6, (m.LOGPROB,))
            if len(m.select_models(marks)) > 1
            else ("unknown", 0.3, (m.LOGPROB,))
        )
    if marks & {m.LOGITS, m.FORWARD, m.PROBS} and m.select_models(marks):
        return ("other", 0.5, ()) if len(m.select_models(marks)) > 1 else ("unknown", 0.3, ())
    return "unknown", 0.2, ()


def classify_policy_gradient(marks: Marks, confidence: float) -> RouteGuess:
    route: Route = "online-rl" if m.WORLD in marks else "policy-gradient"
    return route, confidence, (m.WEIGHTED, m.JUDGED, m.WORLD)


def classify_imitation(machine: AbstractInterpreter, marks: Marks, confidence: float) -> RouteGuess:
    """Of given answers, or of the model's own."""
    if not marks & m.OWN or m.EXPERT in marks:
        return "sft", confidence, (m.NLL, m.EXPERT)
    if m.TEACHER in marks or _is_from_teacher(machine, marks):
        return "sft", confidence * 0.75, (m.NLL,)
    if m.FILTERED in marks or machine.judging or m.JUDGED in marks:
        return "rejection", confidence * 0.95, (m.FILTERED, m.SAID, m.TOKENS)
    return "rejection", 0.45, (m.SAID, m.TOKENS)


def _is_from_teacher(machine: AbstractInterpreter, marks: Marks) -> bool:
    """Whether the samples are another model's, from outside of the workspace."""
    models = [machine.trace.models.get(mark.removeprefix(FROM)) for mark in marks if mark.startswith(FROM)]
    paths = [path for made in models if made for path in made.origins]
    own = [path for mark in m.select_models(marks) for path in machine.trace.models[mark].origins]
    return bool(paths) and all(
        HOLE not in path and not path.startswith(("output", "models/", "/")) and path not in own
        for path in paths
    )
