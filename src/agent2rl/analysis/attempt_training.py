"""How an attempt trained: the route that produced its submission, and its hyperparameters and data. Both
are read from the code that ran; the route is weighed with what was seen from outside.

docs/design/routes.md says how, and how often it errs.

Only what a program reaches counts, with the value that it has there; the command line goes before a default,
and what a trainer or an optimiser is given before a constant of the same name. Not covered: values that a
program works out from what it measures.
"""

import re
from collections.abc import Mapping, Sequence

from agent2rl.analysis import programs as programs
from agent2rl.analysis.attempts import AttemptSpan, RecordedProcess
from agent2rl.analysis.findings import EvidenceBook, Route, RouteVerdict, Setting
from agent2rl.analysis.programs import ProgramReading, command_lines, source_files
from agent2rl.analysis.programs.abstract_values import HOLE
from agent2rl.analysis.programs.interpreter_core import (
    DetectedStage,
    NotedSetting,
    WeightsHistory,
    normalise_path,
    path_covers,
)

# Which training produced a submission: read from the code that ran, weighed with what was seen from
# outside.

UNSEEN = 0.75
"""Of the confidence that is left where no process says what ran."""
BLIND = 0.6
"""Where there are processes, and none of them is known to run any of this code."""
GUESSED = 0.8
"""Where it is not known which of the trainings wrote the submission."""
CUT = 0.8
"""Where a program was too long to be stepped through."""
UNPLAYED = 0.5
"""Where the code plays the world and nothing was counted."""
PLAYED = 0.7
"""Where something was counted and the code does not show who played."""
FOREIGN = 0.7
MOST_ROUTES = 6
ROUND = re.compile(r"^round (\d+): (sft|grpo) from (\S+), ", re.M)
RECIPE_MODEL = re.compile(r"(?:^|/)(\d+)-(sft|grpo)(?:-half)?$")


def attribute_route(
    span: AttemptSpan,
    earlier: Mapping[int, RouteVerdict],
    book: EvidenceBook,
    *,
    known: Mapping[str, RouteVerdict] | None = None,
) -> RouteVerdict:
    """How the weights of this attempt's submission came about; without one, what was trained in it.

    `known` says of weights in the workspace, by path, how they came about in earlier attempts.
    """
    known = known or {}
    submission = span.submission
    if submission is not None and submission.lineage == "copied":
        where = f"submission {submission.id}"
        said = book.add_evidence("submission", where, "its weights are the base model's")
        return RouteVerdict(routes=("none",), confidence=1.0, evidence=(said,))
    if submission is not None and submission.same_as is not None and submission.same_as in earlier:
        where, text = f"submission {submission.id}", f"the same weights as submission {submission.same_as}"
        before = earlier[submission.same_as]
        said = book.add_evidence("submission", where, text)
        return before.model_copy(update={"evidence": (said, *before.evidence)})
    reading = programs.read_programs(span)
    if found := _read_recipe_log(span, reading, known, book):
        return found
    return _decide_route(span, reading, known, book)


def _decide_route(
    span: AttemptSpan, reading: ProgramReading, known: Mapping[str, RouteVerdict], book: EvidenceBook
) -> RouteVerdict:
    path = normalise_path(span.submission.path) if span.submission else None
    made, sure = _find_history(reading, path)
    stages = _drop_late_stages(span, reading, made.stages, path)
    before = _find_earlier_route(made.origins, known)
    evidence = _cite_stages(span, reading, stages, book)
    if not stages:
        return _explain_untrained(span, reading, before, known, path, book)
    routes: list[Route] = list(before.routes) if before else []
    confidence = sure * (before.confidence if before else 1.0)
    least = 1.0
    for stage in stages:
        route, share = _weigh_stage(stage, span)
        least = min(least, share)
        routes.append(route)
    confidence *= least
    if not reading.seen:
        confidence *= BLIND if span.processes else UNSEEN
    confidence *= CUT if reading.trace.cut else 1.0
    if span.submission and span.submission.lineage == "foreign":
        confidence *= FOREIGN
    cited = (*(before.evidence if before else ()), *evidence, *_cite_rollouts(span, stages, book))
    return RouteVerdict(
        routes=_drop_repeats(routes), confidence=round(confidence, 2), evidence=tuple(dict.fromkeys(cited))
    )


