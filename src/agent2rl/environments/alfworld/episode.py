"""One episode of a game, in words.

A command is understood as the official engine understands it: it must be one of those that can be done now,
letter for letter, apart from white space around it. Anything else is answered with "Nothing happens.", and
nothing does.
"""

from collections.abc import Iterable

from agent2rl.environments.alfworld.game import AlfworldGame
from agent2rl.environments.alfworld.grammar import ACTIONS, choose_variant
from agent2rl.environments.alfworld.state import Act, HouseState

NOTHING = "Nothing happens."

NOWHERE: frozenset[str] = frozenset()
FACING = frozenset({"atlocation", "receptacleatlocation"})
CLUTTERED = FACING | {"objectatlocation", "not_inreceptacle"}
CARRYING = frozenset({"holdsany"})
"""What conditions of the grammar ask about more than a single thing."""


class AlfworldEpisode:
    """A live game. `won` tells whether the goal is reached now; play may go on, and lose it again."""

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
        """Do what a command says, if it can be done, and tell what comes of it."""
        act = self._parse_command(command.strip())
        if act is None:
            self.observation = NOTHING
        else:
            self._state.apply_act(act)
            if act[0] in self.game.goal.actions:
                self.won = self._state.reaches_goal(self.game.goal)
            self.observation = self._describe_result(act)
        return self.observation

    @property
    def commands(self) -> list[str]:
        """Every command that can be done now, sorted."""
        spellings, house, here = self.game.grammar.spellings, self.game.house, self._state.location
        found = {
            spellings[act[0]].format(**self._name_arguments(act)) for act in self._state.iter_possible_acts()
        }
        found.update(way for way, there in zip(self.game.ways, house.standing, strict=True) if there != here)
        return sorted(found)

    def _parse_command(self, command: str) -> Act | None:
        """What a command asks for, if that can be done now."""
        numbers = self.game.house.numbers
        for action, pattern in self.game.grammar.commands.get(command.partition(" ")[0], ()):
            found = pattern.fullmatch(command)
            if found:
                pairs = zip(ACTIONS[action], found.groups(), strict=True)
                about = tuple([numbers[letters].get(name, -1) for letters, name in pairs])
                act: Act = (action, *about)
                if -1 not in about and self._state.is_possible(act):
                    return act
        return None

    def _name_arguments(self, act: Act) -> dict[str, str]:
        """The names of what an action is about, by the letters that stand for them."""
        names = self.game.house.names
        return {
            letters: names[letters][number] for letters, number in zip(ACTIONS[act[0]], act[1:], strict=True)
        }

    def _describe_result(self, act: Act) -> str:
        """What the world says after an action."""
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
        """What one sees in or on a fixture."""
        text = choose_variant(
            self.game.grammar.answers["examinereceptacle"], self._state.fixture_facts[fixture]
        )
        things = self._list_things(self._state.contents[fixture]) if "{things}" in text else ""
        return text.format(r=self.game.house.fixtures[fixture], things=things)

    def _describe_view(self, fixtures: Iterable[int]) -> str:
        """What one sees looking around: what is here, or else these fixtures."""
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
