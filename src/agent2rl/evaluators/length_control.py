"""Win rates against a reference, raw and at equal length, by AlpacaEval 2.0's published method.

A preference is from 0 (the reference is better) to 1 (the output is). The raw win rate is their mean. The
length-controlled one asks a logistic regression what the preferences would have been without any difference
in length. It explains a preference by

    how much longer the reference is (in standard deviations, through tanh), how difficult the instruction
    is, and the model itself

and is held down by two models that differ from the reference in length alone (the anchors), whose rows count
a tenth each. L1 regularisation, its strength chosen by five-fold cross-validation.

Not covered: where preferences and difficulties come from. The regression is scikit-learn's (agent2rl[judge]).
"""

import csv
import hashlib
import importlib.util
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent2rl.core.errors import GradingError, UserError

Floats = NDArray[np.float64]
COLUMNS = ("index", "preference", "std_delta_len", "instruction_difficulty")
OFFICIAL_SHA256 = "97aeec3f1c7de6dee6fd31fe66f1702623f4614c3efe1c6fc5f4927cd5fd674d"
"""Of the official df_gamed.csv."""
ANCHOR_WEIGHT = 0.1
FOLDS = 5
STRENGTHS = np.logspace(-4, 4, 10)
SEED = 123
TINY = 1e-15
MEND = "Install agent2rl[judge]."
FEWEST = 2 * FOLDS
"""Pairs from which on something can be fitted."""


@dataclass(frozen=True)
class ComparedPair:
    """One comparison with the reference."""

    preference: float
    """From 0 to 1."""
    shorter: int
    """By how many characters the output is shorter than the reference."""
    row: int
    """Which instruction it is, for its difficulty."""


@dataclass(frozen=True)
class InstructionDifficulties:
    """What the regression knows beforehand, from a file with the columns of the official df_gamed.csv."""

    by_row: Floats
    anchors: Floats
    """Rows of the explanation (as in `_build_features`), the preference last."""
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
                f"{path} cannot be read as instruction difficulties: {type(error).__name__}: {error}.",
                f"It is a CSV file with the columns {', '.join(COLUMNS)}.",
            ) from error
        if not len(values) or not np.isfinite(values).all():
            raise UserError(f"{path} has no rows, or some that are not numbers.")
        index, preference, longer, difficulty = values.T
        first = {int(row): place for place, row in reversed(list(enumerate(index)))}
        if set(first) != set(range(len(first))):
            raise UserError(f"{path} has not a difficulty for every instruction from 0 on.")
        by_row = difficulty[[first[row] for row in range(len(first))]]
        anchors = np.column_stack([np.tanh(longer), difficulty, np.zeros(len(values)), preference])
        return cls(by_row, anchors, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class LengthControlled:
    """What the regression makes of each pair, in order."""

    expected: Floats
    """The preference that is expected at equal length. Its mean is the length-controlled win rate."""
    residual: Floats
    """What was seen, less what the regression expects at the length as it is."""
    weights: tuple[float, float, float]
    """Of length, difficulty and the model itself."""
    strength: float
    """The regularisation that cross-validation chose (scikit-learn's C)."""


def compute_mean_percent(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Mean and standard error, in percent."""
    found = np.asarray(values, dtype=float)
    error = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return 100 * float(found.mean()), 100 * float(error)


def control_length(pairs: Sequence[ComparedPair], known: InstructionDifficulties) -> LengthControlled:
    if len(pairs) < FEWEST:
        raise GradingError(f"Length cannot be controlled for with fewer than {FEWEST} comparisons.")
    if max(pair.row for pair in pairs) >= len(known.by_row):
        raise GradingError("There are instructions without a difficulty.", "Name the file that has them all.")
    explained = _build_features(pairs, known)
    preferences = np.array([pair.preference for pair in pairs])
    model, strength = _fit_regression(
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
        strength=strength,
    )


def _build_features(pairs: Sequence[ComparedPair], known: InstructionDifficulties) -> Floats:
    shorter = np.array([float(pair.shorter) for pair in pairs])
    spread = shorter.std(ddof=1)
    if not spread and shorter.any():
        raise GradingError(
            "All outputs differ by the same length from the reference: it cannot be controlled for."
        )
    difficulty = known.by_row[[pair.row for pair in pairs]]
    return np.column_stack([np.tanh(shorter / (spread or 1.0)), difficulty, np.ones(len(pairs))])


def _fit_regression(explained: Floats, preferences: Floats, weights: Floats) -> tuple[Any, float]:
    """The regression of preferences, which are no classes: each row is of both, in shares."""
    linear, selection = _import_sklearn()
    doubled = np.concatenate([explained, explained])
    label = np.repeat([1, 0], len(preferences))
    share = np.concatenate([preferences, 1 - preferences]) * np.tile(weights, 2)
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
    best = float(STRENGTHS[int(gain.argmax())])
    return fit(slice(None), best), best


def require_sklearn() -> None:
    """Refuse before anything is spent on what could not be scored."""
    if importlib.util.find_spec("sklearn") is None:
        raise UserError("Length control needs scikit-learn, which is not installed.", MEND)


def _import_sklearn() -> tuple[Any, Any]:
    """Two modules of scikit-learn, which takes a second to load."""
    try:
        from sklearn import linear_model, model_selection
    except ImportError as error:
        raise UserError(
            f"Length control needs scikit-learn, and {error.name} is not installed.", MEND
        ) from error
    return linear_model, model_selection
