"""ALFWorld's commands as functions, for models that call tools. Slicing is left out: no task asks for it.

The docstrings are what a model reads: Google style, as transformers takes them apart.
"""


def go_to(place: str) -> str:
    """Go to a place.

    Args:
        place: Its name and number, such as "cabinet 1".
    """
    return f"go to {place}"


def open_place(place: str) -> str:
    """Open a place that is closed, and see what is in it.

    Args:
        place: Its name and number, such as "fridge 1".
    """
    return f"open {place}"


def close_place(place: str) -> str:
    """Close a place.

    Args:
        place: Its name and number, such as "fridge 1".
    """
    return f"close {place}"


def take(thing: str, place: str) -> str:
    """Take a thing. You can hold one only.

    Args:
        thing: Its name and number, such as "mug 2".
        place: Where it is, such as "shelf 1".
    """
    return f"take {thing} from {place}"


def put(thing: str, place: str) -> str:
    """Put down the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: Where to put it, such as "shelf 1".
    """
    return f"move {thing} to {place}"


def clean(thing: str, place: str) -> str:
    """Clean the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: What to clean it with, such as "sinkbasin 1".
    """
    return f"clean {thing} with {place}"


def heat(thing: str, place: str) -> str:
    """Heat the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: What to heat it with, such as "microwave 1".
    """
    return f"heat {thing} with {place}"


def cool(thing: str, place: str) -> str:
    """Cool the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: What to cool it with, such as "fridge 1".
    """
    return f"cool {thing} with {place}"


def use(thing: str) -> str:
    """Turn on a lamp.

    Args:
        thing: Its name and number, such as "desklamp 1".
    """
    return f"use {thing}"


def examine(name: str) -> str:
    """Look closely at a place, or at the thing that you hold.

    Args:
        name: Its name and number, such as "drawer 3".
    """
    return f"examine {name}"


def look() -> str:
    """Look around where you are."""
    return "look"


def inventory() -> str:
    """See what you hold."""
    return "inventory"


TOOLS = (go_to, open_place, close_place, take, put, clean, heat, cool, use, examine, look, inventory)
