"""The colours of figures, which pages know by name."""

from agent2rl.report.report_data import Activity

COLOURS = {
    "ink": "#1c2127",
    "dim": "#58606b",
    "line": "#e2e3e0",
    "card": "#ffffff",
    "accent": "#1559a8",
    "held": "#a3357c",
    "base": "#6c7480",
    "bad": "#b3261e",
    "training": "#3a7bc4",
    "thinking": "#8c6bc2",
    "coding": "#2a9187",
    "grading": "#d39a2d",
    "stalled": "#cf4a3c",
    "idle": "#c8ccd2",
}
"""As they are drawn, on white. No two are the same, so that a page can put its own in their place."""
INK, DIM, LINE, CARD, ACCENT, HELD, BASE, BAD = (COLOURS[name] for name in list(COLOURS)[:8])
DOING: tuple[Activity, ...] = ("training", "thinking", "coding", "grading", "stalled", "idle")
SERIES = tuple(COLOURS[name] for name in ("accent", "held", "coding", "grading", "thinking", "stalled"))
"""Of lines that are shown together."""
