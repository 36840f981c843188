"""What a player of ALFWorld knows of a room from the texts it was given: what is where, and what is in reach.

It learns from the answer to each action. An action is a verb and the names it is about: `("take", "mug 1",
"shelf 2")`. Not covered: things inside other things (a spoon in a mug), which are not listed.
"""

import re
from collections.abc import Iterable

Action = tuple[str, ...]

_LISTED = re.compile(r"\ban? ([a-z]+ \d+)", re.IGNORECASE)
_COMMAND = re.compile(
    r"(go to|open|close|examine|use|take|move|put|clean|heat|cool) ([a-z]+ \d+)"
    r"(?: (?:from|to|in/on|with) ([a-z]+ \d+))?"
)
_SHUT = re.compile(r"\bis (?:closed|shut)\b", re.IGNORECASE)


def parse_listed_names(text: str) -> list[str]:
    """The things or fixtures that a text enumerates: "a mug 1, and a mug 2"."""
    return [name.lower() for name in _LISTED.findall(text)]


def kind_of(name: str) -> str:
    return name.partition(" ")[0]


def parse_command(command: str) -> Action:
    """What a command comes down to; nothing where it changes nothing that is kept in mind."""
    found = _COMMAND.fullmatch(command.strip())
    verb, *names = (part for part in found.groups() if part) if found else ("",)
    return ("put" if verb == "move" else verb, *names)


class RoomMemory:
    def __init__(self, fixtures: Iterable[str] = ()) -> None:
        self.fixtures = list(dict.fromkeys(fixtures))
        """Receptacles, those to prefer first, less any that turned out to be of no use."""
        self.contents: dict[str, list[str]] = {}
        """What is in or on each fixture that was looked at."""
        self.shut: set[str] = set()
        self.near: set[str] = set()
        """The fixtures known to be within reach."""
        self.held = ""
        self.held_from = ""
        self.treated: set[str] = set()
        """The things that were cleaned, heated or cooled, and those that cannot be."""

    def select_fixtures(self, kinds: Iterable[str]) -> list[str]:
        """The fixtures of some kinds, in the order of the kinds."""
        return [name for kind in kinds for name in self.fixtures if kind_of(name) == kind]

    def list_unseen(self) -> list[str]:
        return [name for name in self.fixtures if name not in self.contents]

    def find_known(self, kind: str) -> list[tuple[str, str]]:
        """The things of a kind whose places are known, each with its place; those within reach first."""
        places = sorted(self.contents.items(), key=lambda item: item[0] not in self.near)
        return [(thing, fixture) for fixture, things in places for thing in things if kind_of(thing) == kind]

    def record_result(self, action: Action, answer: str) -> None:
        """The action was done."""
        match action:
            case "go to", fixture:
                self.near = {fixture}
                self._record_contents(fixture, answer)
            case (("open" | "examine"), fixture):
                self._record_contents(fixture, answer)
            case "close", fixture:
                self.shut.add(fixture)
            case "take", thing, fixture:
                self.held, self.held_from = thing, fixture
                self._remove_thing(thing, fixture)
            case "put", thing, fixture:
                self.held = ""
                self.contents.setdefault(fixture, []).append(thing)
            case (("clean" | "heat" | "cool"), thing, _):
                self.treated.add(thing)

    def record_failure(self, action: Action) -> None:
        """Nothing happened: believe no longer what made the action seem possible."""
        match action:
            case "go to", fixture if fixture not in self.near:
                self.near.add(fixture)  # one cannot go to what stands in the same place
            case (("go to" | "open" | "examine"), fixture) | ("put", _, fixture):
                self._forget_fixture(fixture)
            case "take", thing, fixture:
                self._remove_thing(thing, fixture)
            case (("clean" | "heat" | "cool"), thing, _):
                self.treated.add(thing)  # it may be of a sort that cannot be: put it away, try another
            case "use", lamp:
                for fixture in self.contents:
                    self._remove_thing(lamp, fixture)

    def _record_contents(self, fixture: str, text: str) -> None:
        if _SHUT.search(text):
            self.shut.add(fixture)
        else:
            self.shut.discard(fixture)
            self.contents[fixture] = parse_listed_names(text)

    def _forget_fixture(self, fixture: str) -> None:
        self.fixtures = [name for name in self.fixtures if name != fixture]
        self.contents.pop(fixture, None)

    def _remove_thing(self, thing: str, fixture: str) -> None:
        self.contents[fixture] = [name for name in self.contents.get(fixture, []) if name != thing]
