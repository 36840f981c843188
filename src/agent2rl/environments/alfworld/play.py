"""One episode of a game, in words.

A command is understood as the official engine understands it: it must be one of those that can be done now,
letter for letter, apart from white space around it. Anything else is answered with "Nothing happens.", and
nothing does.
"""

from collections.abc import Iterable

from agent2rl.environments.alfworld.game import Game
from agent2rl.environments.alfworld.grammar import ACTIONS, choose
from agent2rl.environments.alfworld.state import Act, State

NOTHING = "Nothing happens."

NOWHERE: frozenset[str] = frozenset()
FACING = frozenset({"atlocation", "receptacleatlocation"})
CLUTTERED = FACING | {"objectatlocation", "not_inreceptacle"}
CARRYING = frozenset({"holdsany"})
"""What conditions of the grammar ask about more than a single thing."""


class Play:
    """A live game. `won` tells whether the goal is reached now; play may go on, and lose it again."""

    __slots__ = ("_state", "game", "observation", "won")

    def __init__(self, game: Game) -> None:
        self.game = game
        self._state = State(game.house)
        self.won = self._state.reached(game.goal)
        everywhere = range(len(game.house.fixtures))
        self.observation = game.grammar.intro.format(look_feedback=self._view(everywhere), task=game.notice)
        """The latest text."""

    def step(self, command: str) -> str:
        """Do what a command says, if it can be done, and tell what comes of it."""
        act = self._meant(command.strip())
        if act is None:
            self.observation = NOTHING
        else:
            self._state.do(act)
            if act[0] in self.game.goal.actions:
                self.won = self._state.reached(self.game.goal)
            self.observation = self._told(act)
        return self.observation

    @property
    def commands(self) -> list[str]:
        """Every command that can be done now, sorted."""
        spellings, house, here = self.game.grammar.spellings, self.game.house, self._state.location
        found = {spellings[act[0]].format(**self._names(act)) for act in self._state.acts()}
        found.update(way for way, there in zip(self.game.ways, house.standing, strict=True) if there != here)
        return sorted(found)

    def _meant(self, command: str) -> Act | None:
        """What a command asks for, if that can be done now."""
        numbers = self.game.house.numbers
        for action, pattern in self.game.grammar.commands.get(command.partition(" ")[0], ()):
            found = pattern.fullmatch(command)
            if found:
                pairs = zip(ACTIONS[action], found.groups(), strict=True)
                about = tuple([numbers[letters].get(name, -1) for letters, name in pairs])
                act: Act = (action, *about)
                if -1 not in about and self._state.can(act):
                    return act
        return None

    def _names(self, act: Act) -> dict[str, str]:
        """The names of what an action is about, by the letters that stand for them."""
        names = self.game.house.names
        return {
            letters: names[letters][number] for letters, number in zip(ACTIONS[act[0]], act[1:], strict=True)
        }

    def _told(self, act: Act) -> str:
        """What the world says after an action."""
        state, house, rule = self._state, self.game.house, self.game.grammar.answers[act[0]]
        match act:
            case (("gotolocation" | "openobject"), fixture):
                seen = self._seen(fixture)
                return choose(rule, NOWHERE).format(
                    r=house.fixtures[fixture], examineReceptacle_feedback=seen
                )
            case "examinereceptacle", fixture:
                return self._seen(fixture)
            case "examineobject", thing:
                inner = self._things(house.inside[thing])
                return choose(rule, state.thing_facts[thing]).format(o=house.things[thing], things=inner)
            case "toggleobject", thing:
                return choose(rule, state.thing_facts[thing]).format(o=house.things[thing])
            case ("look",):
                return self._view(state.nearby)
            case ("inventory",):
                carried = [] if state.held is None else [state.held]
                return choose(rule, CARRYING if carried else NOWHERE).format(things=self._things(carried))
        return choose(rule, NOWHERE).format(**self._names(act))

    def _seen(self, fixture: int) -> str:
        """What one sees in or on a fixture."""
        text = choose(self.game.grammar.answers["examinereceptacle"], self._state.fixture_facts[fixture])
        things = self._things(self._state.contents[fixture]) if "{things}" in text else ""
        return text.format(r=self.game.house.fixtures[fixture], things=things)

    def _view(self, fixtures: Iterable[int]) -> str:
        """What one sees looking around: what is here, or else these fixtures."""
        grammar, house, nearby = self.game.grammar, self.game.house, self._state.nearby
        clutter = self._state.clutter()
        floor = choose(grammar.floor, CLUTTERED if clutter else NOWHERE).format(things=self._things(clutter))
        shown = [f"a {house.fixtures[fixture]}" for fixture in fixtures]
        listed = choose(grammar.fixtures, FACING if shown else NOWHERE).format(things=grammar.join(shown))
        return choose(grammar.answers["look"], FACING if nearby else NOWHERE).format(
            names=grammar.join([house.fixtures[fixture] for fixture in nearby]),
            list_objects_on_the_floor=floor,
            list_appliances=listed,
        )

    def _things(self, things: Iterable[int]) -> str:
        names = self.game.house.things
        return self.game.grammar.join([f"a {names[thing]}" for thing in things])
