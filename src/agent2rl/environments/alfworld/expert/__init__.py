"""An expert that plays ALFWorld from the texts alone, for demonstrations and as a baseline.

    expert, episode = AlfworldExpert(), AlfworldEpisode(game)
    while not episode.won:
        episode.step(expert.act(episode.observation))

It parses the task, remembers what it has seen, and searches first where such things are usually found
(counted in the training games only). It is deterministic. After winning, further calls bring more things of
the kind. `instead` tells it that another action was done, and it continues from there. Not covered: things
inside other things, and tasks in free words.

This must stay a folder: a run without `--expert full` hides it from the agent, compiled files included.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent2rl.environments.alfworld.episode import NOTHING

# How often each kind of thing is found in each kind of fixture, for the order of the search

_COUNTED = """
alarmclock: diningtable 75 desk 56 countertop 52 dresser 46 sidetable 36 shelf 11
apple: fridge 41 diningtable 34 sidetable 31 microwave 24 garbagecan 24 countertop 20 sinkbasin 17
book: bed 59 coffeetable 50 desk 40 diningtable 33 countertop 33 sofa 24 dresser 23 armchair 14 tvstand 8
    sidetable 8 cabinet 3 drawer 3 shelf 1
bowl: desk 78 coffeetable 43 fridge 33 diningtable 33 dresser 32 tvstand 29 countertop 16 shelf 9
    sidetable 7 sinkbasin 6 microwave 5 cabinet 5
box: diningtable 59 desk 56 coffeetable 31 sofa 25 dresser 10 ottoman 10 tvstand 9 sidetable 6 cabinet 6
    shelf 5 armchair 3
bread: diningtable 50 countertop 33 fridge 17 sidetable 9 garbagecan 1 microwave 1
butterknife: diningtable 51 countertop 39 sidetable 27 sinkbasin 10 drawer 3
candle: sidetable 63 countertop 46 toilet 45 coffeetable 39 cart 35 tvstand 33 diningtable 30 dresser 27
    shelf 23 cabinet 13 drawer 9
cd: diningtable 64 dresser 41 desk 40 sidetable 27 garbagecan 15 armchair 11 drawer 9 cabinet 8 safe 7
    shelf 4
cellphone: bed 42 desk 40 diningtable 40 coffeetable 36 ottoman 35 dresser 35 tvstand 30 countertop 27
    sofa 25 safe 23 sidetable 19 armchair 17 drawer 5 shelf 5 cabinet 1
cloth: bathtubbasin 64 dresser 35 cart 33 countertop 27 cabinet 20 shelf 15 drawer 10 toilet 6 sinkbasin 6
    sidetable 5
creditcard: desk 39 dresser 36 diningtable 34 tvstand 32 sofa 31 countertop 28 coffeetable 27 sidetable 22
    armchair 19 ottoman 19 shelf 10 drawer 9
cup: fridge 35 diningtable 33 sidetable 28 sinkbasin 17 countertop 17 microwave 14 shelf 6 cabinet 3
desklamp: sidetable 42 desk 40 dresser 36 coffeetable 16 shelf 4
dishsponge: bathtubbasin 40 cart 30 diningtable 30 countertop 21 toilet 15 sinkbasin 14 sidetable 13
    garbagecan 10 shelf 10 drawer 7 cabinet 4
egg: fridge 40 diningtable 27 sidetable 26 garbagecan 23 sinkbasin 22 microwave 21 countertop 19
fork: diningtable 47 countertop 32 sidetable 25 sinkbasin 16 drawer 7
glassbottle: diningtable 37 countertop 18 sinkbasin 17 fridge 15 garbagecan 14 shelf 8 cabinet 4
handtowel: handtowelholder 79 countertop 5
kettle: diningtable 23 stoveburner 18 countertop 16 cabinet 3 sinkbasin 3 shelf 1
keychain: desk 40 safe 38 dresser 36 coffeetable 31 diningtable 30 tvstand 29 sidetable 24 ottoman 20 sofa
    16 armchair 12 drawer 8 shelf 8 countertop 6 cabinet 2
knife: diningtable 48 countertop 34 sidetable 14 sinkbasin 8 drawer 6
ladle: diningtable 51 countertop 30 sinkbasin 4 drawer 4 cabinet 4
laptop: bed 70 countertop 48 diningtable 40 desk 36 coffeetable 32 sofa 31 tvstand 17 dresser 17 ottoman
    14 armchair 5 sidetable 4
lettuce: diningtable 50 fridge 35 countertop 27 sidetable 24 sinkbasin 9 garbagecan 2
mug: desk 63 coffeemachine 39 dresser 37 diningtable 29 fridge 26 sidetable 26 countertop 25 microwave 15
    sinkbasin 13 shelf 7 cabinet 3
