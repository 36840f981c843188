"""Plays a script to whoever asks: at which step a conversation is, and what to answer.

Asking the same thing again, as clients do after an error, gets the same step; a session that was closed and
resumed goes on. Requests beside the agent's work, such as for a title, play nothing on.
"""

from dataclasses import dataclass
from typing import Literal

from agent2rl.core.llm import Tokens, Wire
from agent2rl.core.records import Record
from agent2rl.gateway.scripted import speech
from agent2rl.gateway.scripted.conversation import Conversation, Turn, find
from agent2rl.gateway.scripted.manner import Manner, filled, manner_of
from agent2rl.gateway.scripted.script import Script, Step, Times, When
from agent2rl.gateway.scripted.speech import ScriptFault
from agent2rl.gateway.scripted.talk import Asked, Reply, Trouble, dumped

OVER = Step(end="The script is over.")
SIDE = "A scripted run"
SIDE_USAGE = Tokens(input=20, output=5)
Fault = Literal["hang", "cut", "midway"]


class State(Record):
    """Where a conversation is."""

    conversation: int
    wire: Wire
    model: str
    turns: int
    """Answers so far."""
    step: int | None
    """The step that was asked for last, from 1; None: the script was over."""
    label: str | None
    captured: dict[str, str]
    ended: bool


@dataclass(frozen=True)
class Play:
    """What one request gets."""

    kind: Literal["main", "side"]
    reply: Reply
    conversation: int | None = None
    step: int | None = None
    label: str | None = None
    attempt: int = 1
    trouble: Trouble | None = None
    """Instead of the reply, or midway in it."""
    fault: Fault | None = None
    """What keeps the reply from being whole."""
    wait_seconds: float = 0.0
    pause_seconds: float = 0.0


class Player:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._conversations: list[Conversation] = []
        self._sides = 0

    def play(self, asked: Asked) -> Play:
        manner = manner_of(asked)
        if asked.most_tokens == 1 or (manner is None and self._script.audience == "agents"):
            return self._side(asked)
        talk, heard = find(self._conversations, asked) or (self._begin(asked), 0)
        if heard == len(talk.turns):
            self._next(talk, asked, manner)
        turn = talk.turns[heard]
        turn.attempts += 1
        return self._attempt(talk, turn, asked, manner)

    def states(self) -> list[State]:
        return [self._state(talk) for talk in self._conversations if talk.turns]

    def _state(self, talk: Conversation) -> State:
        at = talk.turns[-1].step
        step = OVER if at is None else self._script.step[at]
        return State(
            conversation=talk.number,
            wire=talk.first.wire,
            model=talk.first.model,
            turns=len(talk.turns),
            step=None if at is None else at + 1,
            label=step.label,
            captured=dict(talk.captured),
            ended=step.end is not None,
        )

    def _side(self, asked: Asked) -> Play:
        """A title, a summary, a probe: a short answer that is no step."""
        self._sides += 1
        text = SIDE if asked.schema is None else dumped(filled(asked.schema)).decode()
        return Play("side", Reply(f"side{self._sides}", text, tokens=SIDE_USAGE))

    def _begin(self, asked: Asked) -> Conversation:
        if asked.after:
            raise ScriptFault(f"There is no answer {asked.after!r} to go on from.")
        talk = Conversation(len(self._conversations) + 1, asked)
        if self._conversations and self._script.sessions == "joined":
            last = self._conversations[-1]
            talk.start, talk.captured = self._following(last, asked), dict(last.captured)
        self._conversations.append(talk)
        return talk

    def _next(self, talk: Conversation, asked: Asked, manner: Manner | None) -> None:
        if not (talk.turns and talk.turns[-1].waits):
            talk.results.clear()
        talk.results.append(asked.result)
        if talk.turns and manner and (call := manner.waiting(asked.result)):
            reply = speech.waiting(call, talk.next_name, asked.wire, self._script.usage)
            talk.turns.append(Turn(talk.turns[-1].step, reply, waits=True))
            return
        at = self._following(talk, asked) if talk.turns else talk.start
        self._open(talk, self._reached(talk, at, asked), asked, manner)

    def _open(self, talk: Conversation, at: int | None, asked: Asked, manner: Manner | None) -> None:
        """The next turn, at a step; None: the script is over."""
        step = OVER if at is None else self._script.step[at]
        tokens = step.usage or self._script.usage
        reply = speech.reply(step, talk.next_name, asked.wire, manner, talk.captured, tokens)
        talk.turns.append(Turn(at, reply))

    def _following(self, talk: Conversation, asked: Asked) -> int | None:
        at = talk.turns[-1].step
        if at is None:
            return None
        step = self._script.step[at]
        talk.plays[at] += 1
        if step.until and not _matches(talk, step.until, asked) and talk.plays[at] < step.most:
            return at
        talk.plays[at] = 0
        return self._after(at)

    def _after(self, at: int) -> int:
        label = self._script.step[at].goto
        return self._script.where(label) if label else at + 1

    def _reached(self, talk: Conversation, at: int | None, asked: Asked) -> int | None:
        """The first step from there on that is to be played; None: the script is over."""
        passed = set[int]()
        while at is not None and at < len(self._script.step):
            step = self._script.step[at]
            if at in passed:
                raise ScriptFault(f"The script goes round at step {at + 1} without an answer.")
            passed.add(at)
            if step.when and not _matches(talk, step.when, asked):
                at = self._script.where(step.otherwise) if step.otherwise else at + 1
            elif step.speaks or step.fails:
                return at
            else:
                at = self._after(at)
        return None

    def _attempt(self, talk: Conversation, turn: Turn, asked: Asked, manner: Manner | None) -> Play:
        """First the step's errors, then its answer; a step that only fails then gives way to the next."""
        while turn.step is not None and not turn.waits:
            step = self._script.step[turn.step]
            fails = _count(step.fail.times if step.fail else None)
            hangs = fails + _count(step.hang)
            cuts = hangs + _count(step.cut)
            if step.fail and turn.attempts <= fails:
                return self._play(
                    talk, turn, speech.trouble(step.fail), "midway" if step.fail.midway else None
                )
            if turn.attempts <= hangs:
                return self._play(talk, turn, fault="hang")
            if step.speaks:
                return self._play(talk, turn, fault="cut" if turn.attempts <= cuts else None)
            at = self._reached(talk, self._after(turn.step), asked)
            talk.turns.pop()
            self._open(talk, at, asked, manner)
            turn = talk.turns[-1]
            turn.attempts = 1
        return self._play(talk, turn)

    def _play(
        self,
        talk: Conversation,
        turn: Turn,
        trouble: Trouble | None = None,
        fault: Fault | None = None,
    ) -> Play:
        step = OVER if turn.step is None else self._script.step[turn.step]
        return Play(
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


def _matches(talk: Conversation, when: When, asked: Asked) -> bool:
    """Whether all patterns are found; what they capture is kept."""
    wanted = ((when.result, "\n".join(talk.results)), (when.user, asked.user))
    found = [pattern.search(text) for pattern, text in wanted if pattern]
    for match in found:
        if match is None:
            return False
    for match in filter(None, found):
        talk.captured.update({name: value or "" for name, value in match.groupdict().items()})
    return True


def _count(times: Times | None) -> float:
    return float("inf") if times == "always" else times or 0
