"""Formats numbers, times and untrusted texts for pages, and names the colours of figures."""

import json
import math
import unicodedata

from pydantic import JsonValue

from agent2rl.core.grading_records import EvalScore, Interval
from agent2rl.core.units import strip_path
from agent2rl.report.report_data import Activity

CONTAMINATED_MARK = "†"
DRAWN = f"·×–−{CONTAMINATED_MARK}"
"""Non-ASCII marks that the figures' font has."""
NO_NUMBER = "–"
JOINERS = "\u200c\u200d"
"""Invisible characters that emoji and some scripts need."""


def escape_invisible(text: str) -> str:
    """Spell out control and direction characters, so that a text cannot hide or reverse anything."""
    return text if text.isascii() and text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable() or character in "\n\t" or character in JOINERS:
        return character
    if unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def truncate_text(text: str, most: int) -> str:
    """Cut a text to `most` characters and say how many are missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def shorten_name(text: str, most: int = 60) -> str:
    """Shorten a name; of a local path only the last part stays."""
    return truncate_text(strip_path(text), most)


def make_drawable(text: str, most: int = 28) -> str:
    """Replace characters that a figure's font may lack, and cut the text."""
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
    """Format a moment of the agent's time as h:mm:ss."""
    if not math.isfinite(seconds):
        return NO_NUMBER
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_points(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def format_number(value: float) -> str:
    """Format whole numbers without decimals, others with four significant digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def format_share(value: float) -> str:
    if 0 < value < 0.001:
        return "<0.1%"
    return f"{value:.1%}" if 0 < value < 0.01 else f"{value:.0%}"


def format_p_value(p_value: float) -> str:
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def format_setting(value: JsonValue, most: int = 200) -> str:
    """Format a setting as it was written."""
    return truncate_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), most)


def pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_score(score: EvalScore) -> str:
    missing = f", {pluralize(score.missing, 'example')} missing" if score.missing else ""
    return f"{score.value:.2f} {format_interval(score.ci)}{missing}"


def format_interval(ci: Interval) -> str:
    return f"[{ci.low:.1f}, {ci.high:.1f}]"


# Colours of figures.

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
"""As drawn on white. All differ, so that a page can replace each by its own CSS variable."""
INK, DIM, LINE, CARD, ACCENT, HELD, BASE, BAD = (COLOURS[name] for name in list(COLOURS)[:8])
DOING: tuple[Activity, ...] = ("training", "thinking", "coding", "grading", "stalled", "idle")
SERIES = tuple(COLOURS[name] for name in ("accent", "held", "coding", "grading", "thinking", "stalled"))
"""Colours of lines that share a figure."""