newspaper: diningtable 44 dresser 40 coffeetable 28 sofa 28 ottoman 25 sidetable 14 armchair 12 tvstand 12
    shelf 11 drawer 1 garbagecan 1
pan: countertop 25 stoveburner 22 diningtable 10 fridge 7 cabinet 1
pen: desk 58 diningtable 57 coffeetable 50 dresser 47 countertop 29 sidetable 28 tvstand 24 shelf 10
    drawer 6 garbagecan 5
pencil: diningtable 49 desk 49 coffeetable 42 dresser 37 sidetable 34 countertop 26 tvstand 16 shelf 11
    garbagecan 10 drawer 6
peppershaker: sidetable 36 diningtable 36 countertop 24 shelf 10 cabinet 5 drawer 5
pillow: bed 92 sofa 70 armchair 14 ottoman 2
plate: diningtable 37 coffeetable 27 countertop 21 tvstand 18 fridge 15 dresser 10 sidetable 9 shelf 6
    cabinet 5 sinkbasin 4 microwave 1
pot: stoveburner 33 countertop 11 diningtable 10 fridge 7 shelf 1 sinkbasin 1 cabinet 1
potato: fridge 41 diningtable 35 countertop 22 sidetable 21 sinkbasin 20 microwave 19 garbagecan 12
remotecontrol: countertop 52 desk 52 coffeetable 38 dresser 35 tvstand 34 diningtable 32 sofa 26 ottoman
    19 sidetable 16 armchair 11 drawer 4 shelf 3
saltshaker: diningtable 38 sidetable 36 countertop 24 shelf 9 cabinet 4 drawer 4
soapbar: sidetable 47 countertop 34 bathtubbasin 31 cart 28 toilet 28 sinkbasin 19 shelf 15 garbagecan 13
    cabinet 12 drawer 8
soapbottle: diningtable 44 dresser 42 toilet 38 countertop 27 sidetable 25 cart 24 garbagecan 18 shelf 15
    cabinet 5 drawer 1
spatula: diningtable 48 countertop 32 sinkbasin 16 sidetable 10 drawer 7
spoon: diningtable 44 sidetable 30 countertop 28 sinkbasin 20 drawer 9
spraybottle: sidetable 62 cart 54 toilet 43 countertop 40 dresser 34 diningtable 33 shelf 20 garbagecan 20
    cabinet 8
statue: coffeetable 45 desk 44 diningtable 44 dresser 37 tvstand 37 countertop 28 sidetable 23 shelf 19
tissuebox: coffeetable 57 desk 54 countertop 54 diningtable 39 cart 37 tvstand 29 shelf 22 sidetable 20
    dresser 17 cabinet 10 drawer 6 toilet 5 garbagecan 1
toiletpaper: toilet 42 sidetable 38 countertop 37 dresser 36 cart 34 toiletpaperhanger 23 shelf 19
    garbagecan 18 cabinet 11 drawer 8 bathtubbasin 1
tomato: fridge 51 diningtable 41 sidetable 26 countertop 23 garbagecan 18 sinkbasin 12
vase: dresser 62 coffeetable 45 desk 40 diningtable 38 tvstand 31 countertop 27 sidetable 25 shelf 22
    cabinet 6
