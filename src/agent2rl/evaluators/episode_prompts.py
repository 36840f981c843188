"""The prompts of episodes, and the action in a reply."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, runtime_checkable

from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import TrajectoryTurn
from agent2rl.core.records import PromptTemplates

ANY = ""
"""The key of the text for all kinds of examples without their own text."""
LABEL = re.compile(r"^[\W_]*+action\s*+\d*+[^\w:]*+:[\s*_]*+", re.IGNORECASE)
"""Possessive quantifiers prevent backtracking: a line of many colons would take quadratic time."""
SIGN = re.compile(r"^(?:>\s*)+")
QUOTES = "\"'`"
MOST_CHARACTERS = 1000
"""Limit for an action: no environment has longer ones, and a model may talk without end."""


@dataclass(frozen=True)
class EpisodePrompt:
    chat: str
    """Text before the first observation, for a model with a chat template."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """The same for a model without one, by kind of example."""
    prompt: str = "\n>"
    """Ends an observation in plain text; the action comes next."""
    stop: tuple[str, ...] = ("\n",)
    """Ends an action in plain text."""
    name: str = "own"
    """Recorded with the result."""

    def build_first_message(self, seen: str, as_chat: bool, kind: str = ANY) -> Chat:
        """Return the message before the first action."""
        before = self.chat if as_chat else self._get_plain_text(kind)
        text = f"{before.strip()}\n\n{seen}" if before else seen
        return (ChatMessage("user", text if as_chat else text + self.prompt),)

    def build_next_message(self, seen: str, as_chat: bool) -> Chat:
        """Return the message after an action."""
        return (ChatMessage("user", seen if as_chat else f"\n{seen}{self.prompt}"),)

    def _get_plain_text(self, kind: str) -> str:
        text = self.plain.get(kind, self.plain.get(ANY))
        if text is None and self.plain:
            raise UserError(
                f"The prompts {self.name!r} have no plain text for {kind!r}.",
                f'Add it, or `""` for all others. There are: {", ".join(self.plain)}.',
            )
        return text or ""

    def with_prompts(self, prompts: PromptTemplates) -> Self:
        """Return a copy with these prompt texts."""
        plain = self.plain if prompts.plain is None else prompts.plain
        return replace(
            self,
            name=prompts.name,
            chat=self.chat if prompts.chat is None else prompts.chat,
            plain={ANY: plain} if isinstance(plain, str) else plain,
        )


@runtime_checkable
class WindowedPrompt(Protocol):
    """A prompt that writes the whole chat anew before each action, e.g. with the last few turns alone."""

    def build_chat(self, turns: Sequence[TrajectoryTurn]) -> Chat:
        """Return the chat. The first turn has the first observation and no action."""
        ...


@dataclass(frozen=True)
class ForcedAction:
    """How a reply without an action is continued: the model completes an action that is begun for it."""

    begin: str
    end: str
    """Ends the action, and is added to it."""
    max_tokens: int


def extract_action(reply: str) -> str:
    """Return the action in a reply: the text after an "Action:" label, or else the first non-empty line."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        if label := LABEL.match(line):
            return _strip_quotes(line[label.end() :] or below)
    return _strip_quotes(SIGN.sub("", lines[0])) if lines else ""


def _strip_quotes(action: str) -> str:
    """Remove emphasis and quotes around an action."""
    action = action.strip("* ")
    while len(action) > 1 and action[0] == action[-1] and action[0] in QUOTES:
        action = action[1:-1].strip()
    return action[:MOST_CHARACTERS]
