"""The names of colours that options are read by: WebShop's own (MIT), in the order they are tried in."""

from pathlib import Path

COLOURS = tuple(Path(__file__).with_name("colours.txt").read_text(encoding="utf-8").split())


def find_colour(option: str) -> str:
    """The first name that is anywhere in an option's value ("fashion" has ash), or the value itself."""
    return next((name for name in COLOURS if name in option), option)
