"""Encode the next turn of a conversation by what it adds, instead of from its start.

Rendering and tokenizing the whole chat again for each turn takes longer than a small model's reply. Most chat
templates only append: the reply, a separator, the next message, and a tail in which the model replies. This
module finds separator and tail with a few probes and then appends them itself. Tokens are kept up to the last
special token, because no tokenizer merges across it.

Neither is taken for granted. A template that does something else with the probes, or a message with text that
the template mentions, is rendered by the template. The first continuations are also rendered and tokenized in
full, and one that differs ends all shortcuts. So a chat has the same tokens either way.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, ChatMessage

CHECKED_CONTINUATIONS = 16
"""So many continuations are compared with the chat as a whole."""


@dataclass(frozen=True)
class EncodedChat:
    """A chat as the model reads it."""

    messages: int
    text: str
    ids: list[int]


@dataclass(frozen=True)
class ContinuationFormat:
    """What a template puts after a reply and after the message that follows it."""

    separator: str
    tail: str


def find_continuation_format(render: Callable[[Sequence[Chat]], list[str]]) -> ContinuationFormat | None:
    """Return how the template continues a chat; None if it does more than append."""
    user = [ChatMessage("user", text) for text in ("Qa1", " Qb2 \n", "Qc3")]
    reply = [ChatMessage("assistant", text) for text in ("Ra1", "\nRb2 ")]
    try:
        first, second, third = render(
            [(user[0],), (user[0], reply[0], user[1]), (user[0], reply[0], user[1], reply[1], user[2])]
        )
    except Exception:  # a template may refuse any chat; it is asked again with the real ones
        return None
    _, found, tail = first.rpartition(user[0].content)
    separator, found_too, _ = second[len(first) + len(reply[0].content) :].partition(user[1].content)
    if not found or not found_too:
        return None
    format_ = ContinuationFormat(separator, tail)
    continued = append_turn(first, reply[0].content, user[1].content, format_)
    if continued != second or append_turn(second, reply[1].content, user[2].content, format_) != third:
        return None
    return format_


def append_turn(text: str, reply: str, message: str, format_: ContinuationFormat) -> str:
    return f"{text}{reply}{format_.separator}{message}{format_.tail}"


class ChatContinuation:
    """Encodes chats of which an earlier part is encoded already."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None,
        render: Callable[[Sequence[Chat]], list[str]],
        encode: Callable[[Sequence[str]], list[list[int]]],
    ) -> None:
        self._render, self._encode = render, encode
        self._format: ContinuationFormat | None = None
        self._is_possible = template is not None
        self._unchecked = CHECKED_CONTINUATIONS
        self._mentioned = set(re.findall(r"<[^<>'\"\s]{2,}>|\[[A-Z_/]{3,}\]", template or ""))
        specials = {
            int(number): token.content
            for number, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
            if token.special and not (token.lstrip or token.rstrip or token.normalized)
        }
        self._special_ids = frozenset(specials)
        self._specials = tuple(specials.values())
        self._last_special = ""

    def encode_chats(self, chats: Sequence[Chat], earlier: Sequence[EncodedChat | None]) -> list[EncodedChat]:
        """Encode chats. `earlier` has what a call returned for the chat without its last two messages."""
        encoded: dict[int, EncodedChat] = {}
        if any(part is not None for part in earlier) and self._can_continue():
            pairs = [
                (place, chat, part)
                for place, (chat, part) in enumerate(zip(chats, earlier, strict=True))
                if part is not None and self._appends_turn(chat, part)
            ]
            for (place, _, _), found in zip(pairs, self._continue_chats(pairs), strict=True):
                encoded[place] = found
        if rest := [place for place in range(len(chats)) if place not in encoded]:
            texts = self._render([chats[place] for place in rest])
            for place, text, ids in zip(rest, texts, self._encode(texts), strict=True):
                encoded[place] = EncodedChat(len(chats[place]), text, ids)
        return [encoded[place] for place in range(len(chats))]

    def _can_continue(self) -> bool:
        if self._is_possible and self._format is None:
            self._format = find_continuation_format(self._render)
            self._is_possible = self._format is not None
        return self._is_possible

    def _appends_turn(self, chat: Chat, part: EncodedChat) -> bool:
        new = chat[part.messages :]
        return [message.role for message in new] == ["assistant", "user"] and not any(
            mention in message.content for message in new for mention in self._mentioned
        )

    def _continue_chats(self, pairs: Sequence[tuple[int, Chat, EncodedChat]]) -> list[EncodedChat]:
        assert self._format is not None
        texts, kept = [], []
        for _, chat, part in pairs:
            texts.append(append_turn(part.text, chat[-2].content, chat[-1].content, self._format))
            kept.append(self._find_stable_part(part))
        suffixes = [text[characters:] for text, (characters, _) in zip(texts, kept, strict=True)]
        found = [
            EncodedChat(len(chat), text, part.ids[:tokens] + ids)
            for (_, chat, part), text, (_, tokens), ids in zip(
                pairs, texts, kept, self._encode(suffixes), strict=True
            )
        ]
        return self._check_continuations([chat for _, chat, _ in pairs], found)

    def _find_stable_part(self, part: EncodedChat) -> tuple[int, int]:
        """Return the characters and the tokens up to the last special token."""
        end, special = -1, ""
        # Only the text behind the last one found is searched for others: most are nowhere in it.
        for token in (self._last_special, *self._specials):
            start = part.text.rfind(token, max(end, 0)) if token else -1
            if (start, token) > (end, special):
                end, special = start, token
        self._last_special = special
        if end < 0:
            return 0, 0
        last = next((n for n in range(len(part.ids) - 1, -1, -1) if part.ids[n] in self._special_ids), -1)
        return (end + len(special), last + 1) if last >= 0 else (0, 0)

    def _check_continuations(self, chats: Sequence[Chat], found: list[EncodedChat]) -> list[EncodedChat]:
        checked = chats[: self._unchecked]
        if not checked:
            return found
        self._unchecked -= len(checked)
        texts = self._render(checked)
        ids = self._encode(texts)
        right = [
            EncodedChat(len(chat), text, row) for chat, text, row in zip(checked, texts, ids, strict=True)
        ]
        if right == found[: len(right)]:
            return found
        self._is_possible = False
        texts = self._render(chats)
        return [
            EncodedChat(len(chat), text, row)
            for chat, text, row in zip(chats, texts, self._encode(texts), strict=True)
        ]
