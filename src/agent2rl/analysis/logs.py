"""Extract training curves and settings from printed output. It is not trusted: an agent can fake a log."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from agent2rl.analysis.attempts import PrintedText
from agent2rl.analysis.findings import EvidenceBook, PrintedCurve, Setting
from agent2rl.analysis.log_readings import MetricReading, rank_metric, read_metrics, split_streams

# Settings. Lines with training metrics are skipped: their learning rate is only that of a step.

# The same names as for settings that are read from code.
NAMES = {
    "learning_rate": ("learning_rate", "lr", "learning rate", "actor_learning_rate", "peak_lr", "rate"),
    "epochs": ("num_train_epochs", "num_epochs", "epochs", "n_epochs", "max_epochs", "num epochs"),
    "batch_size": (
        *("per_device_train_batch_size", "train_batch_size", "batch_size", "micro_batch_size", "batch size"),
        "instantaneous batch size per device",
    ),
    "total_batch_size": ("total train batch size", "total_batch_size", "effective_batch_size"),
    "gradient_accumulation": ("gradient_accumulation_steps", "gradient accumulation steps", "grad_accum"),
    "steps": ("max_steps", "total optimization steps", "num_steps", "total_steps", "num_train_steps"),
    "examples": ("num examples", "num_examples", "num_train_examples", "train examples"),
    "beta": ("beta", "dpo_beta", "kl_coef", "init_kl_coef", "kl_coeff", "kl_beta"),
    "group_size": ("num_generations", "group_size", "n_samples_per_prompt", "num_return_sequences"),
    "temperature": ("temperature", "temp"),
    "top_p": ("top_p",),
    "max_tokens": ("max_new_tokens", "max_completion_length", "max_tokens", "max_response_length"),
    "max_length": ("max_seq_length", "max_length", "max_seq_len", "max_prompt_length"),
    "optimizer": ("optimizer", "optim"),
    "schedule": ("lr_scheduler_type", "lr_scheduler"),
    "lora_rank": ("lora_rank", "lora_r"),
    "lora_alpha": ("lora_alpha",),
    "lora_dropout": ("lora_dropout",),
    "weight_decay": ("weight_decay",),
    "warmup": ("warmup_steps", "num_warmup_steps", "warmup_ratio"),
    "gradient_clip": ("max_grad_norm", "grad_clip", "clip_grad_norm"),
    "clip": ("cliprange", "clip_range", "clip_eps", "epsilon"),
    "trainable_parameters": ("number of trainable parameters", "trainable params"),
    "seed": ("seed",),
    "data": ("dataset_name", "dataset", "data_path", "train_file", "train_data"),
    "model": ("model_name_or_path", "base_model", "pretrained_model"),
}
CANONICAL = {alias: name for name, aliases in NAMES.items() for alias in aliases}
WORDS = {"optimizer", "schedule", "data", "model"}
"""Settings with words as values; all others have numbers."""
_NAME = "|".join(re.escape(alias) for alias in sorted(CANONICAL, key=len, reverse=True))
# Every repetition is bounded: hostile output must not make a match take long.
SET = re.compile(
    rf"(?<![\w./-])(?P<flag>--)?(?P<name>{_NAME})(?:\ \([^)]{{1,60}}\))?"
    r"(?P<sign>['\"]?\s{0,8}[=:|]\s{0,8}|\s)"
    r"(?P<value>['\"]?(?:[-+]?(?:\d[\d,_]{0,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,4})?(?![\w.])"
    r"|[A-Za-z/.~][\w./@:+-]{0,199})['\"]?)",
    re.IGNORECASE | re.VERBOSE,
)
COURSE = re.compile(
    r"(?<![\w])(?:loss|reward|grad_norm|entropy)['\"]?\s?[=:]?\s{0,3}['\"]?[-+]?(?:\d|nan|inf)"
)
NUMBER = re.compile(r"[-+]?[\d,_.]+(?:[eE][-+]?\d+)?")
NOTHING = {
    "none",
    "null",
    "str",
    "int",
    "float",
    "optional",
    "true",
    "false",
    "nan",
    "self",
    "args",
    "config",
}
HINTS = (
    *(
        "lr",
        "rate",
        "epoch",
        "batch",
        "grad",
        "step",
        "examples",
        "beta",
        "kl_",
        "group",
        "generations",
        "n_",
    ),
    *("temp", "top_p", "max_", "optim", "lora", "decay", "warmup", "clip", "epsilon", "trainable", "seed"),
    *("data", "train_file", "model", "sequences"),
)
"""Only lines with one of these are searched, for speed."""
MOST_VALUES = 5
"""Limit on values of one setting, from several trainings in order."""
MOST_SETTINGS = 100


def extract_settings(printed: Sequence[PrintedText], book: EvidenceBook) -> tuple[Setting, ...]:
    """Return hyperparameters and data that programs printed, each value once, with its first line."""
    found: dict[tuple[str, float | str], Setting] = {}
    counts: dict[str, int] = {}
    for lines in split_streams(printed).values():
        for line in lines:
            lower = line.text.lower()
            if not any(hint in lower for hint in HINTS) or COURSE.search(line.text):
                continue
            for match in SET.finditer(line.text):
                name, value = CANONICAL[match["name"].lower()], _parse_value(match)
                full = counts.get(name, 0) >= MOST_VALUES or len(found) >= MOST_SETTINGS
                if value is None or full or (name, value) in found:
                    continue
                cited = book.add_evidence("log", line.where, line.text.strip(), line.printed.at)
                found[name, value] = Setting(name=name, value=value, source="log", evidence=(cited,))
                counts[name] = counts.get(name, 0) + 1
    return tuple(found.values())


def _parse_value(match: re.Match[str]) -> int | float | str | None:
    name, text = match["name"].lower(), match["value"].strip("'\"").rstrip(".,:")
    loose = not match["sign"].strip("'\" ")  # only a space
    recipe = name == "rate" and match.string[: match.start()].endswith(
        ", "
    )  # as the shipped recipe prints it
    if loose != recipe and not (loose and match["flag"]):
        return None
    kind = CANONICAL[name]
    return _parse_word(kind, text, match["value"]) if kind in WORDS else _parse_number(text)


def _parse_word(kind: str, text: str, written: str) -> str | None:
    """Return a word value, unless it is a keyword or a type name."""
    if {text.lower(), text.split(".")[0].lower()} & NOTHING:
        return None
    if kind in ("optimizer", "schedule"):
        return text.rsplit(".", 1)[-1].lower() or None
    return text if set("/.") & set(text) or written[0] in "'\"" else None


def _parse_number(text: str) -> int | float | None:
    if not NUMBER.fullmatch(text):
        return None
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    if not abs(number) < 1e18:
        return None
    return int(number) if number.is_integer() and not set("eE.") & set(text) else number


# Curves.

MOST_POINTS = 400
MOST_CURVES = 20
MOST_SERIES = 200
"""Limit on series that are compared with each other."""
MOST_KNOWN = 100
MOST_GAPS = 50
"""Limit on points without a finite value in a thinned series."""
SAME = 2e-3
"""Relative tolerance between two prints of a number."""

CurvePoint = tuple[float, float | None]


def extract_curves(printed: Sequence[PrintedText]) -> tuple[PrintedCurve, ...]:
    """Return the curves that trainings printed, one for each training, best-known names first."""
    found: list[_MetricSeries] = []
    for course in read_metrics(printed).values():
        found += _split_series(course)
    telling = [each for each in found if len(each.points) > 1 or None in (v for _, v in each.points)]
    telling.sort(key=lambda each: rank_metric(each.name))
    kept = _drop_duplicates(telling[:MOST_SERIES])[:MOST_CURVES]
    return tuple(
        PrintedCurve(name=each.name, where=each.where, points=thin_points(each.sorted)) for each in kept
    )


@dataclass
class _MetricSeries:
    name: str
    where: str
    stepped: bool
    points: list[CurvePoint] = field(default_factory=list)
    seen: set[tuple[float | None, float | None]] = field(default_factory=set)
    """To recognise a line that is printed again."""

    @cached_property
    def values(self) -> dict[float, float | None]:
        """Values by step. Use only when the series is complete."""
        return dict(self.points)

    @property
    def sorted(self) -> list[CurvePoint]:
        """Points by step. Lines of several processes may be slightly out of order."""
        return sorted(self.points, key=lambda point: point[0])

    def add_point(self, step: float | None, mark: float | None, value: float | None) -> None:
        self.points.append((len(self.points) + 1.0 if step is None else step, value))
        self.seen.add((mark, value))


def _split_series(course: Iterable[MetricReading]) -> list[_MetricSeries]:
    done: list[_MetricSeries] = []
    going: dict[str, _MetricSeries] = {}
    known: list[MetricReading] = []
    """Readings that were printed before. A restarted training may begin with the same values."""
    stage, epoch, offset = "", None, 0.0
    for reading in course:
        if _was_printed(reading, offset, going):
            known = [*known, reading] if len(known) < MOST_KNOWN else known
            continue
        last = _last_step(reading, going)
        within = reading.epoch is not None and epoch is not None and reading.epoch > epoch
        fell = last is not None and reading.step is not None and reading.step + offset < last
        if fell and within:
            offset = last or 0.0  # steps are counted per epoch
        back = reading.step is None and epoch is not None and (reading.epoch or epoch) < epoch
        other = bool(reading.stage and stage) and reading.stage != stage
        anew = back or other or (fell and not within and _is_restart(reading, offset, last or 0.0, going))
        if anew:
            going, offset = {}, 0.0
        for each in (*known, reading) if anew and not other else (reading,):
            stage, epoch = each.stage or stage, epoch if each.epoch is None else each.epoch
            _add_reading(each, offset, going, done)
        known = []
    return done


def _add_reading(
    reading: MetricReading, offset: float, going: dict[str, _MetricSeries], done: list[_MetricSeries]
) -> None:
    step = None if reading.step is None else reading.step + offset
    for name, value in reading.values.items():
        each = going.get(name)
        if each is None or each.stepped != (step is not None):
            each = going[name] = _MetricSeries(name, reading.line.where, step is not None)
            done.append(each)
        each.add_point(step, reading.epoch if step is None else step, value)


def _was_printed(reading: MetricReading, offset: float, going: dict[str, _MetricSeries]) -> bool:
    """Whether all values were printed before, for instance if a log is shown twice."""
    place = reading.epoch if reading.step is None else reading.step + offset
    return place is not None and all(
        name in going and (place, value) in going[name].seen for name, value in reading.values.items()
    )


def _last_step(reading: MetricReading, going: dict[str, _MetricSeries]) -> float | None:
    steps = [going[name].points[-1][0] for name in reading.values if name in going and going[name].stepped]
    return max(steps, default=None)


def _is_restart(reading: MetricReading, offset: float, last: float, going: dict[str, _MetricSeries]) -> bool:
    """Whether the step fell so far that a new training began, instead of a resumed one."""
    step = (reading.step or 0.0) + offset
    first = min(going[name].points[0][0] for name in reading.values if name in going)
    return step <= first or step < last / 2


def _drop_duplicates(found: Sequence[_MetricSeries]) -> list[_MetricSeries]:
    """Drop series that another one contains: a log is often both printed and written to a file."""
    kept: list[_MetricSeries] = []
    for each in sorted(found, key=lambda one: -len(one.points)):
        if not any(other.name == each.name and _contains_series(other, each) for other in kept):
            kept.append(each)
    chosen = {id(each) for each in kept}
    return [each for each in found if id(each) in chosen]


def _contains_series(longer: _MetricSeries, shorter: _MetricSeries) -> bool:
    """Whether most points of one are in the other. Checks a few of them first, for speed."""
    values, points = longer.values, shorter.points
    some = [points[place] for place in _spread_evenly(range(len(points)), 9)]
    return len(points) > 1 and all(
        sum(step in values and _values_match(values[step], value) for step, value in asked)
        >= 0.8 * len(asked) - 1
        for asked in (some, points)
    )


def _values_match(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    size = max(abs(one), abs(other))
    return abs(one - other) <= (SAME * size + 6e-4 if size > 0.05 else 0.02 * size)


def thin_points(points: Sequence[CurvePoint], most: int = MOST_POINTS) -> tuple[CurvePoint, ...]:
    """Return at most so many points, with the first, the last, the extremes, and some that are not finite."""
    if len(points) <= most:
        return tuple(points)
    numbers = [place for place, (_, value) in enumerate(points) if value is not None]
    gaps = [place for place, (_, value) in enumerate(points) if value is None]
    kept = {0, len(points) - 1, *_spread_evenly(gaps, MOST_GAPS)}
    if numbers:
        kept |= {
            min(numbers, key=lambda p: points[p][1] or 0.0),
            max(numbers, key=lambda p: points[p][1] or 0.0),
        }
    kept |= set(_spread_evenly(range(len(points)), most - len(kept)))
    return tuple(points[place] for place in sorted(kept))


def _spread_evenly(places: Sequence[int], count: int) -> Iterator[int]:
    """Yield `count` of them, evenly spread, with the first and the last."""
    if len(places) <= count:
        yield from places
    else:
        yield from (places[round(each * (len(places) - 1) / (count - 1))] for each in range(count))
