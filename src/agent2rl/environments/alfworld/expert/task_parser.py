"""What a task sentence of ALFWorld asks for, read from its words alone.

The official games have twelve phrasings, all of them covered. Not covered: people's own descriptions of the
tasks, which ALFWorld can show instead ("Grab the cup by the window and …").
"""

import re
from dataclasses import dataclass

_KIND = r"(?:(?:the|some|an?) )?(?P<kind>\w+)"
_LAMP = r"(?:(?:the|an?) )?(?P<lamp>\w+)"
_PLACE = r"(?:in|on) (?:(?:the|an?) )?(?P<place>\w+)"
_PHRASINGS = tuple(
    re.compile(rf"\b{phrasing}", re.IGNORECASE)
    for phrasing in (
        rf"examine {_KIND} with {_LAMP}",
        rf"look at {_KIND} under {_LAMP}",
        rf"(?P<verb>clean|heat|cool) {_KIND} and put it {_PLACE}",
        rf"put (?:some|an?|the) (?P<state>clean|hot|cool) (?P<kind>\w+) {_PLACE}",
        rf"find (?P<two>two) (?P<kind>\w+) and put them {_PLACE}",
        rf"put (?P<two>two) (?P<kind>\w+) {_PLACE}",
        rf"put {_KIND} {_PLACE}",
    )
)
_VERBS = {"clean": "clean", "hot": "heat", "heat": "heat", "cool": "cool"}

APPLIANCES = {"clean": ("sinkbasin", "sink"), "heat": ("microwave",), "cool": ("fridge",)}
"""Where each treatment is done."""


@dataclass(frozen=True)
class ParsedTask:
    """Things of a kind, treated or not, are to be put in a kind of place, or held where a lamp is lit."""

    kind: str
    place: str = ""
    lamp: str = ""
    verb: str = ""
    """The treatment, if there is one: a key of `APPLIANCES`."""
    count: int = 1

    @property
    def appliances(self) -> tuple[str, ...]:
        return APPLIANCES.get(self.verb, ())


def parse_task(text: str) -> ParsedTask | None:
    """The errand that a text states, whatever stands around it; None where no phrasing is recognised."""
    for phrasing in _PHRASINGS:
        found = phrasing.search(text)
        if found:
            words = {name: word.lower() for name, word in found.groupdict().items() if word}
            return ParsedTask(
                kind=words["kind"],
                place=words.get("place", ""),
                lamp=words.get("lamp", ""),
                verb=_VERBS.get(words.get("verb", words.get("state", "")), ""),
                count=2 if "two" in words else 1,
            )
    return None
