"""Plays a script to each conversation: finds the conversation a request belongs to, its step, and the reply.

An agent sends the whole conversation each time, so what it repeats of the LLM's turns shows how far it is.
A repeated request, as clients send after an error, gets the same step; a resumed session continues. Side
requests, such as for a title, do not advance the script.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.core.records import Record
from agent2rl.fake_llm import step_replies
from agent2rl.fake_llm.messages import (
    AssistantMessage,
    LlmReply,
    LlmRequest,
    ProviderError,
    dump_json,
)
from agent2rl.fake_llm.script_file import DriverScript, ScriptStep, StepCondition, Times
from agent2rl.fake_llm.step_replies import AgentTools, ScriptFault, detect_agent_tools, fill_schema

# Matching requests with conversations


@dataclass
class ScriptedTurn:
    """One answer, and how often it was requested."""

    step: int | None
    """Counted from 0; None: the script was over."""
    reply: LlmReply
    attempts: int = 0
    waits: bool = False
    """Whether it only waits for a command of the step to end, and is not the step's own answer."""


@dataclass
class ScriptedConversation:
    number: int
    first: LlmRequest
    start: int | None = 0
    """The first step; None: the script was over before."""
    turns: list[ScriptedTurn] = field(default_factory=list)
    captured: dict[str, str] = field(default_factory=dict)
    plays: Counter[int] = field(default_factory=Counter)
    """How many times in a row each step was played."""
    results: list[str] = field(default_factory=list)
    """Results of the last step so far, if they arrive in parts."""

    @property
    def calls(self) -> set[str]:
        return {call.id for turn in self.turns for call in turn.reply.calls}

    @property
    def next_name(self) -> str:
        """The id of the next answer."""
        return f"c{self.number}t{len(self.turns) + 1}"


def find_conversation(
    conversations: Sequence[ScriptedConversation], request: LlmRequest
) -> tuple[ScriptedConversation, int] | None:
    """Return the request's conversation and how many of its turns the client has; None if it is new."""
    calls = {call.id for said in request.turns for call in said.calls}

    def likeness(talk: ScriptedConversation) -> tuple[bool, bool, int]:
        return bool(calls & talk.calls), talk.first.beginning == request.beginning, talk.number

    for talk in sorted(conversations, key=likeness, reverse=True):
        if (turns_heard := _count_heard_turns(talk, request)) is not None:
            return talk, turns_heard
    return None


def _count_heard_turns(talk: ScriptedConversation, request: LlmRequest) -> int | None:
    """Count the turns that the client has; None if it is another conversation."""
    if request.after:
        return next((n for n, turn in enumerate(talk.turns, 1) if turn.reply.id == request.after), None)
    for place in range(len(request.turns), 0, -1):
        turns_heard = _match_turn(talk, request.turns[place - 1], place)
        if turns_heard is not None:
            return turns_heard
    again = len(talk.turns) <= 1 and talk.first.beginning == request.beginning
    return 0 if again and len(talk.first.turns) == len(request.turns) else None


def _match_turn(talk: ScriptedConversation, said: AssistantMessage, place: int) -> int | None:
    """Return the number of turns up to this one, which is number `place` in the request."""
    replies = [(number, turn.reply) for number, turn in enumerate(talk.turns, 1)]
    calls = {call.id for call in said.calls}
    same = [number for number, reply in replies if calls & {call.id for call in reply.calls}]
    same = same or [number for number, reply in replies if reply.said.digest == said.digest]
    if same:
        return min(same, key=lambda number: (abs(number - place), -number))
    begun = [n for n, reply in replies if said.text and not said.calls and reply.text.startswith(said.text)]
    return begun[-1] - 1 if begun else None


# Playing the script

SCRIPT_OVER_STEP = ScriptStep(end="The script is over.")
SIDE_ANSWER = "A scripted run"
SIDE_USAGE = TokenCounts(input=20, output=5)
Fault = Literal["hang", "cut", "midway"]


