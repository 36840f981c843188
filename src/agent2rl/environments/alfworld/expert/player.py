"""An expert that plays ALFWorld from what it reads, as a model would: for demonstrations, and as a yardstick.

    expert, play = Expert(), Play(game)
    while not play.won:
        play.step(expert.act(play.observation))

It decides anew at every step: carry on with the thing in hand, else fetch a wanted thing whose place is
known, else look where such things are usually found. It is deterministic.

It is not told when it has won: asked further, it brings more things of the kind, since those it brought may
not have counted. Told what was done `instead` of what it said, it goes on from there. Not covered: things
inside other things, and tasks in free words.
"""

from agent2rl.environments.alfworld.episode import NOTHING
from agent2rl.environments.alfworld.expert.likely_places import estimate_find_rate
from agent2rl.environments.alfworld.expert.memory import (
    Action,
    RoomMemory,
    kind_of,
    parse_command,
    parse_listed_names,
)
from agent2rl.environments.alfworld.expert.task_parser import ParsedTask, parse_task

TASK = "Your task is to:"
IDLE: Action = ("look",)
"""What it does when it knows of nothing better."""

PUTTING = ("move {} to {}", "put {} in/on {}")
"""The spelling since alfworld 0.4, and the one before."""


class AlfworldExpert:
    """Plays one game: `act` is given each observation in turn, the first included, and says what to do."""

    def __init__(self, putting: str = PUTTING[0]) -> None:
        self.errand: ParsedTask | None = None
        """None: nothing was read yet that states a task."""
        self.memory = RoomMemory()
        self._spellings = sorted(PUTTING, key=lambda spelling: spelling != putting)
        """How to say "put", the likelier first."""
        self._refusals = 0
        """How often putting the thing in hand came to nothing."""
        self._last: Action = IDLE
        self._own = True
        """Whether what was done last is what it said."""

    def act(self, observation: str) -> str:
        if self.errand is None:
            self._read_task(observation)
        elif NOTHING in observation:
            if self._own:  # what another tried in vain says nothing of what it believed itself
                self._handle_failure()
        else:
            self._refusals = 0
            self.memory.record_result(self._last, observation)
        self._last, self._own = self._choose_action(), True
        return self._format_action(self._last)

    def instead(self, action: str) -> None:
        match parse_command(action):
            case "examine", thing if thing == self.memory.held:
                done: Action = IDLE  # what is seen then is no place
            case (("clean" | "heat" | "cool") as verb, thing, _) if self.errand and verb != self.errand.verb:
                done = IDLE
                self.memory.treated.discard(thing)  # it may have undone the one that is wanted
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
        """Nothing happened: a put may only have been spelled wrongly, so it gets a second chance."""
        if self._last[0] == "put":
            self._spellings.reverse()
            self._refusals = (self._refusals + 1) % len(self._spellings)
        if not self._refusals:
            self.memory.record_failure(self._last)

    def _choose_action(self) -> Action:
        if self.errand is None:
            return IDLE
        held, origin = self.memory.held, self.memory.held_from
        if held and kind_of(held) != self.errand.kind:  # another took it, and a hand holds one thing only
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
        """The things that need not be touched, or not again."""
        if errand.verb:
            return self.memory.treated
        places = (
            [self._choose_target(errand)] if errand.count > 1 else self.memory.select_fixtures([errand.place])
        )
        return {thing for place in places for thing in self.memory.contents.get(place, [])}

    def _choose_target(self, errand: ParsedTask) -> str:
        """The fixture to bring things to: where most of them are, if it takes several, else the handiest."""
        memory = self.memory

        def merit(fixture: str) -> tuple[int, bool, bool, bool]:
            there = sum(kind_of(thing) == errand.kind for thing in memory.contents.get(fixture, []))
            company = there if errand.count > 1 else 0
            return company, fixture in memory.near, fixture in memory.contents, fixture not in memory.shut

        return max(memory.select_fixtures([errand.place]), key=merit, default="")

    def _search_for(self, *kinds: str) -> Action:
        """Look where it is likeliest, per step, to find something of any of these kinds."""
        memory = self.memory

        def merit(fixture: str) -> tuple[bool, float]:
            likely = sum(estimate_find_rate(kind, kind_of(fixture)) for kind in kinds)
            return fixture in memory.near, likely

        fixture = max(memory.list_unseen(), key=merit, default="")
        return (self._reach_into(fixture) or ("examine", fixture)) if fixture else IDLE

    def _go_to(self, fixture: str) -> Action:
        """The next step on the way to a fixture; none when it is within reach."""
        return () if fixture in self.memory.near else ("go to", fixture)

    def _reach_into(self, fixture: str) -> Action:
        """The next step to lay hands on what a fixture holds; none when nothing is in the way."""
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
