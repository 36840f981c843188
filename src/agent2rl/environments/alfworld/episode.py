"""One episode of an ALFWorld game: the state of the house, its rules, and the texts that describe it.

A command must match a possible command exactly, apart from surrounding whitespace. Anything else is answered
with "Nothing happens." A state shares the game's tuples and fact sets until they change, so it stays small.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent2rl.environments.alfworld.game import AlfworldGame, AlfworldGoal, House, Numbers
from agent2rl.environments.alfworld.grammar import ACTIONS, choose_variant

# The state of a house, and ALFWorld's rules: which actions are possible, and what they change

Act = tuple[str, *tuple[int, ...]]
"""An action and the numbers of its arguments, in the order of `grammar.ACTIONS`."""

KNIVES = frozenset({"knifetype", "butterknifetype"})


@dataclass(frozen=True)
class Treatment:
    """Effect of an appliance on the thing in hand. The appliance need not be open."""

    appliances: frozenset[str]
    needs: str
    gives: frozenset[str]
    takes: frozenset[str] = frozenset()


TREATMENTS = {
    "heatobject": Treatment(
        frozenset({"microwavetype"}), "heatable", frozenset({"ishot"}), frozenset({"iscool"})
    ),
    "coolobject": Treatment(
        frozenset({"fridgetype"}), "coolable", frozenset({"iscool"}), frozenset({"ishot"})
    ),
    "cleanobject": Treatment(frozenset({"sinktype", "sinkbasintype"}), "cleanable", frozenset({"isclean"})),
}


class HouseState:
    __slots__ = ("around", "contents", "fixture_facts", "held", "house", "left", "location", "thing_facts")

    def __init__(self, house: House) -> None:
        self.house = house
        self.location = house.start
        self.held: int | None = None
        """The thing in hand."""
        self.contents = list(house.contents)
        self.around = list(house.around)
        self.thing_facts = list(house.thing_facts)
        self.fixture_facts = list(house.fixture_facts)
        self.left: set[tuple[int, int]] = set()
        """(thing, fixture): things that were taken from a fixture and not put back there."""

    @property
    def nearby(self) -> Numbers:
        """The fixtures within reach."""
        return self.house.nearby[self.location]

    def list_clutter(self) -> list[int]:
        """List the things that `look` shows: put down here, after being taken from a fixture that is here."""
        if not self.left:
            return []
        pairs = ((thing, fixture) for thing in self.around[self.location] for fixture in self.nearby)
        return [pair[0] for pair in pairs if pair in self.left]

    def reaches_goal(self, goal: AlfworldGoal) -> bool:
        """Return whether the goal is reached now."""
        if goal.lamps is not None:
            return self.held in goal.things and any(
                "istoggled" in self.thing_facts[thing] and "toggleable" in self.thing_facts[thing]
                for fixture in self.nearby
                for thing in goal.lamps.intersection(self.contents[fixture])
            )
        for fixture in goal.fixtures:
            placed = goal.things.intersection(self.contents[fixture])
            if sum(goal.qualities <= self.thing_facts[thing] for thing in placed) >= goal.count:
                return True
        return False

    def is_possible(self, act: Act) -> bool:
        """Return whether an action's precondition holds."""
        match act:
            case "gotolocation", fixture:
                return not self._is_near(fixture)
            case "pickupobject", thing, fixture:
                empty_handed, portable = self.held is None, "pickupable" in self.thing_facts[thing]
                within_reach = thing in self.contents[fixture] and self._is_accessible(fixture)
                return empty_handed and portable and within_reach
            case "putobject", thing, fixture:
                fits = thing in self.house.accepted[fixture]
                return thing == self.held and fits and self._is_accessible(fixture)
            case "openobject", fixture:
                return self._can_open(fixture) and "opened" not in self.fixture_facts[fixture]
            case "closeobject", fixture:
                return self._can_open(fixture) and "opened" in self.fixture_facts[fixture]
            case "examinereceptacle", fixture:
                return self._is_near(fixture)
            case "examineobject", thing:
                return thing == self.held
            case "toggleobject", thing:
                within_reach = any(thing in self.contents[fixture] for fixture in self.nearby)
                return within_reach and "toggleable" in self.thing_facts[thing]
            case "sliceobject", thing, knife:
                cuts = knife == self.held and self.house.thing_types[knife] in KNIVES
                return cuts and thing in self.around[self.location] and "sliceable" in self.thing_facts[thing]
            case action, thing, fixture:
                return self._can_treat(TREATMENTS[action], thing, fixture)
        return True

    def apply_act(self, act: Act) -> None:
        """Apply the effects of an action, which must be possible."""
        match act:
            case "gotolocation", fixture:
                self.location = self.house.standing[fixture]
            case "pickupobject", thing, fixture:
                self._take_thing(thing, fixture)
            case "putobject", thing, fixture:
                self._put_thing(thing, fixture)
            case "openobject", fixture:
                self.fixture_facts[fixture] |= {"opened"}
            case "closeobject", fixture:
                self.fixture_facts[fixture] -= {"opened"}
            case "toggleobject", thing:
                self.thing_facts[thing] |= {"istoggled"}
            case "sliceobject", thing, _:
                self.thing_facts[thing] |= {"issliced"}
            case action, thing, _:
                treatment = TREATMENTS[action]
                self.thing_facts[thing] = self.thing_facts[thing] - treatment.takes | treatment.gives

    def iter_possible_acts(self) -> Iterator[Act]:
        """Yield every possible action except going elsewhere. May yield an action twice."""
        return filter(self.is_possible, self._iter_candidate_acts())

    def _iter_candidate_acts(self) -> Iterator[Act]:
        """Yield a superset of the possible actions."""
        yield from (("look",), ("inventory",), ("help",))
        for fixture in self.nearby:
            for action in ("examinereceptacle", "openobject", "closeobject"):
                yield action, fixture
            for thing in self.contents[fixture]:
                yield "toggleobject", thing
                if self.held is None:
                    yield "pickupobject", thing, fixture
        if self.held is not None:
            yield "examineobject", self.held
            for thing in self.around[self.location]:
                yield "sliceobject", thing, self.held
            for fixture in self.nearby:
                for action in ("putobject", *TREATMENTS):
                    yield action, self.held, fixture

    def _is_near(self, fixture: int) -> bool:
        return self.house.standing[fixture] == self.location

    def _can_open(self, fixture: int) -> bool:
        return self._is_near(fixture) and "openable" in self.fixture_facts[fixture]

    def _is_accessible(self, fixture: int) -> bool:
        facts = self.fixture_facts[fixture]
        return self._is_near(fixture) and ("openable" not in facts or "opened" in facts)

    def _can_treat(self, treatment: Treatment, thing: int, fixture: int) -> bool:
        return (
            thing == self.held
            and self._is_near(fixture)
            and self.house.fixture_types[fixture] in treatment.appliances
            and treatment.needs in self.thing_facts[thing]
        )

    def _take_thing(self, thing: int, fixture: int) -> None:
        """Take a thing from one fixture. A thing that the game's file puts in two stays in the other."""
        self.contents[fixture] = tuple(other for other in self.contents[fixture] if other != thing)
        self.around[self.location] = tuple(other for other in self.around[self.location] if other != thing)
        self.left.add((thing, fixture))
        self.held = thing

    def _put_thing(self, thing: int, fixture: int) -> None:
        self.contents[fixture] = tuple(sorted({*self.contents[fixture], thing}))
        self.around[self.location] = tuple(sorted({*self.around[self.location], thing}))
        self.left.discard((thing, fixture))
        self.held = None


