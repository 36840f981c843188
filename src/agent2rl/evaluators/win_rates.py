"""Win rates against a reference, raw and length-controlled, by AlpacaEval 2.0's published method.

A preference is between 0 (the reference is better) and 1 (the output is better). The raw win rate is the mean
preference. The length-controlled win rate is what a logistic regression predicts for equal lengths. Its
features are

    the length difference (in standard deviations, through tanh), the difficulty of the instruction, and the
    model itself

and it is regularised by two models that differ from the reference only in length (the anchors), with a weight
of 0.1 per row. It has an L1 penalty; five-fold cross-validation chooses its strength.

Not covered: where preferences and difficulties come from. The regression is scikit-learn's (agent2rl[judge]).

Also reads AlpacaEval's annotation files: a JSON list, plain or compressed with xz or gzip, of one model's
comparisons. An entry has the instruction, both outputs (`output_1` is the reference's, by default the
official one) and a preference from 1 (the reference) to 2 (the model). 0 is a tie; null or NaN is a failed
comparison.
"""

import csv
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import WinRates

# Win rates and length control

Floats = NDArray[np.float64]
COLUMNS = ("index", "preference", "std_delta_len", "instruction_difficulty")
OFFICIAL_SHA256 = "97aeec3f1c7de6dee6fd31fe66f1702623f4614c3efe1c6fc5f4927cd5fd674d"
"""The hash of the official df_gamed.csv."""
ANCHOR_WEIGHT = 0.1
FOLDS = 5
STRENGTHS = np.logspace(-4, 4, 10)
SEED = 123
TINY = 1e-15
INSTALL_HINT = "Install agent2rl[judge]."
FEWEST = 2 * FOLDS
"""Least number of pairs for a fit."""


@dataclass(frozen=True)
class ComparedPair:
    """One comparison with the reference."""

    preference: float
    """From 0 to 1."""
    shorter: int
    """How many characters the output is shorter than the reference."""
    row: int
    """Index of the instruction, for its difficulty."""