def _find_history(reading: ProgramReading, path: str | None) -> tuple[WeightsHistory, float]:
    """How what lies at a path was made, and how sure that is."""
    trace = reading.trace
    every = WeightsHistory(tuple(trace.stages), tuple(dict.fromkeys(trace.loads)))
    if path is None:
        return every, 1.0
    if (made := trace.find_weights(path)) and (made.stages or made.origins):
        return made, 1.0
    written = [made for made in trace.weights.values() if made.stages]
    if len({made.stages for made in written}) == 1:
        return written[-1], 0.95
    if written:
        return max(written, key=lambda made: made.launch), GUESSED
    return every, GUESSED if len(trace.stages) > 1 else 0.95


def _drop_late_stages(
    span: AttemptSpan, reading: ProgramReading, stages: Sequence[DetectedStage], path: str | None
) -> tuple[DetectedStage, ...]:
    """Without what was started after the weights were written."""
    times = [each.at for each in span.weights if path and path_covers(normalise_path(each.path), path)]
    if not times:
        return tuple(stages)

    def late(stage: DetectedStage) -> bool:
        process = reading.find_process(stage)
        return process is not None and process.began > max(times)

    return tuple(stage for stage in stages if not late(stage)) or tuple(stages)


def _find_earlier_route(origins: Sequence[str], known: Mapping[str, RouteVerdict]) -> RouteVerdict | None:
    """What the weights that a training went on from had behind them; where their path is known in part only,
    the newest that fits."""
    for origin in map(normalise_path, origins):
        tidied = [(normalise_path(path), verdict) for path, verdict in known.items()]
        fitting = [
            verdict for path, verdict in tidied if path_covers(origin, path) or path_covers(path, origin)
        ]
        if not fitting:
            continue
        sure = len({verdict.routes for verdict in fitting}) == 1 or HOLE not in origin
        trained = tuple(route for route in fitting[-1].routes if route != "none")
        share = fitting[-1].confidence * (1.0 if sure else GUESSED)
        return fitting[-1].model_copy(update={"routes": trained, "confidence": share}) if trained else None
    return None


def _weigh_stage(stage: DetectedStage, span: AttemptSpan) -> tuple[Route, float]:
    """A policy gradient is online where the world was played, as the counters have it."""
    counts = (span.rollouts.witnessed, span.rollouts.claimed)
    played = any(each.episodes or each.steps for each in counts)
    if stage.route not in ("policy-gradient", "online-rl"):
        return stage.route, stage.confidence
    if stage.route == "online-rl" or stage.world:
        return ("online-rl", stage.confidence) if played else ("policy-gradient", UNPLAYED)
    return ("online-rl", min(PLAYED, stage.confidence)) if played else (stage.route, stage.confidence)


def _cite_rollouts(span: AttemptSpan, stages: Sequence[DetectedStage], book: EvidenceBook) -> tuple[str, ...]:
    if not any(stage.route in ("policy-gradient", "online-rl") for stage in stages):
        return ()
    counts = {"witnessed": span.rollouts.witnessed, "claimed": span.rollouts.claimed}
    said = [
        f"{each.episodes} episodes, {each.steps} steps {name}" for name, each in counts.items() if each.steps
    ]
    if not said and not any(stage.world for stage in stages):
        return ()
    return (
        book.add_evidence(
            "event", f"rollouts of attempt {span.number}", "; ".join(said) or "none were counted"
        ),
    )


def _drop_repeats(routes: Sequence[Route]) -> tuple[Route, ...]:
    """Without repetition of what went on in the same way."""
    found: list[Route] = []
    for route in routes:
        if not found or found[-1] != route:
            found.append(route)
    if len(found) > 1:
        found = [route for route in found if route != "unknown"] or ["unknown"]
    return tuple(found[:MOST_ROUTES])


def _cite_stages(
    span: AttemptSpan, reading: ProgramReading, stages: Sequence[DetectedStage], book: EvidenceBook
) -> tuple[str, ...]:
    files = {source.path: source for source in span.sources}
    found: list[str] = []
    for stage in stages:
        for place in stage.places:
            if place.path in files:
                line, text = source_files.parse_script(files[place.path]).locate_line(place.line)
                found.append(book.add_evidence("code", files[place.path].cite_line(line), text))
        if process := reading.find_process(stage):
            found.append(_cite_process(process, book))
    return tuple(dict.fromkeys(found))


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
    """No training was found."""
    if path is None:
        share = 0.6 if reading.seen and reading.began else 0.4
        return RouteVerdict(routes=("none",), confidence=share)
    assert span.submission is not None
    before = before or _find_earlier_route((path,), known)
    where = f"submission {span.submission.id}"
    if before:
        text = "weights of an earlier attempt; no further training was found"
        cited = (book.add_evidence("submission", where, text), *before.evidence)
        return before.model_copy(
            update={"confidence": round(before.confidence * GUESSED, 2), "evidence": cited}
        )
    said = book.add_evidence("submission", where, f"no training was found that wrote {path}")
    return RouteVerdict(routes=("unknown",), confidence=0.2, evidence=(said,))