NOTHING = "Nothing happens."

NOWHERE: frozenset[str] = frozenset()
FACING = frozenset({"atlocation", "receptacleatlocation"})
CLUTTERED = FACING | {"objectatlocation", "not_inreceptacle"}
CARRYING = frozenset({"holdsany"})
"""Facts that satisfy those conditions of the grammar that are about more than one thing."""


class AlfworldEpisode:
    """A game in progress. `won` means that the goal is reached now; further steps may undo it."""

    __slots__ = ("_state", "game", "observation", "won")

    def __init__(self, game: AlfworldGame) -> None:
        self.game = game
        self._state = HouseState(game.house)
        self.won = self._state.reaches_goal(game.goal)
        everywhere = range(len(game.house.fixtures))
        self.observation = game.grammar.intro.format(
            look_feedback=self._describe_view(everywhere), task=game.notice
        )
        """The latest text."""

    def step(self, command: str) -> str:
        """Run a command if it is possible, and return the answer."""
        act = self._parse_command(command.strip())
        if act is None:
            self.observation = NOTHING
        else:
            self._state.apply_act(act)
            # Only these actions can change whether the goal is reached, and most actions are
            # others.
            if act[0] in self.game.goal.actions:
                self.won = self._state.reaches_goal(self.game.goal)
            self.observation = self._describe_result(act)
        return self.observation

    @property
    def commands(self) -> list[str]:
        """Every command that is possible now, sorted."""
        spellings, house, here = self.game.grammar.spellings, self.game.house, self._state.location
        commands = {
            spellings[act[0]].format(**self._name_arguments(act)) for act in self._state.iter_possible_acts()
        }
        commands.update(
            way for way, location in zip(self.game.ways, house.standing, strict=True) if location != here
        )
        return sorted(commands)

    def _parse_command(self, command: str) -> Act | None:
        """Return the action of a command if it is possible now, else None."""
        numbers = self.game.house.numbers
        for action, pattern in self.game.grammar.commands.get(command.partition(" ")[0], ()):
            match = pattern.fullmatch(command)
            if match:
                pairs = zip(ACTIONS[action], match.groups(), strict=True)
                arguments = tuple([numbers[letters].get(name, -1) for letters, name in pairs])
                act: Act = (action, *arguments)
                if -1 not in arguments and self._state.is_possible(act):
                    return act
        return None

    def _name_arguments(self, act: Act) -> dict[str, str]:
        """Return the names of an action's arguments, by their letters in the grammar."""
        names = self.game.house.names
        return {
            letters: names[letters][number] for letters, number in zip(ACTIONS[act[0]], act[1:], strict=True)
        }

    def _describe_result(self, act: Act) -> str:
        """Return the answer to an action."""
        state, house, rule = self._state, self.game.house, self.game.grammar.answers[act[0]]
        match act:
            case (("gotolocation" | "openobject"), fixture):
                seen = self._describe_fixture(fixture)
                return choose_variant(rule, NOWHERE).format(
                    r=house.fixtures[fixture], examineReceptacle_feedback=seen
                )
            case "examinereceptacle", fixture:
                return self._describe_fixture(fixture)
            case "examineobject", thing:
                inner = self._list_things(house.inside[thing])
                return choose_variant(rule, state.thing_facts[thing]).format(
                    o=house.things[thing], things=inner
                )
            case "toggleobject", thing:
                return choose_variant(rule, state.thing_facts[thing]).format(o=house.things[thing])
            case ("look",):
                return self._describe_view(state.nearby)
            case ("inventory",):
                carried = [] if state.held is None else [state.held]
                return choose_variant(rule, CARRYING if carried else NOWHERE).format(
                    things=self._list_things(carried)
                )
        return choose_variant(rule, NOWHERE).format(**self._name_arguments(act))

    def _describe_fixture(self, fixture: int) -> str:
        """Describe the contents of a fixture."""
        text = choose_variant(
            self.game.grammar.answers["examinereceptacle"], self._state.fixture_facts[fixture]
        )
        things = self._list_things(self._state.contents[fixture]) if "{things}" in text else ""
        return text.format(r=self.game.house.fixtures[fixture], things=things)

    def _describe_view(self, fixtures: Iterable[int]) -> str:
        """Describe the view from here, or else list the given fixtures."""
        grammar, house, nearby = self.game.grammar, self.game.house, self._state.nearby
        clutter = self._state.list_clutter()
        floor = choose_variant(grammar.floor, CLUTTERED if clutter else NOWHERE).format(
            things=self._list_things(clutter)
        )
        shown = [f"a {house.fixtures[fixture]}" for fixture in fixtures]
        listed = choose_variant(grammar.fixtures, FACING if shown else NOWHERE).format(
            things=grammar.join(shown)
        )
        return choose_variant(grammar.answers["look"], FACING if nearby else NOWHERE).format(
            names=grammar.join([house.fixtures[fixture] for fixture in nearby]),
            list_objects_on_the_floor=floor,
            list_appliances=listed,
        )

    def _list_things(self, things: Iterable[int]) -> str:
        names = self.game.house.things
        return self.game.grammar.join([f"a {names[thing]}" for thing in things])
