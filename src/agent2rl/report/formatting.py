"""How numbers, times and texts of others are put on a page, and the colours of figures, which pages know
by name.
"""

import json
import math
import unicodedata

from pydantic import JsonValue

from agent2rl.core.units import strip_path
from agent2rl.report.report_data import Activity

CONTAMINATED_MARK = "†"
DRAWN = f"·×–−{CONTAMINATED_MARK}"
"""Our own marks, which the figures' font has."""
NO_NUMBER = "–"
JOINERS = "\u200c\u200d"
"""Invisible, and part of how emoji and some scripts are written."""


def escape_invisible(text: str) -> str:
    """A text in which nothing hides or turns the line around: controls and marks of direction are spelled."""
    return text if text.isascii() and text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable() or character in "\n\t" or character in JOINERS:
        return character
    if unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def truncate_text(text: str, most: int) -> str:
    """At most so many characters, and how many more there were."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def shorten_name(text: str, most: int = 60) -> str:
    """What a run calls something; of a path of the machine that it ran on, its last part."""
    return truncate_text(strip_path(text), most)


def make_drawable(text: str, most: int = 28) -> str:
    """What a figure can show of a text, whose letters any font has."""
    plain = "".join(c if " " <= c <= "~" or c in DRAWN else "?" for c in text)
    return plain if len(plain) <= most else plain[: most - 2] + ".."


def format_duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return NO_NUMBER
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_clock(seconds: float) -> str:
    """A moment of the agent's time."""
    if not math.isfinite(seconds):
        return NO_NUMBER
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_points(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def format_number(value: float) -> str:
    """Whole numbers as such, others to four digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def format_share(value: float) -> str:
    if 0 < value < 0.001:
        return "<0.1%"
    return f"{value:.1%}" if 0 < value < 0.01 else f"{value:.0%}"


def format_p_value(p_value: float) -> str:
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def format_setting(given: JsonValue, most: int = 200) -> str:
    """A setting as it was written."""
    return truncate_text(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False), most)


# The colours of figures, which pages know by name.

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
