"""Determine how an attempt trained: the route that produced its submission, its hyperparameters and data.

Both come from the code that ran. The route also takes into account what was observed from outside.
docs/design/routes.md explains the rules and how often they err.

Only code that a program reaches counts, with the values that it has there. The command line takes precedence
over a default, and an argument of a trainer or an optimizer over a constant of the same name. Not covered:
values that a program computes from what it measures.
"""

import logging
import re
from collections.abc import Mapping, Sequence

from agent2rl.analysis.attempts import AttemptSpan, RecordedProcess
from agent2rl.analysis.findings import EvidenceBook, Route, RouteVerdict, Setting
from agent2rl.analysis.programs import (
    DetectedStage,
    NotedSetting,
    ProgramReading,
    WeightsHistory,
    read_programs,
)
from agent2rl.analysis.workspace_paths import HOLE, normalise_path, path_covers

logger = logging.getLogger(__name__)

# The route of a submission.

UNSEEN = 0.75
"""Confidence factor if no processes were recorded."""
BLIND = 0.6
"""Confidence factor if processes were recorded, but none of them is known to run any of this code."""
GUESSED = 0.8
"""Confidence factor if it is not known which of the trainings wrote the submission."""
CUT = 0.8
"""Confidence factor if a program was too long to be stepped through."""
UNPLAYED = 0.5
"""Confidence if the code plays the environment, but no rollouts were counted."""
PLAYED = 0.7
"""Confidence if rollouts were counted, but the code does not show what played them."""
FOREIGN = 0.7
"""Confidence factor if the weights do not derive from the base model."""
MOST_ROUTES = 6
RECIPE = "agent2rl.agents.recipe.train"
ROUND = re.compile(r"^round (\d{1,9}): (sft|grpo) from (\S+), ", re.M)
RECIPE_MODEL = re.compile(r"(?:^|/)(\d{1,9})-(sft|grpo)(?:-half)?$")


def attribute_route(
    span: AttemptSpan,
    earlier: Mapping[int, RouteVerdict],
    book: EvidenceBook,
    *,
    known: Mapping[str, RouteVerdict] | None = None,
) -> RouteVerdict:
    """Return how the weights of this attempt's submission were produced.

    Without a submission, return what was trained in the attempt. `earlier` has verdicts on submissions by
    number, `known` has verdicts on weights in the workspace by path, both from earlier attempts.
    """
    known = known or {}
    submission = span.submission
    if submission is not None and submission.lineage == "copied":
        where = f"submission {submission.id}"
        evidence = book.add_evidence("submission", where, "its weights are the base model's")
        return RouteVerdict(routes=("none",), confidence=1.0, evidence=(evidence,))
    if submission is not None and submission.same_as is not None and submission.same_as in earlier:
        where, text = f"submission {submission.id}", f"the same weights as submission {submission.same_as}"
        before = earlier[submission.same_as]
        evidence = book.add_evidence("submission", where, text)
        return before.model_copy(update={"evidence": (evidence, *before.evidence)})
    reading = read_programs(span)
    path = normalise_path(submission.path) if submission else None
    verdict = _read_recipe_log(span, reading, known, book) or _decide_route(span, reading, path, known, book)
    logger.debug(
        "Attempt %d: %s with confidence %.2f (%d launches, %d trainings)",
        span.number, verdict.name, verdict.confidence, len(reading.launches), len(reading.stages),
    )  # fmt: skip
    return verdict


def attribute_weights(
    span: AttemptSpan,
    route: RouteVerdict,
    book: EvidenceBook,
    *,
    known: Mapping[str, RouteVerdict] | None = None,
) -> dict[str, RouteVerdict]:
    """Return how all weights that the attempt wrote were produced, by path.

    An attempt may write more than it submits, such as a warm-up. Weights of which the code does not show how
    they were produced have the attempt's own `route`.
    """
    reading, routes = read_programs(span), {}
    for path in dict.fromkeys(saved.path for saved in span.weights):
        history = reading.find_weights(normalise_path(path))
        told = history is not None and bool(history.stages)
        routes[path] = (
            _decide_route(span, reading, normalise_path(path), known or {}, book) if told else route
        )
    return routes


