"""The published forms of the prompts of the three worlds, and of the actions in their replies.

The forms are those of the published benchmark; the words are our own. docs/protocols.md compares them with
the default prompts. They are not with the tasks because the agent's `eval.py` imports them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.core.grading_records import TrajectoryTurn
from agent2rl.environments.webshop.pages import ACTIONS_HEADING
from agent2rl.evaluators.episode_prompts import ANY, EpisodePrompt

# ALFWorld: a text of two examples of the same kind of task, which every model continues

TASK_HEADING = "\nNow your task.\n"
_ARRIVAL = re.compile(r"^You arrive at loc [^.]*\. ")


@dataclass(frozen=True)
class ReactPrompt(EpisodePrompt):
    """Two examples, the game without its welcome, and all commands and answers since then."""

    def build_first_message(self, seen: str, as_chat: bool, kind: str = ANY) -> Chat:
        del as_chat
        _, _, game = seen.partition("\n\n")
        start = "\n".join((game or seen).split("\n\n"))
        return (ChatMessage("user", f"{self._get_plain_text(kind)}{TASK_HEADING}{start}{self.prompt}"),)

    def build_next_message(self, seen: str, as_chat: bool) -> Chat:
        del as_chat
        return (ChatMessage("user", f"\n{_ARRIVAL.sub('', seen)}{self.prompt}"),)


def strip_command(reply: str) -> str:
    """Return the whole line as the command."""
    return reply.strip()


# WebShop: a system message, and the page with its actions and the last turns in one user message

_INSTRUCTION = re.compile(r"Instruction:( \S+ )(?P<text>.*?)\1", re.DOTALL)
_LABEL = "Action:"


@dataclass(frozen=True)
class ShopWindowPrompt(EpisodePrompt):
    """The instruction, the actions that the page offers, and the last turns; `chat` is the system message."""

    window: int = 5
    """How many earlier turns are shown."""
    request: str = ""
    """The user message up to the turns, with {instruction} and {actions}."""

    def build_chat(self, turns: Sequence[TrajectoryTurn]) -> Chat:
        page, _, actions = turns[-1].observation.partition(ACTIONS_HEADING)
        instruction = _INSTRUCTION.search(turns[0].observation)
        text = self.request.replace("{instruction}", instruction["text"] if instruction else "")
        text = text.replace("{actions}", actions)
        # As published, an observation is shown with the action that led to it, not with the one after it.
        for number in range(max(1, len(turns) - self.window), len(turns)):
            shown = turns[number].observation.partition(ACTIONS_HEADING)[0]
            text += f"\nObservation {number}: {shown}\nAction {number}: {turns[number].action}\n"
        text += f"\nObservation {len(turns)}: {page}\nAction {len(turns)}:"
        return (ChatMessage("system", self.chat), ChatMessage("user", text))

    def build_first_message(self, seen: str, as_chat: bool, kind: str = ANY) -> Chat:
        del as_chat, kind
        return self.build_chat([TrajectoryTurn(action="", observation=seen)])

    def build_next_message(self, seen: str, as_chat: bool) -> Chat:
        """Return the message for trainings that keep the whole conversation."""
        page, _, actions = seen.partition(ACTIONS_HEADING)
        start = "" if as_chat else "\n"
        return (ChatMessage("user", f"{start}Available actions:\n{actions}\n\nObservation: {page}\nAction:"),)


def extract_shop_action(reply: str) -> str:
    action = reply.strip().removeprefix(_LABEL).strip()
    return f"click[{action.removeprefix('choose[')}" if action.startswith("choose[") else action


# DeepSearchQA: a text of thoughts, actions and observations, which every model continues

NO_ANSWER = "answer[]"
_SEARCH_ACTION = re.compile(r"Action:\s*(?P<verb>search|answer)\[(?P<text>.+?)\]", re.DOTALL)


@dataclass(frozen=True)
class ThoughtPrompt(EpisodePrompt):
    """Instructions, the question, and all thoughts, actions and observations since then."""

    prompt: str = "\nThought:"

    def build_first_message(self, seen: str, as_chat: bool, kind: str = ANY) -> Chat:
        del as_chat
        return (ChatMessage("user", f"{self._get_plain_text(kind).strip()}\n\n{seen}\n{self.prompt}"),)

    def build_next_message(self, seen: str, as_chat: bool) -> Chat:
        del as_chat
        return (ChatMessage("user", f"\nObservation: {seen}{self.prompt}"),)


def extract_labelled_action(reply: str) -> str:
    """Return the first labelled search or answer of a reply, or an empty text. A last answer may be empty."""
    if found := _SEARCH_ACTION.search(reply):
        return f"{found['verb']}[{' '.join(found['text'].split())}]"
    return NO_ANSWER if reply.endswith(f"{_LABEL} {NO_ANSWER}") else ""
