"""Read training metrics from printed output, each with its step and a canonical name.

The output may be hostile. Each character is examined a bounded number of times.

One rule covers dicts, JSON, `name=value` and prose: a number belongs to the words right before it. Tables and
CSV are read by their header, and an object over several lines as one line.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from agent2rl.analysis.attempts import PrintedText

# Lines of printed text, without escape codes and progress bars, grouped in streams.

LONGEST_LINE = 2000
"""Longer lines are cut."""
# `*+` gives nothing back once it has matched: hostile output must not make a search take long.
ESCAPES = re.compile(r"\x1b\[[0-?]*+[ -/]*+[@-~]?|\x1b\][^\x07\x1b\n]*+\x07?|\x1b[@-_]?|\x00|\ufeff")
UNQUOTED = {'\\"': '"', "\\t": "\t", "\\'": "'"}
END = re.compile(r"(?<!\\)\\n")
OPENED = re.compile(r"""^.*["']:\s?["']""")
"""What precedes a quoted text: its name, and everything before that."""
TOGETHER = ("agent.log", "transcript")
"""Parts with these name prefixes form one stream: the output of an agent's commands in order."""


class PrintedLine(NamedTuple):
    text: str
    printed: PrintedText
    number: int
    place: int
    """Index in its stream."""

    @property
    def where(self) -> str:
        return self.printed.cite_line(self.number)


def split_streams(printed: Sequence[PrintedText]) -> Mapping[str, Sequence[PrintedLine]]:
    """Return the lines of each log, in order."""
    return _split_streams(tuple(printed))


@lru_cache(2)  # several callers read the same attempt
def _split_streams(printed: tuple[PrintedText, ...]) -> Mapping[str, Sequence[PrintedLine]]:
    found: dict[str, list[PrintedLine]] = {}
    for each in printed:
        name = next((name for name in TOGETHER if each.name.startswith(name)), each.name)
        lines = found.setdefault(name, [])
        for number, text in _clean_lines(each.text):
            lines.append(PrintedLine(text, each, number, len(lines)))
    return found


def _clean_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(ESCAPES.sub("", text).split("\n")):
        if "\r" not in raw and "\\n" not in raw:
            if shown := raw[:LONGEST_LINE].rstrip():
                yield number, shown
            continue
        for piece in _unfold_line(raw):
            if shown := piece[:LONGEST_LINE].rstrip():
                yield number, shown


def _unfold_line(text: str) -> Iterator[str]:
    """Yield the states of a progress bar, and the lines of a text that was printed as JSON or by `repr`."""
    for piece in text.split("\r"):
        if "\\n" not in piece:
            yield piece
            continue
        first, *rest = END.split(piece)
        if opened := OPENED.match(first):
            yield opened[0]
            first = first[opened.end() :]
        for part in (first, *rest):
            for quoted, plain in UNQUOTED.items():
                part = part.replace(quoted, plain)
            yield part


# Canonical names of metrics.

PARTS = re.compile(r"[/_.]+")
ALIASES = {
    "loss": "loss",
    "losses": "loss",
    "total_loss": "loss",
    "lm_loss": "loss",
    "sft_loss": "loss",
    "ce_loss": "loss",
    "nll_loss": "loss",
    "nll": "loss",
    "policy_loss": "policy_loss",
    "pg_loss": "policy_loss",
    "actor_loss": "policy_loss",
    "value_loss": "value_loss",
    "vf_loss": "value_loss",
    "critic_loss": "value_loss",
    "reward": "reward",
    "rewards": "reward",
    "return": "reward",
    "returns": "reward",
    "reward_std": "reward_std",
    "rewards_std": "reward_std",
    "reward_stdev": "reward_std",
    "std_reward": "reward_std",
    "score": "score",
    "scores": "score",
    "success": "success_rate",
    "success_rate": "success_rate",
    "successes": "success_rate",
    "win_rate": "success_rate",
    "solve_rate": "success_rate",
    "solved": "success_rate",
    "pass_rate": "success_rate",
    "acc": "accuracy",
    "accuracy": "accuracy",
    "accuracies": "accuracy",
    "token_accuracy": "accuracy",
    "kl": "kl",
    "kl_div": "kl",
    "kl_divergence": "kl",
    "approx_kl": "kl",
    "ppo_kl": "kl",
    "kl_loss": "kl",
    "entropy": "entropy",
    "policy_entropy": "entropy",
    "entropy_loss": "entropy",
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "gnorm": "grad_norm",
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "ppl": "perplexity",
    "perplexity": "perplexity",
    "adv": "advantage",
    "advantage": "advantage",
    "advantages": "advantage",
    "margin": "margin",
    "margins": "margin",
    "clip_ratio": "clip_ratio",
    "clipfrac": "clip_ratio",
    "clip_frac": "clip_ratio",
    "pg_clipfrac": "clip_ratio",
    "completion_length": "length",
    "completions_length": "length",
    "response_length": "length",
}
ORDER = tuple(dict.fromkeys(ALIASES.values()))
"""Canonical names, the best known first."""
FIRST = ("loss", "reward", "score", "success_rate", "accuracy", "kl", "entropy", "grad_norm", "learning_rate")
EVALUATED = {"eval", "evaluation", "val", "valid", "validation", "test", "dev"}
FILLER_WORDS = {
    *(
        "train",
        "training",
        "mean",
        "avg",
        "average",
        "actor",
        "critic",
        "batch",
        "running",
        "ema",
        "smoothed",
    ),
    *("objective", "episode", "episodic", "ep", "rollout", "rollouts", "current", "cur", "step", "epoch"),
    *("rank0", "the", "now", "last", "global"),
}
"""Words that do not tell what is measured."""
TELLING = {
    *("loss", "reward", "rewards", "kl", "entropy", "acc", "accuracy", "accuracies", "ppl", "adv"),
    *("advantage", "advantages", "success", "return", "margin", "margins", "score", "logps", "clipfrac"),
}
STEPS = {
    *("step", "steps", "global_step", "training_step", "train_step", "optimizer_step", "_step", "it"),
    *("training/global_step", "train/global_step", "iter", "iteration", "update", "updates", "n_updates"),
    *("batch", "episode", "round", "total_timesteps"),
}
SHORTER = 3
"""Limit on the words of a name."""


@lru_cache(4096)
def canonical_metric(name: str) -> str | None:
    """Return the canonical name of a metric; the name itself if it only sounds like one, None if not."""
    name = name.lower().strip("_/.")
    if name in ALIASES:
        return ALIASES[name]
    parts = [part for part in PARTS.split(name) if part]
    evaluated = any(part in EVALUATED for part in parts[:-1])
    bare = "_".join(part for part in parts if part not in FILLER_WORDS and part not in EVALUATED)
    if bare in ALIASES:
        return f"eval_{ALIASES[bare]}" if evaluated else ALIASES[bare]
    return name if TELLING.intersection(parts) else None


@lru_cache(4096)
def match_metric(words: tuple[str, ...]) -> str | None:
    """Return the metric that the words before a number name: the longest name that they end in.

    Names of several words must be well known, as in `mean reward`, so that prose is not read.
    """
    for count in range(min(SHORTER, len(words)), 0, -1):
        name = "_".join(words[-count:])
        if count == 1 or name.lower() in ALIASES or _strip_filler_words(words[-count:]) in ALIASES:
            return canonical_metric(name)
    return None


def _strip_filler_words(words: tuple[str, ...]) -> str:
    return "_".join(word for word in (one.lower() for one in words) if word not in FILLER_WORDS | EVALUATED)


def rank_metric(name: str) -> int:
    """Return a sort key; smaller is better known."""
    plain = name.removeprefix("eval_")
    place = FIRST.index(plain) if plain in FIRST else len(FIRST) + (plain not in ORDER)
    return 2 * place + (plain != name)


# Lines with metrics.

NUMBER = re.compile(
    r"(?<![\w.@/])(?P<value>[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+|[-+]?(?:nan|inf(?:inity)?+))"
    r"(?:\s?/\s?(?P<of>\d++)(?![.\w]))?+(?P<percent>%)?+(?!\w)",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z_][\w/.@]*+")
BETWEEN = re.compile(r"[\s:=|,\"'\[\](){}*~≈-]*+(?:tensor\(\[?)?+")
"""What may be between a name and its number."""
BAR = re.compile(r"^\s*+\d{1,3}%\|[^|]*+\|\s*+(\d{1,9})/\d")
STAGE = re.compile(r"^\W*+([A-Za-z][\w-]{0,20}+): (?:step|iter|epoch)|\"stage\": ?\"([\w-]{1,20})\"")
RULE = re.compile(r"^[\s|+:=-]++$")
HINTS = tuple(
    sorted({*TELLING, "norm", "lr", "perplexity"} - {"rewards", "accuracy", "accuracies", "advantage"})
)
"""Only lines with one of these are searched, for speed."""
NEEDS_STEP = {"score", "success_rate", "accuracy", "learning_rate", "margin", "length"}
"""Without a step, these are as likely to be part of a report."""
SUMMARY_WORDS = ("train_runtime", "verdict", "baseline_score")
"""Words of lines that summarise a training, and of grading responses."""
BLOCK_LINES = 80
MOST_READINGS = 200_000
"""Limit on readings of a log."""
LONGEST_NAME = 160
MOST_NUMBERS = 200
"""Limit on numbers in a line."""
GREATEST = 1e30


class MetricReading(NamedTuple):
    line: PrintedLine
    step: float | None
    epoch: float | None
    values: dict[str, float | None]
    """None: not finite."""
    stage: str = ""


class _NamedNumber(NamedTuple):
    name: str | None
    step: str | None
    value: float | None
    of: float | None
    tight: bool
    """A sign such as `=` joins name and number."""


def read_metrics(printed: Sequence[PrintedText]) -> Mapping[str, Sequence[MetricReading]]:
    """Return the readings of each log, in order."""
    return _read_metrics(tuple(printed))


@lru_cache(2)  # several callers read the same attempt
def _read_metrics(printed: tuple[PrintedText, ...]) -> Mapping[str, Sequence[MetricReading]]:
    return {
        name: tuple(islice(_scan_readings(lines), MOST_READINGS))
        for name, lines in split_streams(printed).items()
    }


def _scan_readings(lines: Iterable[PrintedLine]) -> Iterator[MetricReading]:
    table: _LogTable | None = None
    bar: tuple[float, int] | None = None
    for count, line in enumerate(_join_blocks(lines)):
        if "%|" in line.text and (seen := BAR.match(line.text)):
            bar = (float(seen[1]), count)
        if table and (row := table.read_row(line)):
            yield row
            continue
        lower = line.text.lower()
        if not any(hint in lower for hint in HINTS):
            continue
        if header := _parse_header(line.text):
            table = header
            continue
        if found := _read_line(line):
            near = bar is not None and count - bar[1] <= 3 and found.step is None
            yield found._replace(step=bar[0]) if bar and near else found


def _read_line(line: PrintedLine) -> MetricReading | None:
    text = line.text
    if any(word in text for word in SUMMARY_WORDS):
        return None
    step = epoch = lone = None
    values: dict[str, float | None] = {}
    sure = "{" in text
    for found in _find_numbers(text):
        if found.step == "epoch":
            epoch = found.value if epoch is None else epoch
        elif found.step:
            step = found.value if step is None else step
        elif found.name and found.name not in values:
            ratio = found.of and found.value is not None and found.name == "success_rate"
            values[found.name] = found.value / found.of if ratio and found.value and found.of else found.value
            sure = sure or (found.tight and found.name not in NEEDS_STEP)
        elif found.of and found.name is None and lone is None and "%|" not in text[:20]:
            lone = found.value
    step = lone if step is None and epoch is None else step
    bare = step is None and epoch is None
    if not values or (bare and not (sure or len(values) > 1)) or (bare and not set(values) - NEEDS_STEP):
        return None
    stage = STAGE.search(text) if ": " in text else None
    return MetricReading(line, step, epoch, values, (stage[1] or stage[2]) if stage else "")


def _find_numbers(text: str) -> Iterator[_NamedNumber]:
    end = 0
    for match in islice(NUMBER.finditer(text), MOST_NUMBERS):
        name, step, tight = _name_number(text[max(end, match.start() - LONGEST_NAME) : match.start()])
        end = match.end()
        yield _NamedNumber(
            name,
            step,
            _parse_value(match["value"]),
            _parse_value(match["of"]) if match["of"] else None,
            tight,
        )


@lru_cache(4096)  # the lines of a training are alike
def _name_number(before: str) -> tuple[str | None, str | None, bool]:
    """Return the metric or the step that the text before a number names, and whether a sign joins them."""
    words = list(WORD.finditer(before))
    if not words:
        return None, None, False
    sign = before[words[-1].end() :]
    if not BETWEEN.fullmatch(sign):
        return None, None, False
    last = [word[0] for word in words[-SHORTER - 1 :]]
    last = last[:-1] if last[-1].lower() == "tensor" and len(last) > 1 else last
    step = _classify_step(last)
    return None if step else match_metric(tuple(last[-SHORTER:])), step, ":" in sign or sign == "="


def _classify_step(words: Sequence[str]) -> str | None:
    last = words[-1].lower() if words else ""
    if last in ("epoch", "epochs", "train/epoch"):
        return "epoch"
    return "step" if last in STEPS or last.split("/")[-1] in STEPS else None


def _parse_value(text: str) -> float | None:
    """Return the number; None if it is not finite or too large to compute with."""
    value = float(text)
    return value if abs(value) < GREATEST else None


def _join_blocks(lines: Iterable[PrintedLine]) -> Iterator[PrintedLine]:
    """Join an object that is printed over several lines into one line."""
    held: list[PrintedLine] = []
    for line in lines:
        bare = line.text.strip()
        if bare == "{":
            yield from held
            held = [line]
        elif not held:
            yield line
        elif bare.startswith("}"):
            joined = " ".join(each.text.strip() for each in held)
            yield held[0]._replace(text=f"{joined} }}")
            held = []
        else:
            held.append(line)
            if len(held) > BLOCK_LINES:
                yield from held
                held = []
    yield from held


class _LogTable(NamedTuple):
    """A printed table, by its header."""

    separator: str | None
    """None: white space."""
    names: tuple[str | None, ...]

    def read_row(self, line: PrintedLine) -> MetricReading | None:
        cells = _split_cells(line.text, self.separator)
        if len(cells) != len(self.names) or RULE.match(line.text):
            return None
        step = epoch = None
        values: dict[str, float | None] = {}
        for name, cell in zip(self.names, cells, strict=True):
            if name is None or not (number := NUMBER.fullmatch(cell)) or number["of"]:
                continue
            value = _parse_value(number["value"])
            if name == "epoch":
                epoch = value
            elif name == "step":
                step = value if step is None else step
            else:
                values.setdefault(name, value)
        return MetricReading(line, step, epoch, values) if values else None


def _parse_header(text: str) -> _LogTable | None:
    """Parse a line of names: a metric, beside a step or another metric."""
    if NUMBER.search(text):
        return None
    for separator in ("|", ",", "\t", None):
        cells = _split_cells(text, separator)
        if not 2 <= len(cells) <= 60 or any(len(cell) > 60 for cell in cells):
            continue
        names = tuple(_name_column(cell) for cell in cells)
        known = [name for name in names if name]
        if len(known) >= 2 and set(known) - {"step", "epoch"} and 2 * len(known) > len(cells):
            return _LogTable(separator, names)
    return None


def _name_column(cell: str) -> str | None:
    words = WORD.findall(cell)
    if not words or len(words) > 3 or not cell.strip(" *_`\"'").replace(" ", "").isascii():
        return None
    return _classify_step(words) or canonical_metric("_".join(words))


def _split_cells(text: str, separator: str | None) -> list[str]:
    text = text.replace("│", "|").replace("┃", "|").strip()
    if separator == "|":
        text = text.strip("|")
    return [cell.strip(" *`\"'") for cell in text.split(separator)]
