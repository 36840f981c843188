"""How a world is put to a model, and how its reply is read.

A model with a chat template is told once what to do; then every observation is a user's message and every
reply the assistant's. One without continues a text in which others have played before: `plain` holds them, in
the form that goes on below it: an observation, and on the next line `>` and an action.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.core.errors import UserError
from agent2rl.core.records import PromptTemplates

ANY = ""
"""The key of the text for every kind of example that has none of its own."""
LABEL = re.compile(r"^[\W_]*+action\s*+\d*+[^\w:]*+:[\s*_]*+", re.IGNORECASE)
"""Nothing is tried twice: a line of many colons would take as long as their square."""
SIGN = re.compile(r"^(?:>\s*)+")
QUOTES = "\"'`"
MOST_CHARACTERS = 1000
"""Of an action: no world has a longer one, and a model may talk without end."""


@dataclass(frozen=True)
class EpisodePrompt:
    chat: str
    """Stands before the first observation, for a model with a chat template."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """The same for one without, by kind of example."""
    prompt: str = "\n>"
    """Ends an observation in plain text; the action follows."""
    stop: tuple[str, ...] = ("\n",)
    """Ends an action in plain text."""
    name: str = "own"
    """For the record."""

    def build_first_message(self, seen: str, as_chat: bool, kind: str = ANY) -> Chat:
        """What a model reads before its first action."""
        before = self.chat if as_chat else self._get_plain_text(kind)
        told = f"{before.strip()}\n\n{seen}" if before else seen
        return (ChatMessage("user", told if as_chat else told + self.prompt),)

    def build_next_message(self, seen: str, as_chat: bool) -> Chat:
        """What it reads after an action."""
        return (ChatMessage("user", seen if as_chat else f"\n{seen}{self.prompt}"),)

    def _get_plain_text(self, kind: str) -> str:
        found = self.plain.get(kind, self.plain.get(ANY))
        if found is None and self.plain:
            raise UserError(
                f"The prompts {self.name!r} have no plain text for {kind!r}.",
                f'Name it, or `""` for all others; there are {", ".join(self.plain)}.',
            )
        return found or ""

    def prompted(self, prompts: PromptTemplates) -> Self:
        """The same, in other words."""
        plain = self.plain if prompts.plain is None else prompts.plain
        return replace(
            self,
            name=prompts.name,
            chat=self.chat if prompts.chat is None else prompts.chat,
            plain={ANY: plain} if isinstance(plain, str) else plain,
        )


def extract_action(reply: str) -> str:
    """The action in a reply: what it calls its action, or else its first line that says something."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        if label := LABEL.match(line):
            return _strip_quotes(line[label.end() :] or below)
    return _strip_quotes(SIGN.sub("", lines[0])) if lines else ""


def _strip_quotes(action: str) -> str:
    """Without emphasis or quotes around it."""
    action = action.strip("* ")
    while len(action) > 1 and action[0] == action[-1] and action[0] in QUOTES:
        action = action[1:-1].strip()
    return action[:MOST_CHARACTERS]
