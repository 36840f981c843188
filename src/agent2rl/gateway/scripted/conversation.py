"""Which conversation a request belongs to, and how far it has heard it: read from the request itself.

An agent sends the whole conversation each time. What it says that the LLM said tells how far it is, though it
may have left out words, cut them short or added its own. Calls have ids that no other conversation's have.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent2rl.gateway.scripted.messages import AssistantMessage, LlmReply, LlmRequest


@dataclass
class ScriptedTurn:
    """One answer, and how often it was asked for."""

    step: int | None
    """Counted from 0; None: the script was over."""
    reply: LlmReply
    attempts: int = 0
    waits: bool = False
    """For a command of the step to end: it is no answer of the step's own."""


@dataclass
class ScriptedConversation:
    number: int
    first: LlmRequest
    start: int | None = 0
    """The step that it begins with; None: the script was over before."""
    turns: list[ScriptedTurn] = field(default_factory=list)
    captured: dict[str, str] = field(default_factory=dict)
    plays: Counter[int] = field(default_factory=Counter)
    """Of each step in a row."""
    results: list[str] = field(default_factory=list)
    """What has come back of the last step so far, where it comes in parts."""

    @property
    def calls(self) -> set[str]:
        return {call.id for turn in self.turns for call in turn.reply.calls}

    @property
    def next_name(self) -> str:
        """The id of the next answer."""
        return f"c{self.number}t{len(self.turns) + 1}"


def find_conversation(
    conversations: Sequence[ScriptedConversation], asked: LlmRequest
) -> tuple[ScriptedConversation, int] | None:
    """The conversation, and how many of its turns were heard. None: a new one begins."""
    calls = {call.id for said in asked.turns for call in said.calls}

    def likeness(talk: ScriptedConversation) -> tuple[bool, bool, int]:
        return bool(calls & talk.calls), talk.first.beginning == asked.beginning, talk.number

    for talk in sorted(conversations, key=likeness, reverse=True):
        if (heard := _count_heard_turns(talk, asked)) is not None:
            return talk, heard
    return None


def _count_heard_turns(talk: ScriptedConversation, asked: LlmRequest) -> int | None:
    """Of its turns; None: it is another conversation."""
    if asked.after:
        return next((n for n, turn in enumerate(talk.turns, 1) if turn.reply.id == asked.after), None)
    for place in range(len(asked.turns), 0, -1):
        heard = _match_turn(talk, asked.turns[place - 1], place)
        if heard is not None:
            return heard
    again = len(talk.turns) <= 1 and talk.first.beginning == asked.beginning
    return 0 if again and len(talk.first.turns) == len(asked.turns) else None


def _match_turn(talk: ScriptedConversation, said: AssistantMessage, place: int) -> int | None:
    """How many turns were heard with this one, which is the request's so manieth."""
    replies = [(number, turn.reply) for number, turn in enumerate(talk.turns, 1)]
    calls = {call.id for call in said.calls}
    same = [number for number, reply in replies if calls & {call.id for call in reply.calls}]
    same = same or [number for number, reply in replies if reply.said.digest == said.digest]
    if same:
        return min(same, key=lambda number: (abs(number - place), -number))
    begun = [n for n, reply in replies if said.text and not said.calls and reply.text.startswith(said.text)]
    return begun[-1] - 1 if begun else None
