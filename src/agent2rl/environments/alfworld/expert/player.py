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

from agent2rl.environments.alfworld.expert.errand import Errand, read
from agent2rl.environments.alfworld.expert.haunts import promise
from agent2rl.environments.alfworld.expert.memory import Action, Memory, kind_of, listed, understood
from agent2rl.environments.alfworld.play import NOTHING

TASK = "Your task is to:"
IDLE: Action = ("look",)
"""What it does when it knows of nothing better."""

PUTTING = ("move {} to {}", "put {} in/on {}")
"""The spelling since alfworld 0.4, and the one before."""


class Expert:
    """Plays one game: `act` is given each observation in turn, the first included, and says what to do."""

    def __init__(self, putting: str = PUTTING[0]) -> None:
        self.errand: Errand | None = None
        """None: nothing was read yet that states a task."""
        self.memory = Memory()
        self._spellings = sorted(PUTTING, key=lambda spelling: spelling != putting)
        """How to say "put", the likelier first."""
        self._refusals = 0
        """How often putting the thing in hand came to nothing."""
        self._last: Action = IDLE
        self._own = True
        """Whether what was done last is what it said."""

    def act(self, observation: str) -> str:
        if self.errand is None:
            self._begin(observation)
        elif NOTHING in observation:
            if self._own:  # what another tried in vain says nothing of what it believed itself
                self._rethink()
        else:
            self._refusals = 0
            self.memory.learn(self._last, observation)
        self._last, self._own = self._next(), True
        return self._spell(self._last)

    def instead(self, action: str) -> None:
        match understood(action):
            case "examine", thing if thing == self.memory.held:
                done: Action = IDLE  # what is seen then is no place
            case (("clean" | "heat" | "cool") as verb, thing, _) if self.errand and verb != self.errand.verb:
                done = IDLE
                self.memory.treated.discard(thing)  # it may have undone the one that is wanted
            case other:
                done = other
        self._last, self._own = done, False

    def _begin(self, observation: str) -> None:
        room, _, task = observation.partition(TASK)
        self.errand = read(task or room)
        self.memory = Memory(reversed(listed(room)))  # lists count down; drawer 1 comes before drawer 9

    def _rethink(self) -> None:
        """Nothing happened: a put may only have been spelled wrongly, so it gets a second chance."""
        if self._last[0] == "put":
            self._spellings.reverse()
            self._refusals = (self._refusals + 1) % len(self._spellings)
        if not self._refusals:
            self.memory.doubt(self._last)

    def _next(self) -> Action:
        if self.errand is None:
            return IDLE
        held, origin = self.memory.held, self.memory.held_from
        if held and kind_of(held) != self.errand.kind:  # another took it, and a hand holds one thing only
            return self._reach(origin) or ("put", held, origin)
        return self._finish(self.errand, held) if held else self._fetch(self.errand)

    def _finish(self, errand: Errand, thing: str) -> Action:
        """Carry on with the thing in hand."""
        if errand.lamp:
            for lamp, fixture in self.memory.known(errand.lamp):
                return self._approach(fixture) or ("use", lamp)
            return self._search(errand.lamp)
        if errand.verb and thing not in self.memory.treated:
            for appliance in self.memory.of(errand.appliances):
                return self._approach(appliance) or (errand.verb, thing, appliance)
        target = self._target(errand)
        return (self._reach(target) or ("put", thing, target)) if target else IDLE

    def _fetch(self, errand: Errand) -> Action:
        """Take a thing of the kind that is not yet where it should be, or look for one."""
        settled = self._settled(errand)
        for thing, fixture in self.memory.known(errand.kind):
            if thing not in settled:
                return self._reach(fixture) or ("take", thing, fixture)
        if errand.lamp and not self.memory.known(errand.lamp):
            return self._search(errand.kind, errand.lamp)
        return self._search(errand.kind)

    def _settled(self, errand: Errand) -> set[str]:
        """The things that need not be touched, or not again."""
        if errand.verb:
            return self.memory.treated
        places = [self._target(errand)] if errand.count > 1 else self.memory.of([errand.place])
        return {thing for place in places for thing in self.memory.contents.get(place, [])}

    def _target(self, errand: Errand) -> str:
        """The fixture to bring things to: where most of them are, if it takes several, else the handiest."""
        memory = self.memory

        def merit(fixture: str) -> tuple[int, bool, bool, bool]:
            there = sum(kind_of(thing) == errand.kind for thing in memory.contents.get(fixture, []))
            company = there if errand.count > 1 else 0
            return company, fixture in memory.near, fixture in memory.contents, fixture not in memory.shut

        return max(memory.of([errand.place]), key=merit, default="")

    def _search(self, *kinds: str) -> Action:
        """Look where it is likeliest, per step, to find something of any of these kinds."""
        memory = self.memory

        def merit(fixture: str) -> tuple[bool, float]:
            likely = sum(promise(kind, kind_of(fixture)) for kind in kinds)
            return fixture in memory.near, likely

        fixture = max(memory.unseen(), key=merit, default="")
        return (self._reach(fixture) or ("examine", fixture)) if fixture else IDLE

    def _approach(self, fixture: str) -> Action:
        """The next step on the way to a fixture; none when it is within reach."""
        return () if fixture in self.memory.near else ("go to", fixture)

    def _reach(self, fixture: str) -> Action:
        """The next step to lay hands on what a fixture holds; none when nothing is in the way."""
        opening: Action = ("open", fixture) if fixture in self.memory.shut else ()
        return self._approach(fixture) or opening

    def _spell(self, action: Action) -> str:
        match action:
            case "put", thing, fixture:
                return self._spellings[0].format(thing, fixture)
            case "take", thing, fixture:
                return f"take {thing} from {fixture}"
            case verb, thing, fixture:
                return f"{verb} {thing} with {fixture}"
        return " ".join(action)