def _decide_route(
    span: AttemptSpan,
    reading: ProgramReading,
    path: str | None,
    known: Mapping[str, RouteVerdict],
    book: EvidenceBook,
) -> RouteVerdict:
    """Return the route of the weights at a path; of everything that was trained if it is None."""
    history, confidence = _find_history(reading, path)
    stages = _drop_late_stages(span, reading, history.stages, path)
    before = _find_earlier_route(history.origins, known)
    evidence = _cite_stages(reading, stages, book)
    if not stages:
        return _explain_untrained(span, reading, before, known, path, book)
    routes: list[Route] = list(before.routes) if before else []
    confidence *= before.confidence if before else 1.0
    least = 1.0
    for stage in stages:
        route, stage_confidence = _weigh_stage(stage, span)
        least = min(least, stage_confidence)
        routes.append(route)
    confidence *= least
    if not reading.observed:
        confidence *= BLIND if span.processes else UNSEEN
    confidence *= CUT if reading.truncated else 1.0
    if span.submission and span.submission.lineage == "foreign":
        confidence *= FOREIGN
    cited = (*(before.evidence if before else ()), *evidence, *_cite_rollouts(span, stages, book))
    return RouteVerdict(
        routes=_drop_repeats(routes), confidence=round(confidence, 2), evidence=tuple(dict.fromkeys(cited))
    )


def _find_history(reading: ProgramReading, path: str | None) -> tuple[WeightsHistory, float]:
    """Return how the weights at a path were produced, and the confidence in that."""
    everything = WeightsHistory(reading.stages, reading.loads)
    if path is None:
        return everything, 1.0
    if (history := reading.find_weights(path)) and (history.stages or history.origins):
        return history, 1.0
    trained = [history for history in reading.weights.values() if history.stages]
    if len({history.stages for history in trained}) == 1:
        return trained[-1], 0.95
    if trained:
        return max(trained, key=lambda history: history.launch), GUESSED
    return everything, GUESSED if len(reading.stages) > 1 else 0.95


def _drop_late_stages(
    span: AttemptSpan, reading: ProgramReading, stages: Sequence[DetectedStage], path: str | None
) -> tuple[DetectedStage, ...]:
    """Drop trainings that started after the weights were written."""
    times = [saved.at for saved in span.weights if path and path_covers(normalise_path(saved.path), path)]
    if not times:
        return tuple(stages)

    def began_too_late(stage: DetectedStage) -> bool:
        process = reading.find_process(stage)
        return process is not None and process.began > max(times)

    # If all of them began too late, these times do not tell which one wrote the weights.
    return tuple(stage for stage in stages if not began_too_late(stage)) or tuple(stages)


def _find_earlier_route(origins: Sequence[str], known: Mapping[str, RouteVerdict]) -> RouteVerdict | None:
    """Return the verdict on the weights that a training continued from.

    If their path is only known in part, return the newest verdict that fits.
    """
    for origin in map(normalise_path, origins):
        normalised = [(normalise_path(path), verdict) for path, verdict in known.items()]
        fitting = [
            verdict for path, verdict in normalised if path_covers(origin, path) or path_covers(path, origin)
        ]
        if not fitting:
            continue
        certain = len({verdict.routes for verdict in fitting}) == 1 or HOLE not in origin
        trained = tuple(route for route in fitting[-1].routes if route != "none")
        confidence = fitting[-1].confidence * (1.0 if certain else GUESSED)
        update = {"routes": trained, "confidence": confidence}
        return fitting[-1].model_copy(update=update) if trained else None
    return None


def _weigh_stage(stage: DetectedStage, span: AttemptSpan) -> tuple[Route, float]:
    """Return route and confidence of a training. A policy gradient is online if rollouts were counted."""
    played = bool(span.rollouts.played.episodes or span.rollouts.played.steps)
    if stage.route not in ("policy-gradient", "online-rl"):
        return stage.route, stage.confidence
    if stage.route == "online-rl" or stage.world:
        return ("online-rl", stage.confidence) if played else ("policy-gradient", UNPLAYED)
    return ("online-rl", min(PLAYED, stage.confidence)) if played else (stage.route, stage.confidence)


