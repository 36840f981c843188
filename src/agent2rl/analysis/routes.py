"""Which training produced a submission: read from the code that ran, weighed with what was seen from outside.

docs/design/routes.md says how, and how often it errs.
"""

import re
from collections.abc import Mapping, Sequence

from agent2rl.analysis.attempts import Ran, Span
from agent2rl.analysis.evidence import Book
from agent2rl.analysis.findings import Route, RouteVerdict
from agent2rl.analysis.programs import reading as programs
from agent2rl.analysis.programs import sources, tools
from agent2rl.analysis.programs.reading import Reading
from agent2rl.analysis.programs.trace import Made, Stage, covers, tidy
from agent2rl.analysis.programs.values import HOLE

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


def attribute(
    span: Span,
    earlier: Mapping[int, RouteVerdict],
    book: Book,
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
        said = book.note("submission", where, "its weights are the base model's")
        return RouteVerdict(routes=("none",), confidence=1.0, evidence=(said,))
    if submission is not None and submission.same_as is not None and submission.same_as in earlier:
        where, text = f"submission {submission.id}", f"the same weights as submission {submission.same_as}"
        before = earlier[submission.same_as]
        said = book.note("submission", where, text)
        return before.model_copy(update={"evidence": (said, *before.evidence)})
    reading = programs.read(span)
    if found := _recipe(span, reading, known, book):
        return found
    return _verdict(span, reading, known, book)


def _verdict(span: Span, reading: Reading, known: Mapping[str, RouteVerdict], book: Book) -> RouteVerdict:
    path = tidy(span.submission.path) if span.submission else None
    made, sure = _made(reading, path)
    stages = _in_time(span, reading, made.stages, path)
    before = _before(made.origins, known)
    evidence = _cited(span, reading, stages, book)
    if not stages:
        return _untrained(span, reading, before, known, path, book)
    routes: list[Route] = list(before.routes) if before else []
    confidence = sure * (before.confidence if before else 1.0)
    least = 1.0
    for stage in stages:
        route, share = _weighed(stage, span)
        least = min(least, share)
        routes.append(route)
    confidence *= least
    if not reading.seen:
        confidence *= BLIND if span.processes else UNSEEN
    confidence *= CUT if reading.trace.cut else 1.0
    if span.submission and span.submission.lineage == "foreign":
        confidence *= FOREIGN
    cited = (*(before.evidence if before else ()), *evidence, *_world(span, stages, book))
    return RouteVerdict(
        routes=_ordered(routes), confidence=round(confidence, 2), evidence=tuple(dict.fromkeys(cited))
    )


def _made(reading: Reading, path: str | None) -> tuple[Made, float]:
    """How what lies at a path was made, and how sure that is."""
    trace = reading.trace
    every = Made(tuple(trace.stages), tuple(dict.fromkeys(trace.loads)))
    if path is None:
        return every, 1.0
    if (made := trace.made(path)) and (made.stages or made.origins):
        return made, 1.0
    written = [made for made in trace.weights.values() if made.stages]
    if len({made.stages for made in written}) == 1:
        return written[-1], 0.95
    if written:
        return max(written, key=lambda made: made.launch), GUESSED
    return every, GUESSED if len(trace.stages) > 1 else 0.95


def _in_time(span: Span, reading: Reading, stages: Sequence[Stage], path: str | None) -> tuple[Stage, ...]:
    """Without what was started after the weights were written."""
    times = [each.at for each in span.weights if path and covers(tidy(each.path), path)]
    if not times:
        return tuple(stages)

    def late(stage: Stage) -> bool:
        process = reading.process(stage)
        return process is not None and process.began > max(times)

    return tuple(stage for stage in stages if not late(stage)) or tuple(stages)


def _before(origins: Sequence[str], known: Mapping[str, RouteVerdict]) -> RouteVerdict | None:
    """What the weights that a training went on from had behind them; where their path is known in part only,
    the newest that fits."""
    for origin in map(tidy, origins):
        tidied = [(tidy(path), verdict) for path, verdict in known.items()]
        fitting = [verdict for path, verdict in tidied if covers(origin, path) or covers(path, origin)]
        if not fitting:
            continue
        sure = len({verdict.routes for verdict in fitting}) == 1 or HOLE not in origin
        trained = tuple(route for route in fitting[-1].routes if route != "none")
        share = fitting[-1].confidence * (1.0 if sure else GUESSED)
        return fitting[-1].model_copy(update={"routes": trained, "confidence": share}) if trained else None
    return None


def _weighed(stage: Stage, span: Span) -> tuple[Route, float]:
    """A policy gradient is online where the world was played, as the counters have it."""
    counts = (span.rollouts.witnessed, span.rollouts.claimed)
    played = any(each.episodes or each.steps for each in counts)
    if stage.route not in ("policy-gradient", "online-rl"):
        return stage.route, stage.confidence
    if stage.route == "online-rl" or stage.world:
        return ("online-rl", stage.confidence) if played else ("policy-gradient", UNPLAYED)
    return ("online-rl", min(PLAYED, stage.confidence)) if played else (stage.route, stage.confidence)


def _world(span: Span, stages: Sequence[Stage], book: Book) -> tuple[str, ...]:
    if not any(stage.route in ("policy-gradient", "online-rl") for stage in stages):
        return ()
    counts = {"witnessed": span.rollouts.witnessed, "claimed": span.rollouts.claimed}
    said = [
        f"{each.episodes} episodes, {each.steps} steps {name}" for name, each in counts.items() if each.steps
    ]
    if not said and not any(stage.world for stage in stages):
        return ()
    return (book.note("event", f"rollouts of attempt {span.number}", "; ".join(said) or "none were counted"),)


def _ordered(routes: Sequence[Route]) -> tuple[Route, ...]:
    """Without repetition of what went on in the same way."""
    found: list[Route] = []
    for route in routes:
        if not found or found[-1] != route:
            found.append(route)
    if len(found) > 1:
        found = [route for route in found if route != "unknown"] or ["unknown"]
    return tuple(found[:MOST_ROUTES])


def _cited(span: Span, reading: Reading, stages: Sequence[Stage], book: Book) -> tuple[str, ...]:
    files = {source.path: source for source in span.sources}
    found: list[str] = []
    for stage in stages:
        for place in stage.places:
            if place.path in files:
                line, text = sources.script(files[place.path]).line(place.line)
                found.append(book.note("code", files[place.path].at(line), text))
        if process := reading.process(stage):
            found.append(_process(process, book))
    return tuple(dict.fromkeys(found))


def _process(process: Ran, book: Book) -> str:
    return book.note("event", f"process {process.pid}", process.command, process.began)


def _untrained(
    span: Span,
    reading: Reading,
    before: RouteVerdict | None,
    known: Mapping[str, RouteVerdict],
    path: str | None,
    book: Book,
) -> RouteVerdict:
    """No training was found."""
    if path is None:
        share = 0.6 if reading.seen and reading.began else 0.4
        return RouteVerdict(routes=("none",), confidence=share)
    assert span.submission is not None
    before = before or _before((path,), known)
    where = f"submission {span.submission.id}"
    if before:
        text = "weights of an earlier attempt; no further training was found"
        cited = (book.note("submission", where, text), *before.evidence)
        return before.model_copy(
            update={"confidence": round(before.confidence * GUESSED, 2), "evidence": cited}
        )
    said = book.note("submission", where, f"no training was found that wrote {path}")
    return RouteVerdict(routes=("unknown",), confidence=0.2, evidence=(said,))


def _recipe(
    span: Span, reading: Reading, known: Mapping[str, RouteVerdict], book: Book
) -> RouteVerdict | None:
    """The harness's own agent, whose program is not in the workspace."""
    began = next((each for each in reading.began if each.launch.name == tools.RECIPE), None)
    if began is None:
        return None
    rounds = {match[1]: (match[2], match[3]) for each in span.printed for match in ROUND.finditer(each.text)}
    match = RECIPE_MODEL.search(span.submission.path) if span.submission else None
    number = match[1] if match else max(rounds, key=int, default="")
    stage, start = rounds.get(number, (match[2] if match else "", ""))
    if not stage:
        return RouteVerdict(routes=("none",), confidence=0.6)
    route = _weighed(Stage("policy-gradient" if stage == "grpo" else "sft", 0.95, ()), span)[0]
    folder = span.submission.path.rpartition("/")[0] if span.submission else "output"
    before = _before((f"{folder}/{start}",), known) if start else _earlier_in_round(number, known)
    evidence = [_process(began.process, book)] if began.process else []
    for each in span.printed:
        for place, line in enumerate(each.text.split("\n")):
            if line.startswith(f"round {number}: "):
                evidence.append(book.note("log", each.line(place), line, each.at))
    evidence += _world(span, (Stage(route, 1.0, ()),), book)
    sure = 0.95 if start or before or number == "1" else 0.8
    routes = [*(before.routes if before else ()), route]
    return RouteVerdict(routes=_ordered(routes), confidence=sure, evidence=tuple(dict.fromkeys(evidence)))


def _earlier_in_round(number: str, known: Mapping[str, RouteVerdict]) -> RouteVerdict | None:
    """Of the recipe's round, which may submit more than once, what it submitted before."""
    same = [each for path, each in known.items() if path.rpartition("/")[2].startswith(f"{number}-")]
    return same[-1] if same else None