@dataclass(frozen=True)
class InstructionDifficulties:
    """Difficulties and anchors for the regression, read from a file like the official df_gamed.csv."""

    by_row: Floats
    anchors: Floats
    """Rows of features (as in `_build_features`) with the preference last."""
    sha256: str

    @property
    def official(self) -> bool:
        return self.sha256 == OFFICIAL_SHA256

    @property
    def source(self) -> str:
        return "official" if self.official else "not the official ones"

    @classmethod
    def from_csv(cls, path: Path) -> "InstructionDifficulties":
        try:
            data = path.read_bytes()
            rows = list(csv.DictReader(io.StringIO(data.decode("utf-8"))))
            values = np.array([[float(row[name]) for name in COLUMNS] for row in rows])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"Cannot read instruction difficulties from {path}: {type(error).__name__}: {error}.",
                f"It is a CSV file with the columns {', '.join(COLUMNS)}.",
            ) from error
        if not len(values) or not np.isfinite(values).all():
            raise UserError(f"{path} has no rows, or values that are not numbers.")
        index, preference, longer, difficulty = values.T
        first = {int(row): place for place, row in reversed(list(enumerate(index)))}
        if set(first) != set(range(len(first))):
            raise UserError(f"{path} does not have a difficulty for every instruction from 0 on.")
        by_row = difficulty[[first[row] for row in range(len(first))]]
        anchors = np.column_stack([np.tanh(longer), difficulty, np.zeros(len(values)), preference])
        return cls(by_row, anchors, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class LengthControlled:
    """The predictions of the regression for each pair, in order."""

    expected: Floats
    """The predicted preference at equal length. Its mean is the length-controlled win rate."""
    residual: Floats
    """The observed preference minus the predicted one at the actual length."""
    weights: tuple[float, float, float]
    """Of length, difficulty and the model itself."""


def compute_mean_percent(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Return mean and standard error in percent."""
    array = np.asarray(values, dtype=float)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else 0.0
    return 100 * float(array.mean()), 100 * float(error)


def control_length(pairs: Sequence[ComparedPair], known: InstructionDifficulties) -> LengthControlled:
    if len(pairs) < FEWEST:
        raise GradingError(f"Length cannot be controlled for with fewer than {FEWEST} comparisons.")
    if max(pair.row for pair in pairs) >= len(known.by_row):
        raise GradingError(
            "There are instructions without a difficulty.", "Use a file with the difficulties of all."
        )
    explained = _build_features(pairs, known)
    preferences = np.array([pair.preference for pair in pairs])
    model = _fit_regression(
        np.concatenate([known.anchors[:, :3], explained]),
        np.concatenate([known.anchors[:, 3], preferences]),
        np.concatenate([np.full(len(known.anchors), ANCHOR_WEIGHT), np.ones(len(pairs))]),
    )
    equal = explained.copy()
    equal[:, 0] = 0
    length, difficulty, itself = (float(weight) for weight in model.coef_[0])
    return LengthControlled(
        expected=model.predict_proba(equal)[:, 1],
        residual=preferences - model.predict_proba(explained)[:, 1],
        weights=(length, difficulty, itself),
    )


def _build_features(pairs: Sequence[ComparedPair], known: InstructionDifficulties) -> Floats:
    shorter = np.array([float(pair.shorter) for pair in pairs])
    spread = shorter.std(ddof=1)
    if not spread and shorter.any():
        raise GradingError(
            "All outputs differ by the same length from the reference: it cannot be controlled for."
        )
    difficulty = known.by_row[[pair.row for pair in pairs]]
    # As published, differences are divided by their spread and not centred.
    return np.column_stack([np.tanh(shorter / (spread or 1.0)), difficulty, np.ones(len(pairs))])


def _fit_regression(explained: Floats, preferences: Floats, weights: Floats) -> Any:
    """Fit a logistic regression to preferences: each row counts for both classes, in shares."""
    linear, selection = _import_sklearn()
    doubled = np.concatenate([explained, explained])
    label = np.repeat([1, 0], len(preferences))
    share = np.concatenate([preferences, 1 - preferences]) * np.tile(weights, 2)
    # Both copies of a row must be in the same fold.
    group = np.tile(np.arange(len(preferences)), 2)

    def fit(rows: Any, strength: float) -> Any:
        model = linear.LogisticRegression(
            C=strength, l1_ratio=1.0, solver="liblinear", fit_intercept=False, random_state=SEED
        )
        return model.fit(doubled[rows], label[rows], sample_weight=share[rows])

    gain = np.zeros(len(STRENGTHS))
    for train, test in selection.GroupKFold(FOLDS).split(doubled, label, group):
        rows = np.unique(group[test])
        for place, strength in enumerate(STRENGTHS):
            expected = np.clip(fit(train, strength).predict_proba(explained[rows])[:, 1], TINY, 1 - TINY)
            wanted = preferences[rows]
            likely = wanted * np.log(expected) + (1 - wanted) * np.log(1 - expected)
            gain[place] += float(np.mean(likely * weights[rows]))
    return fit(slice(None), float(STRENGTHS[int(gain.argmax())]))


def require_sklearn() -> None:
    """Raise UserError early if scikit-learn is missing, before anything is spent on the evaluation."""
    if importlib.util.find_spec("sklearn") is None:
        raise UserError("Length control needs scikit-learn, which is not installed.", INSTALL_HINT)


def _import_sklearn() -> tuple[Any, Any]:
    """Import two modules of scikit-learn late, because that takes a second."""
    try:
        from sklearn import linear_model, model_selection
    except ImportError as error:
        raise UserError(
            f"Length control needs scikit-learn, but {error.name} is not installed.", INSTALL_HINT
        ) from error
    return linear_model, model_selection


# AlpacaEval's annotation files and their win rates

PACKED = {b"\xfd7zXZ\0": lzma.decompress, b"\x1f\x8b": gzip.decompress}
"""The first bytes of compressed files."""
FORMAT = "The file must be a JSON list of entries with instruction, output_1, output_2 and preference."


Preference = Annotated[float, Field(ge=0, le=2)]


def _replace_nan(value: Any) -> Any:
    """Read NaN as a missing preference."""
    return None if isinstance(value, float) and math.isnan(value) else value


class JudgeAnnotation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    instruction: str
    output_1: str | None = None
    output_2: str
    preference: Annotated[Preference | None, BeforeValidator(_replace_nan)] = None
    generator_1: str = ""
    generator_2: str = ""

    @property
    def share(self) -> float | None:
        """From 0 (the reference) to 1 (the model)."""
        if self.preference is None:
            return None
        return (1.5 if self.preference == 0 else max(1.0, self.preference)) - 1


def read_annotations(path: Path) -> list[JudgeAnnotation]:
    found = load_json(path, FORMAT)
    try:
        rows = TypeAdapter(list[JudgeAnnotation]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where or 'the whole'}: {first['msg']}.", FORMAT) from error
    if len([row for row in rows if row.share is not None]) < 2:
        raise UserError(f"{path} has fewer than two preferences.", FORMAT)
    for models in ({row.generator_2 for row in rows}, {row.generator_1 for row in rows}):
        if len(models) > 1:
            raise UserError(
                f"{path} mixes models: {', '.join(sorted(models)[:5])}.", "Use one file per model."
            )
    text, times = Counter(row.instruction for row in rows).most_common(1)[0]
    if times > 1:
        raise UserError(f"{path} has {times} entries for {text[:60]!r}.", "Keep one of them.")
    return rows


def is_compressed(data: bytes) -> bool:
    return data.startswith(tuple(PACKED))


def load_json(path: Path, form: str) -> Any:
    """Load JSON from a file that may be compressed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", form) from error
    try:
        for sign, unpack in PACKED.items():
            data = unpack(data) if data.startswith(sign) else data
        return json.loads(data)
    except (lzma.LZMAError, zlib.error, OSError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}.", form) from error


def compute_win_rates(
    path: Path, references: Mapping[str, str], known: InstructionDifficulties | None
) -> WinRates:
    """Compute win rates. `references`: instruction → the reference's output, in the official order.

    Difficulties are assigned by the position of a row in the official order, as in the official code. If a
    file lacks rows, later rows get the difficulties of other instructions; published results have this too.
    """
    rows = read_annotations(path)
    if known is not None:
        rows = _sort_officially(rows, references, path)
    placed = [(place, row, row.share) for place, row in enumerate(rows)]
    judged = [(place, row, share) for place, row, share in placed if share is not None]
    raw, error = compute_mean_percent([share for _, _, share in judged])
    found = WinRates(
        model=rows[0].generator_2,
        n=len(judged),
        missing=len(rows) - len(judged),
        absent=max(0, len(references) - len(rows)),
        win_rate=raw,
        standard_error=error,
    )
    if known is None:
        return found
    pairs = [
        ComparedPair(share, len(_get_reference(row, references)) - len(row.output_2), place)
        for place, row, share in judged
    ]
    try:
        control = control_length(pairs, known)
    except GradingError as why:  # the raw rate is still valid
        return found.model_copy(update={"difficulties": f"not used: {why.message}"})
    value, spread = compute_mean_percent(control.expected)
    return found.model_copy(
        update={
            "length_controlled": value,
            "length_controlled_error": spread,
            "weights": control.weights,
            "difficulties": known.source,
            "difficulties_sha256": known.sha256,
        }
    )


def _sort_officially(
    rows: list[JudgeAnnotation], references: Mapping[str, str], path: Path
) -> list[JudgeAnnotation]:
    places = {instruction: place for place, instruction in enumerate(references)}
    for row in rows:
        if row.instruction not in places:
            raise UserError(f"{path}: {row.instruction[:60]!r} is not an official instruction.", FORMAT)
    return sorted(rows, key=lambda row: places[row.instruction])


def _get_reference(row: JudgeAnnotation, references: Mapping[str, str]) -> str:
    return references[row.instruction] if row.output_1 is None else row.output_1