def _read_recipe_log(
    span: AttemptSpan, reading: ProgramReading, known: Mapping[str, RouteVerdict], book: EvidenceBook
) -> RouteVerdict | None:
    """The harness's own agent, whose program is not in the workspace."""
    began = next((each for each in reading.began if each.launch.name == command_lines.RECIPE), None)
    if began is None:
        return None
    rounds = {match[1]: (match[2], match[3]) for each in span.printed for match in ROUND.finditer(each.text)}
    match = RECIPE_MODEL.search(span.submission.path) if span.submission else None
    number = match[1] if match else max(rounds, key=int, default="")
    stage, start = rounds.get(number, (match[2] if match else "", ""))
    if not stage:
        return RouteVerdict(routes=("none",), confidence=0.6)
    route = _weigh_stage(DetectedStage("policy-gradient" if stage == "grpo" else "sft", 0.95, ()), span)[0]
    folder = span.submission.path.rpartition("/")[0] if span.submission else "output"
    before = (
        _find_earlier_route((f"{folder}/{start}",), known) if start else _find_earlier_in_round(number, known)
    )
    evidence = [_cite_process(began.process, book)] if began.process else []
    for each in span.printed:
        for place, line in enumerate(each.text.split("\n")):
            if line.startswith(f"round {number}: "):
                evidence.append(book.add_evidence("log", each.cite_line(place), line, each.at))
    evidence += _cite_rollouts(span, (DetectedStage(route, 1.0, ()),), book)
    sure = 0.95 if start or before or number == "1" else 0.8
    routes = [*(before.routes if before else ()), route]
    return RouteVerdict(
        routes=_drop_repeats(routes), confidence=sure, evidence=tuple(dict.fromkeys(evidence))
    )


def _find_earlier_in_round(number: str, known: Mapping[str, RouteVerdict]) -> RouteVerdict | None:
    """Of the recipe's round, which may submit more than once, what it submitted before."""
    same = [each for path, each in known.items() if path.rpartition("/")[2].startswith(f"{number}-")]
    return same[-1] if same else None


# Hyperparameters and data of an attempt, from the code that ran and from its command lines.

MOST_SETTINGS = 60
ALL_COUNT = ("data", "optimizer")
"""Of which a training may have several."""


def find_settings(span: AttemptSpan, book: EvidenceBook) -> tuple[Setting, ...]:
    reading = programs.read_programs(span)
    trained = {stage.launch for stage in reading.trace.stages}
    noted = [each for each in reading.trace.noted.values() if not trained or each.launch in trained]
    kept: dict[tuple[str, str], Setting] = {}
    for each in noted:
        if _takes_precedence(each, noted):
            key = each.name, repr(each.value)
            cited = _cite_setting(each, span, reading, book)
            before = kept.get(key)
            source = "command" if each.on_command_line else "code"
            evidence = tuple(dict.fromkeys([*(before.evidence if before else ()), *cited]))[:3]
            kept[key] = Setting(
                name=each.name,
                value=each.value,
                source=before.source if before else source,
                evidence=evidence,
            )
    return tuple(sorted(kept.values(), key=lambda setting: setting.name)[:MOST_SETTINGS])


def _takes_precedence(each: NotedSetting, every: list[NotedSetting]) -> bool:
    """Whether no other value of the same name in the same program counts more."""
    rivals = [other for other in every if other.name == each.name and other.launch == each.launch]
    return each.name in ALL_COUNT or each.weight == max(other.weight for other in rivals)


def _cite_setting(
    each: NotedSetting, span: AttemptSpan, reading: ProgramReading, book: EvidenceBook
) -> list[str]:
    cited = []
    files = {source.path: source for source in span.sources}
    if each.place and each.place.path in files:
        line, text = source_files.parse_script(files[each.place.path]).locate_line(each.place.line)
        cited.append(book.add_evidence("code", files[each.place.path].cite_line(line), text))
    process = reading.began[each.launch].process if each.launch < len(reading.began) else None
    if process and (each.on_command_line or not cited):
        cited.append(book.add_evidence("event", f"process {process.pid}", process.command, process.began))
    return cited
