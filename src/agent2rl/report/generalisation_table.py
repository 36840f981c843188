"""Tables and notes on how models generalise and how they play a world, for all report formats."""

from collections.abc import Iterator, Sequence

from agent2rl.analysis.findings import (
    Generalisation,
    GeneralisationFigure,
    MeasuredFigure,
    ModelGeneralisation,
)
from agent2rl.analysis.generalisation import NO_WORLD
from agent2rl.report import formatting, headline
from agent2rl.report.formatting import NO_NUMBER

COLUMNS = ("figure", "untouched", "best")
FIGURE_NAMES: dict[GeneralisationFigure, str] = {
    "train_gap": "Gap between these two, points",
    "win_rate": "Episodes won",
    "steps_to_success": "Actions until an episode is won",
    "steps_per_episode": "Actions of an episode",
    "invalid_action_rate": "Invalid actions",
}
PLAYED = tuple(FIGURE_NAMES)[1:]
"""Those that only a world has."""


def build_generalisation_rows(found: Generalisation | None) -> list[tuple[str, str, str]]:
    """Return name, value of the untouched model and of the best submission; without what neither has."""
    if found is None:
        return []
    unseen = "Score on held-out examples" if found.unseen_split == "heldout" else "Score on test examples"
    both = (found.baseline, found.best)
    scores = [
        ("Score on training examples", [each.train_score for each in both]),
        (unseen, [each.unseen_score for each in both]),
    ]
    rows = [
        (name, ["" if value is None else f"{value:.2f}" for value in values])
        for name, values in (scores if any(each.train_score is not None for each in both) else [])
    ]
    rows += [(label, [_format_figure(each, name) for each in both]) for name, label in FIGURE_NAMES.items()]
    return [
        (name, before or NO_NUMBER, after or NO_NUMBER) for name, (before, after) in rows if before or after
    ]


def _format_figure(model: ModelGeneralisation, name: GeneralisationFigure) -> str:
    figure: MeasuredFigure | None = getattr(model, name)
    if figure is None:
        return ""
    scale, unit = (100, "%") if name.endswith("_rate") else (1, "")
    sign = "+" if name == "train_gap" else ""
    value = f"{scale * figure.value:{sign}.2f}{unit}"
    if figure.ci is None:
        return value
    return f"{value} [{scale * figure.ci.low:{sign}.1f}, {scale * figure.ci.high:{sign}.1f}]"


def build_generalisation_notes(found: Generalisation | None) -> list[str]:
    """Return why figures are not known, and how those that are were measured."""
    if found is None:
        return []
    reasons: dict[tuple[str, str], list[GeneralisationFigure]] = {}
    for name in FIGURE_NAMES:
        before, after = found.baseline.unknown.get(name), found.best.unknown.get(name)
        if before == after:
            whose = {"": before}
        else:
            whose = {" of the untouched model": before, " of the best submission": after}
        for owner, reason in whose.items():
            if reason:
                reasons.setdefault((owner, reason), []).append(name)
    notes = [_explain_unknown(names, owner, reason) for (owner, reason), names in reasons.items()]
    return [*notes, *_describe_episodes(found)]


def _explain_unknown(names: Sequence[GeneralisationFigure], owner: str, reason: str) -> str:
    labels = ["gap between training and unseen examples"] if "train_gap" in names else []
    if set(PLAYED) <= set(names):
        labels.append("episodes and their actions")
    else:
        labels += [FIGURE_NAMES[name].lower() for name in names if name != "train_gap"]
    listed = ", ".join(labels)
    known = "none" if reason == NO_WORLD else "not known"
    return f"{listed[0].upper()}{listed[1:]}{owner}: {known}, because {reason}."


def _describe_episodes(found: Generalisation) -> Iterator[str]:
    if found.episodes_split is None:
        return
    counts = [each.win_rate.n for each in (found.baseline, found.best) if each.win_rate]
    yield (
        f"Episodes: the first of each example on the {headline.SPLITS[found.episodes_split]} split, "
        f"{' and '.join(map(str, counts))} of them. An action is invalid if the world cannot take it."
    )
    training, graded = found.training_win_rate, found.best.win_rate
    if training and graded:
        yield (
            f"In training, {100 * training.value:.2f}% of the last {training.n} episodes that the harness "
            "served or replayed were won: "
            f"{formatting.format_points(100 * (training.value - graded.value))} points against the graded "
            "ones. Those were played by whatever model the agent was training, with its sampling."
        )