watch: tvstand 46 desk 44 diningtable 42 dresser 38 coffeetable 37 sidetable 22 drawer 9 shelf 5
wateringcan: coffeetable 54 shelf 21 sidetable 14
winebottle: diningtable 48 countertop 32 garbagecan 16 shelf 6 cabinet 4 fridge 3 sidetable 2
"""

SLOW = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
"""Fixtures that usually must be opened, so that looking takes two steps."""

_ANYTHING = 0.1
"""Percentage for pairs that were never counted."""


def _parse_counts(text: str) -> dict[str, dict[str, float]]:
    rates: dict[str, dict[str, float]] = {}
    for entry in text.replace("\n    ", " ").strip().splitlines():
        kind, _, rest = entry.partition(": ")
        words = rest.split()
        rates[kind] = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    return rates


_FIND_RATES = _parse_counts(_COUNTED)


def estimate_find_rate(kind: str, fixture: str) -> float:
    """Estimate the chance to find a thing of a kind in or on a kind of fixture, in percent per step."""
    rate = _FIND_RATES.get(kind, {}).get(fixture, _ANYTHING)
    return rate / 2 if fixture in SLOW else rate


# Parsing the task sentence

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
    """Put things of a kind, treated or not, in a kind of place, or hold one next to a lit lamp."""

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
    """Parse the task anywhere in a text. None if no phrasing matches."""
    for phrasing in _PHRASINGS:
        match = phrasing.search(text)
        if match:
            words = {name: word.lower() for name, word in match.groupdict().items() if word}
            return ParsedTask(
                kind=words["kind"],
                place=words.get("place", ""),
                lamp=words.get("lamp", ""),
                verb=_VERBS.get(words.get("verb", words.get("state", "")), ""),
                count=2 if "two" in words else 1,
            )
    return None


# The expert's memory of a room: what is where, and what is within reach

Action = tuple[str, ...]

_LISTED = re.compile(r"\ban? ([a-z]+ \d+)", re.IGNORECASE)
_COMMAND = re.compile(
    r"(go to|open|close|examine|use|take|move|put|clean|heat|cool) ([a-z]+ \d+)"
    r"(?: (?:from|to|in/on|with) ([a-z]+ \d+))?"
)
_SHUT = re.compile(r"\bis (?:closed|shut)\b", re.IGNORECASE)


def parse_listed_names(text: str) -> list[str]:
    """Return the things or fixtures that a text lists: "a mug 1, and a mug 2"."""
    return [name.lower() for name in _LISTED.findall(text)]


def kind_of(name: str) -> str:
    return name.partition(" ")[0]


def parse_command(command: str) -> Action:
    """Parse a command to an action; its verb is empty if the command does not affect the memory."""
    match = _COMMAND.fullmatch(command.strip())
    verb, *names = (part for part in match.groups() if part) if match else ("",)
    return ("put" if verb == "move" else verb, *names)


class RoomMemory:
    """What the expert knows about the room."""

    def __init__(self, fixtures: Iterable[str] = ()) -> None:
        self.fixtures = list(dict.fromkeys(fixtures))
        """Receptacles, preferred ones first, without those that turned out to be useless."""
        self.contents: dict[str, list[str]] = {}
        """The things in or on each fixture that was looked at."""
        self.shut: set[str] = set()
        self.near: set[str] = set()
        """The fixtures known to be within reach."""
        self.held = ""
        self.held_from = ""
        self.treated: set[str] = set()
        """Things that were cleaned, heated or cooled, or that cannot be."""

    def select_fixtures(self, kinds: Iterable[str]) -> list[str]:
        """Return the fixtures of some kinds, in the order of the kinds."""
        return [name for kind in kinds for name in self.fixtures if kind_of(name) == kind]

    def list_unseen(self) -> list[str]:
        return [name for name in self.fixtures if name not in self.contents]

    def find_known(self, kind: str) -> list[tuple[str, str]]:
        """Return the known things of a kind, each with its fixture, those within reach first."""
        places = sorted(self.contents.items(), key=lambda item: item[0] not in self.near)
        return [(thing, fixture) for fixture, things in places for thing in things if kind_of(thing) == kind]

    def record_result(self, action: Action, answer: str) -> None:
        """Update the memory after an action that succeeded."""
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
        """Update the memory after an action that failed: drop the belief that made it seem possible."""
        match action:
            case "go to", fixture if fixture not in self.near:
                self.near.add(fixture)  # going to a fixture in the same place fails
            case (("go to" | "open" | "examine"), fixture) | ("put", _, fixture):
                self._forget_fixture(fixture)
            case "take", thing, fixture:
                self._remove_thing(thing, fixture)
            case (("clean" | "heat" | "cool"), thing, _):
                self.treated.add(thing)  # this thing may not allow it: put it away, try another
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


# The expert

TASK = "Your task is to:"
IDLE: Action = ("look",)
"""The action if there is nothing better to do."""

PUTTING = ("move {} to {}", "put {} in/on {}")
"""The spelling since alfworld 0.4, and the one before."""


class AlfworldExpert:
    """Play one game: `act` takes each observation in turn, the first included, and returns a command."""

    def __init__(self, putting: str = PUTTING[0]) -> None:
        self.errand: ParsedTask | None = None
        """None until an observation states the task."""
        self.memory = RoomMemory()
        self._spellings = sorted(PUTTING, key=lambda spelling: spelling != putting)
        """Spellings of "put", the more likely first."""
        self._refusals = 0
        """How often putting down the thing in hand failed."""
        self._last: Action = IDLE
        self._own = True
        """Whether the last action was the expert's own."""

    def act(self, observation: str) -> str:
        if self.errand is None:
            self._read_task(observation)
        elif NOTHING in observation:
            if self._own:  # a failure of another's action says nothing about the expert's beliefs
                self._handle_failure()
        else:
            self._refusals = 0
            self.memory.record_result(self._last, observation)
        self._last, self._own = self._choose_action(), True
        return self._format_action(self._last)

    def replace_action(self, action: str) -> None:
        match parse_command(action):
            case "examine", thing if thing == self.memory.held:
                done: Action = IDLE  # the observation describes a thing, not a fixture
            case (("clean" | "heat" | "cool") as verb, thing, _) if self.errand and verb != self.errand.verb:
                done = IDLE
                self.memory.treated.discard(thing)  # it may have undone the requested treatment
            case other:
                done = other
        self._last, self._own = done, False

    def _read_task(self, observation: str) -> None:
        room, _, task = observation.partition(TASK)
        self.errand = parse_task(task or room)
        self.memory = RoomMemory(
            reversed(parse_listed_names(room))
        )  # lists count down; drawer 1 comes before drawer 9

    def _handle_failure(self) -> None:
        """Handle a failed action. A put may only have been spelled wrongly, so it is tried again."""
        if self._last[0] == "put":
            self._spellings.reverse()
            self._refusals = (self._refusals + 1) % len(self._spellings)
        if not self._refusals:
            self.memory.record_failure(self._last)

    def _choose_action(self) -> Action:
        if self.errand is None:
            return IDLE
        held, origin = self.memory.held, self.memory.held_from
        if (
            held and kind_of(held) != self.errand.kind
        ):  # another action took it, and only one thing can be held
            return self._reach_into(origin) or ("put", held, origin)
        return self._use_held_thing(self.errand, held) if held else self._fetch_thing(self.errand)

    def _use_held_thing(self, errand: ParsedTask, thing: str) -> Action:
        """Carry on with the thing in hand."""
        if errand.lamp:
            for lamp, fixture in self.memory.find_known(errand.lamp):
                return self._go_to(fixture) or ("use", lamp)
            return self._search_for(errand.lamp)
        if errand.verb and thing not in self.memory.treated:
            for appliance in self.memory.select_fixtures(errand.appliances):
                return self._go_to(appliance) or (errand.verb, thing, appliance)
        target = self._choose_target(errand)
        return (self._reach_into(target) or ("put", thing, target)) if target else IDLE

    def _fetch_thing(self, errand: ParsedTask) -> Action:
        """Take a thing of the kind that is not yet where it should be, or look for one."""
        settled = self._list_settled(errand)
        for thing, fixture in self.memory.find_known(errand.kind):
            if thing not in settled:
                return self._reach_into(fixture) or ("take", thing, fixture)
        if errand.lamp and not self.memory.find_known(errand.lamp):
            return self._search_for(errand.kind, errand.lamp)
        return self._search_for(errand.kind)

    def _list_settled(self, errand: ParsedTask) -> set[str]:
        """Return the things that need not be moved, or not again."""
        if errand.verb:
            return self.memory.treated
        places = (
            [self._choose_target(errand)] if errand.count > 1 else self.memory.select_fixtures([errand.place])
        )
        return {thing for place in places for thing in self.memory.contents.get(place, [])}

    def _choose_target(self, errand: ParsedTask) -> str:
        """Return the fixture to bring things to: for several things where most are, else the nearest."""
        memory = self.memory

        def merit(fixture: str) -> tuple[int, bool, bool, bool]:
            there = sum(kind_of(thing) == errand.kind for thing in memory.contents.get(fixture, []))
            company = there if errand.count > 1 else 0
            return company, fixture in memory.near, fixture in memory.contents, fixture not in memory.shut

        return max(memory.select_fixtures([errand.place]), key=merit, default="")

    def _search_for(self, *kinds: str) -> Action:
        """Look where something of these kinds is most likely to be found, per step."""
        memory = self.memory

        def merit(fixture: str) -> tuple[bool, float]:
            likely = sum(estimate_find_rate(kind, kind_of(fixture)) for kind in kinds)
            return fixture in memory.near, likely

        fixture = max(memory.list_unseen(), key=merit, default="")
        return (self._reach_into(fixture) or ("examine", fixture)) if fixture else IDLE

    def _go_to(self, fixture: str) -> Action:
        """Return the next step to a fixture, empty if it is within reach."""
        return () if fixture in self.memory.near else ("go to", fixture)

    def _reach_into(self, fixture: str) -> Action:
        """Return the next step to reach a fixture's contents, empty if they are within reach."""
        opening: Action = ("open", fixture) if fixture in self.memory.shut else ()
        return self._go_to(fixture) or opening

    def _format_action(self, action: Action) -> str:
        match action:
            case "put", thing, fixture:
                return self._spellings[0].format(thing, fixture)
            case "take", thing, fixture:
                return f"take {thing} from {fixture}"
            case verb, thing, fixture:
                return f"{verb} {thing} with {fixture}"
        return " ".join(action)


__all__ = ["PUTTING", "AlfworldExpert"]