def _cite_rollouts(span: AttemptSpan, stages: Sequence[DetectedStage], book: EvidenceBook) -> tuple[str, ...]:
    if not any(stage.route in ("policy-gradient", "online-rl") for stage in stages):
        return ()
    counts = {
        "served": span.rollouts.served,
        "claimed": span.rollouts.claimed,
        "replayed": span.rollouts.replayed,
    }
    texts = [
        f"{count.episodes} episodes, {count.steps} steps {name}"
        for name, count in counts.items()
        if count.steps
    ]
    if not texts and not any(stage.world for stage in stages):
        return ()
    where = f"rollouts of attempt {span.number}"
    return (book.add_evidence("event", where, "; ".join(texts) or "none were counted"),)


def _drop_repeats(routes: Sequence[Route]) -> tuple[Route, ...]:
    """Merge equal routes in a row, and drop `unknown` beside known ones."""
    merged: list[Route] = []
    for route in routes:
        if not merged or merged[-1] != route:
            merged.append(route)
    if len(merged) > 1:
        merged = [route for route in merged if route != "unknown"] or ["unknown"]
    if len(merged) > MOST_ROUTES:
        merged = [*merged[: MOST_ROUTES - 1], merged[-1]]  # modes depend on the last stage
    return tuple(merged)


def _cite_stages(
    reading: ProgramReading, stages: Sequence[DetectedStage], book: EvidenceBook
) -> tuple[str, ...]:
    evidence: list[str] = []
    for stage in stages:
        for place in stage.places:
            if cited := reading.cite_location(place):
                evidence.append(book.add_evidence("code", *cited))
        if process := reading.find_process(stage):
            evidence.append(_cite_process(process, book))
    return tuple(dict.fromkeys(evidence))


def _cite_process(process: RecordedProcess, book: EvidenceBook) -> str:
    return book.add_evidence("event", f"process {process.pid}", process.command, process.began)


def _explain_untrained(
    span: AttemptSpan,
    reading: ProgramReading,
    before: RouteVerdict | None,
    known: Mapping[str, RouteVerdict],
    path: str | None,
    book: EvidenceBook,
) -> RouteVerdict:
    """Return the verdict for an attempt in which no training was found."""
    if path is None:
        confidence = 0.6 if reading.observed and reading.launches else 0.4
        return RouteVerdict(routes=("none",), confidence=confidence)
    assert span.submission is not None
    before = before or _find_earlier_route((path,), known)
    where = f"submission {span.submission.id}"
    if before:
        text = "weights of an earlier attempt; no further training was found"
        cited = (book.add_evidence("submission", where, text), *before.evidence)
        return before.model_copy(
            update={"confidence": round(before.confidence * GUESSED, 2), "evidence": cited}
        )
    evidence = book.add_evidence("submission", where, f"no training was found that wrote {path}")
    return RouteVerdict(routes=("unknown",), confidence=0.2, evidence=(evidence,))


def _read_recipe_log(
    span: AttemptSpan, reading: ProgramReading, known: Mapping[str, RouteVerdict], book: EvidenceBook
) -> RouteVerdict | None:
    """Return the verdict for the recipe agent, which has no program in the workspace; None for others."""
    recipe = reading.find_launch(RECIPE)
    if recipe is None:
        return None
    rounds = {
        match[1]: (match[2], match[3]) for printed in span.printed for match in ROUND.finditer(printed.text)
    }
    match = RECIPE_MODEL.search(span.submission.path) if span.submission else None
    number = match[1] if match else max(rounds, key=int, default="")
    stage, start = rounds.get(number, (match[2] if match else "", ""))
    if not stage:
        return RouteVerdict(routes=("none",), confidence=0.6)
    route = _weigh_stage(DetectedStage("policy-gradient" if stage == "grpo" else "sft", 0.95, ()), span)[0]
    folder = span.submission.path.rpartition("/")[0] if span.submission else "output"
    trail = _trace_unsubmitted_rounds(number, rounds, folder, known)
    if trail:
        start = rounds[trail[0]][1]
    before = (
        _find_earlier_route((f"{folder}/{start}",), known) if start else _find_earlier_in_round(number, known)
    )
    evidence = [_cite_process(recipe.process, book)] if recipe.process else []
    evidence += [cited for each in (*trail, number) for cited in _cite_round(span, each, book)]
    evidence += _cite_rollouts(span, (DetectedStage(route, 1.0, ()),), book)
    confidence = 0.95 if start or before or number == "1" else 0.8
    warm_up: list[Route] = ["sft" if rounds[each][0] == "sft" else route for each in trail]
    routes = [*(before.routes if before else ()), *warm_up, route]
    return RouteVerdict(
        routes=_drop_repeats(routes), confidence=confidence, evidence=tuple(dict.fromkeys(evidence))
    )