class ConversationState(Record):
    """The current state of a conversation."""

    conversation: int
    wire: Wire
    model: str
    turns: int
    """Answers so far."""
    step: int | None
    """The step that was requested last, from 1; None: the script was over."""
    label: str | None
    captured: dict[str, str]
    ended: bool


@dataclass(frozen=True)
class PlannedReply:
    """The planned answer to one request."""

    kind: Literal["main", "side"]
    reply: LlmReply
    conversation: int | None = None
    step: int | None = None
    label: str | None = None
    attempt: int = 1
    trouble: ProviderError | None = None
    """Instead of the reply, or midway in it."""
    fault: Fault | None = None
    """How the reply is interrupted."""
    wait_seconds: float = 0.0
    pause_seconds: float = 0.0


class ScriptPlayer:
    def __init__(self, script: DriverScript) -> None:
        self._script = script
        self._conversations: list[ScriptedConversation] = []
        self._sides = 0

    def answer_request(self, request: LlmRequest) -> PlannedReply:
        manner = detect_agent_tools(request)
        if request.most_tokens == 1 or (manner is None and self._script.audience == "agents"):
            return self._answer_side_request(request)
        talk, turns_heard = find_conversation(self._conversations, request) or (
            self._begin_conversation(request),
            0,
        )
        if turns_heard == len(talk.turns):
            self._append_next_turn(talk, request, manner)
        turn = talk.turns[turns_heard]
        turn.attempts += 1
        return self._plan_attempt(talk, turn, request, manner)

    def list_states(self) -> list[ConversationState]:
        return [self._describe_conversation(talk) for talk in self._conversations if talk.turns]

    def _describe_conversation(self, talk: ScriptedConversation) -> ConversationState:
        at = talk.turns[-1].step
        step = SCRIPT_OVER_STEP if at is None else self._script.step[at]
        return ConversationState(
            conversation=talk.number,
            wire=talk.first.wire,
            model=talk.first.model,
            turns=len(talk.turns),
            step=None if at is None else at + 1,
            label=step.label,
            captured=dict(talk.captured),
            ended=step.end is not None,
        )

    def _answer_side_request(self, request: LlmRequest) -> PlannedReply:
        """Answer a title, summary or probe request, without advancing the script."""
        self._sides += 1
        text = SIDE_ANSWER if request.schema is None else dump_json(fill_schema(request.schema)).decode()
        return PlannedReply("side", LlmReply(f"side{self._sides}", text, tokens=SIDE_USAGE))

    def _begin_conversation(self, request: LlmRequest) -> ScriptedConversation:
        if request.after:
            raise ScriptFault(f"There is no answer {request.after!r} to go on from.")
        talk = ScriptedConversation(len(self._conversations) + 1, request)
        if self._conversations and self._script.sessions == "joined":
            last = self._conversations[-1]
            talk.start, talk.captured = self._find_following_step(last, request), dict(last.captured)
        self._conversations.append(talk)
        return talk

    def _append_next_turn(
        self, talk: ScriptedConversation, request: LlmRequest, manner: AgentTools | None
    ) -> None:
        if not (talk.turns and talk.turns[-1].waits):
            talk.results.clear()
        talk.results.append(request.result)
        if talk.turns and manner and (call := manner.build_poll_call(request.result)):
            reply = step_replies.build_poll_reply(call, talk.next_name, request.wire, self._script.usage)
            talk.turns.append(ScriptedTurn(talk.turns[-1].step, reply, waits=True))
            return
        at = self._find_following_step(talk, request) if talk.turns else talk.start
        self._append_turn(talk, self._find_playable_step(talk, at, request), request, manner)

    def _append_turn(
        self, talk: ScriptedConversation, at: int | None, request: LlmRequest, manner: AgentTools | None
    ) -> None:
        """Append the next turn at a step; None: the script is over."""
        step = SCRIPT_OVER_STEP if at is None else self._script.step[at]
        tokens = step.usage or self._script.usage
        reply = step_replies.build_reply(step, talk.next_name, request.wire, manner, talk.captured, tokens)
        talk.turns.append(ScriptedTurn(at, reply))

    def _find_following_step(self, talk: ScriptedConversation, request: LlmRequest) -> int | None:
        at = talk.turns[-1].step
        if at is None:
            return None
        step = self._script.step[at]
        talk.plays[at] += 1
        if step.until and not _match_patterns(talk, step.until, request) and talk.plays[at] < step.most:
            return at
        talk.plays[at] = 0
        return self._find_next_step(at)

    def _find_next_step(self, at: int) -> int:
        label = self._script.step[at].goto
        return self._script.find_step(label) if label else at + 1

    def _find_playable_step(
        self, talk: ScriptedConversation, at: int | None, request: LlmRequest
    ) -> int | None:
        """Return the first step from there on that can be played; None: the script is over."""
        passed = set[int]()
        while at is not None and at < len(self._script.step):
            step = self._script.step[at]
            if at in passed:
                raise ScriptFault(f"The script goes round at step {at + 1} without an answer.")
            passed.add(at)
            if step.when and not _match_patterns(talk, step.when, request):
                at = self._script.find_step(step.otherwise) if step.otherwise else at + 1
            elif step.speaks or step.fails:
                return at
            else:
                at = self._find_next_step(at)
        return None

    def _plan_attempt(
        self, talk: ScriptedConversation, turn: ScriptedTurn, request: LlmRequest, manner: AgentTools | None
    ) -> PlannedReply:
        """Plan the step's errors first, then its answer; after a step that only fails comes the next."""
        while turn.step is not None and not turn.waits:
            step = self._script.step[turn.step]
            fails = _resolve_times(step.fail.times if step.fail else None)
            hangs = fails + _resolve_times(step.hang)
            cuts = hangs + _resolve_times(step.cut)
            if step.fail and turn.attempts <= fails:
                return self._build_planned_reply(
                    talk,
                    turn,
                    step_replies.build_provider_error(step.fail),
                    "midway" if step.fail.midway else None,
                )
            if turn.attempts <= hangs:
                return self._build_planned_reply(talk, turn, fault="hang")
            if step.speaks:
                return self._build_planned_reply(talk, turn, fault="cut" if turn.attempts <= cuts else None)
            at = self._find_playable_step(talk, self._find_next_step(turn.step), request)
            talk.turns.pop()
            self._append_turn(talk, at, request, manner)
            turn = talk.turns[-1]
            turn.attempts = 1
        return self._build_planned_reply(talk, turn)

    def _build_planned_reply(
        self,
        talk: ScriptedConversation,
        turn: ScriptedTurn,
        trouble: ProviderError | None = None,
        fault: Fault | None = None,
    ) -> PlannedReply:
        step = SCRIPT_OVER_STEP if turn.step is None else self._script.step[turn.step]
        return PlannedReply(
            kind="main",
            reply=turn.reply,
            conversation=talk.number,
            step=None if turn.step is None else turn.step + 1,
            label=step.label,
            attempt=turn.attempts,
            trouble=trouble,
            fault=fault,
            wait_seconds=0.0 if turn.waits else step.wait,
            pause_seconds=0.0 if turn.waits else step.pause,
        )


def _match_patterns(talk: ScriptedConversation, when: StepCondition, request: LlmRequest) -> bool:
    """Check whether all patterns match, and store their captured groups."""
    searches = ((when.result, "\n".join(talk.results)), (when.user, request.user))
    matches = [pattern.search(text) for pattern, text in searches if pattern]
    for match in matches:
        if match is None:
            return False
    for match in filter(None, matches):
        talk.captured.update({name: value or "" for name, value in match.groupdict().items()})
    return True


def _resolve_times(times: Times | None) -> float:
    return float("inf") if times == "always" else times or 0
