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
    calls = {call.id for turn in request.turns for call in turn.calls}

    def rate_similarity(conversation: ScriptedConversation) -> tuple[bool, bool, int]:
        return (
            bool(calls & conversation.calls),
            conversation.first.beginning == request.beginning,
            conversation.number,
        )

    for conversation in sorted(conversations, key=rate_similarity, reverse=True):
        if (turns_received := _count_received_turns(conversation, request)) is not None:
            return conversation, turns_received
    return None


def _count_received_turns(conversation: ScriptedConversation, request: LlmRequest) -> int | None:
    """Count the turns that the client has; None if it is another conversation."""
    if request.after:
        return next(
            (n for n, turn in enumerate(conversation.turns, 1) if turn.reply.id == request.after), None
        )
    for place in range(len(request.turns), 0, -1):
        turns_received = _match_turn(conversation, request.turns[place - 1], place)
        if turns_received is not None:
            return turns_received
    again = len(conversation.turns) <= 1 and conversation.first.beginning == request.beginning
    return 0 if again and len(conversation.first.turns) == len(request.turns) else None


def _match_turn(conversation: ScriptedConversation, message: AssistantMessage, place: int) -> int | None:
    """Return the number of turns up to this one, which is number `place` in the request."""
    replies = [(number, turn.reply) for number, turn in enumerate(conversation.turns, 1)]
    calls = {call.id for call in message.calls}
    same = [number for number, reply in replies if calls & {call.id for call in reply.calls}]
    same = same or [number for number, reply in replies if reply.message.digest == message.digest]
    if same:
        return min(same, key=lambda number: (abs(number - place), -number))
    begun = [
        n
        for n, reply in replies
        if message.text and not message.calls and reply.text.startswith(message.text)
    ]
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
        agent_tools = detect_agent_tools(request)
        if request.most_tokens == 1 or (agent_tools is None and self._script.audience == "agents"):
            return self._answer_side_request(request)
        conversation, turns_received = find_conversation(self._conversations, request) or (
            self._begin_conversation(request),
            0,
        )
        if turns_received == len(conversation.turns):
            self._append_next_turn(conversation, request, agent_tools)
        turn = conversation.turns[turns_received]
        turn.attempts += 1
        return self._plan_attempt(conversation, turn, request, agent_tools)

    def list_states(self) -> list[ConversationState]:
        return [
            self._describe_conversation(conversation)
            for conversation in self._conversations
            if conversation.turns
        ]

    def _describe_conversation(self, conversation: ScriptedConversation) -> ConversationState:
        at = conversation.turns[-1].step
        step = SCRIPT_OVER_STEP if at is None else self._script.step[at]
        return ConversationState(
            conversation=conversation.number,
            wire=conversation.first.wire,
            model=conversation.first.model,
            turns=len(conversation.turns),
            step=None if at is None else at + 1,
            label=step.label,
            captured=dict(conversation.captured),
            ended=step.end is not None,
        )

    def _answer_side_request(self, request: LlmRequest) -> PlannedReply:
        """Answer a title, summary or probe request, without advancing the script."""
        self._sides += 1
        text = SIDE_ANSWER if request.schema is None else dump_json(fill_schema(request.schema)).decode()
        return PlannedReply("side", LlmReply(f"side{self._sides}", text, tokens=SIDE_USAGE))

    def _begin_conversation(self, request: LlmRequest) -> ScriptedConversation:
        if request.after:
            raise ScriptFault(f"Unknown previous answer {request.after!r}.")
        conversation = ScriptedConversation(len(self._conversations) + 1, request)
        if self._conversations and self._script.sessions == "joined":
            last = self._conversations[-1]
            conversation.start, conversation.captured = (
                self._find_following_step(last, request),
                dict(last.captured),
            )
        self._conversations.append(conversation)
        return conversation

    def _append_next_turn(
        self, conversation: ScriptedConversation, request: LlmRequest, agent_tools: AgentTools | None
    ) -> None:
        if not (conversation.turns and conversation.turns[-1].waits):
            conversation.results.clear()
        conversation.results.append(request.result)
        if conversation.turns and agent_tools and (call := agent_tools.build_poll_call(request.result)):
            reply = step_replies.build_poll_reply(
                call, conversation.next_name, request.wire, self._script.usage
            )
            conversation.turns.append(ScriptedTurn(conversation.turns[-1].step, reply, waits=True))
            return
        at = self._find_following_step(conversation, request) if conversation.turns else conversation.start
        self._append_turn(
            conversation, self._find_playable_step(conversation, at, request), request, agent_tools
        )

    def _append_turn(
        self,
        conversation: ScriptedConversation,
        at: int | None,
        request: LlmRequest,
        agent_tools: AgentTools | None,
    ) -> None:
        """Append the next turn at a step; None: the script is over."""
        step = SCRIPT_OVER_STEP if at is None else self._script.step[at]
        tokens = step.usage or self._script.usage
        reply = step_replies.build_reply(
            step, conversation.next_name, request.wire, agent_tools, conversation.captured, tokens
        )
        conversation.turns.append(ScriptedTurn(at, reply))

    def _find_following_step(self, conversation: ScriptedConversation, request: LlmRequest) -> int | None:
        at = conversation.turns[-1].step
        if at is None:
            return None
        step = self._script.step[at]
        conversation.plays[at] += 1
        if (
            step.until
            and not _match_patterns(conversation, step.until, request)
            and conversation.plays[at] < step.most
        ):
            return at
        conversation.plays[at] = 0
        return self._find_next_step(at)

    def _find_next_step(self, at: int) -> int:
        label = self._script.step[at].goto
        return self._script.find_step(label) if label else at + 1

    def _find_playable_step(
        self, conversation: ScriptedConversation, at: int | None, request: LlmRequest
    ) -> int | None:
        """Return the first step from there on that can be played; None: the script is over."""
        passed = set[int]()
        while at is not None and at < len(self._script.step):
            step = self._script.step[at]
            if at in passed:
                raise ScriptFault(f"Endless loop at step {at + 1}: no step on the way answers.")
            passed.add(at)
            if step.when and not _match_patterns(conversation, step.when, request):
                at = self._script.find_step(step.otherwise) if step.otherwise else at + 1
            elif step.speaks or step.fails:
                return at
            else:
                at = self._find_next_step(at)
        return None

    def _plan_attempt(
        self,
        conversation: ScriptedConversation,
        turn: ScriptedTurn,
        request: LlmRequest,
        agent_tools: AgentTools | None,
    ) -> PlannedReply:
        """Plan the step's errors first, then its answer; after a step that only fails comes the next."""
        while turn.step is not None and not turn.waits:
            step = self._script.step[turn.step]
            fails = _resolve_times(step.fail.times if step.fail else None)
            hangs = fails + _resolve_times(step.hang)
            cuts = hangs + _resolve_times(step.cut)
            if step.fail and turn.attempts <= fails:
                return self._build_planned_reply(
                    conversation,
                    turn,
                    step_replies.build_provider_error(step.fail),
                    "midway" if step.fail.midway else None,
                )
            if turn.attempts <= hangs:
                return self._build_planned_reply(conversation, turn, fault="hang")
            if step.speaks:
                return self._build_planned_reply(
                    conversation, turn, fault="cut" if turn.attempts <= cuts else None
                )
            at = self._find_playable_step(conversation, self._find_next_step(turn.step), request)
            conversation.turns.pop()
            self._append_turn(conversation, at, request, agent_tools)
            turn = conversation.turns[-1]
            turn.attempts = 1
        return self._build_planned_reply(conversation, turn)

    def _build_planned_reply(
        self,
        conversation: ScriptedConversation,
        turn: ScriptedTurn,
        trouble: ProviderError | None = None,
        fault: Fault | None = None,
    ) -> PlannedReply:
        step = SCRIPT_OVER_STEP if turn.step is None else self._script.step[turn.step]
        return PlannedReply(
            kind="main",
            reply=turn.reply,
            conversation=conversation.number,
            step=None if turn.step is None else turn.step + 1,
            label=step.label,
            attempt=turn.attempts,
            trouble=trouble,
            fault=fault,
            wait_seconds=0.0 if turn.waits else step.wait,
            pause_seconds=0.0 if turn.waits else step.pause,
        )


def _match_patterns(conversation: ScriptedConversation, when: StepCondition, request: LlmRequest) -> bool:
    """Check whether all patterns match, and store their captured groups."""
    searches = ((when.result, "\n".join(conversation.results)), (when.user, request.user))
    matches = [pattern.search(text) for pattern, text in searches if pattern]
    for match in matches:
        if match is None:
            return False
    for match in filter(None, matches):
        conversation.captured.update({name: value or "" for name, value in match.groupdict().items()})
    return True


def _resolve_times(times: Times | None) -> float:
    return float("inf") if times == "always" else times or 0