def _trace_unsubmitted_rounds(
    number: str,
    rounds: Mapping[str, tuple[str, str]],
    folder: str,
    known: Mapping[str, RouteVerdict],
) -> list[str]:
    """Return the rounds of this attempt that a round continued from, the first one first.

    Their models were not submitted, as a warm-up in mode rl-oriented.
    """
    trail: list[str] = []
    while number in rounds:
        start = rounds[number][1]
        match = RECIPE_MODEL.search(start)
        if not match or _find_earlier_route((f"{folder}/{start}",), known):
            break
        if match[1] not in rounds or int(match[1]) >= int(number):
            break
        number = match[1]
        trail.insert(0, number)
    return trail


def _cite_round(span: AttemptSpan, number: str, book: EvidenceBook) -> list[str]:
    return [
        book.add_evidence("log", printed.cite_line(index), line, printed.at)
        for printed in span.printed
        for index, line in enumerate(printed.text.split("\n"))
        if line.startswith(f"round {number}: ")
    ]


def _find_earlier_in_round(number: str, known: Mapping[str, RouteVerdict]) -> RouteVerdict | None:
    """Return the verdict on the last submission of the same round. A round may submit more than once."""
    same = [verdict for path, verdict in known.items() if path.rpartition("/")[2].startswith(f"{number}-")]
    return same[-1] if same else None


# Hyperparameters and data.

MOST_SETTINGS = 60
ALL_COUNT = ("data", "optimizer")
"""Settings of which a training may have several."""


def find_settings(span: AttemptSpan, book: EvidenceBook) -> tuple[Setting, ...]:
    """Return the hyperparameters and data of an attempt, from the code that ran and from command lines."""
    reading = read_programs(span)
    training_launches = {stage.launch for stage in reading.stages}
    noted = [
        setting
        for setting in reading.settings
        if not training_launches or setting.launch in training_launches
    ]
    settings: dict[tuple[str, str], Setting] = {}
    for each in noted:
        if _takes_precedence(each, noted):
            key = each.name, repr(each.value)
            cited = _cite_setting(each, reading, book)
            before = settings.get(key)
            source = "command" if each.on_command_line else "code"
            evidence = tuple(dict.fromkeys([*(before.evidence if before else ()), *cited]))[:3]
            settings[key] = Setting(
                name=each.name,
                value=each.value,
                source=before.source if before else source,
                evidence=evidence,
            )
    return tuple(sorted(settings.values(), key=lambda setting: setting.name)[:MOST_SETTINGS])


def _takes_precedence(setting: NotedSetting, noted: list[NotedSetting]) -> bool:
    """Whether no other value of the same name in the same program counts more."""
    rivals = [other for other in noted if other.name == setting.name and other.launch == setting.launch]
    return setting.name in ALL_COUNT or setting.weight == max(other.weight for other in rivals)


def _cite_setting(setting: NotedSetting, reading: ProgramReading, book: EvidenceBook) -> list[str]:
    location = reading.cite_location(setting.place)
    cited = [book.add_evidence("code", *location)] if location else []
    process = reading.find_process(setting)
    if process and (setting.on_command_line or not cited):
        cited.append(_cite_process(process, book))
    return cited
