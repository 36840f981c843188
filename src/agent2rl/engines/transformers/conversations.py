"""Conversations that keep their keys and values, so that a turn reads only what it adds.

The whole chat is written out by the template at each turn and held against the tokens that were read before:
what they have in common is not read again. So a reply is the one that `generate` gives to the whole chat,
also where a template rewrites earlier turns or the tokens of a reply come back divided in another way.

What is kept has a limit in tokens; the conversation that was silent longest loses its keys and values first,
and is read again from the start if it goes on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent2rl.core.engine import Chat, ChatMessage, Completion, Sampling
from agent2rl.engines.transformers.decoding import GenerationRequest
from agent2rl.engines.transformers.kv_cache import CachedPrefix

RunRequests = Callable[[Sequence[Chat], Sequence[GenerationRequest], Sampling], list[Completion]]
"""Fills in the requests' tokens, runs them, and says what came of it."""


class CachedConversations:
    def __init__(self, reply: RunRequests, tokens: int) -> None:
        self.chats: dict[str, Chat] = {}
        self._reply = reply
        self._tokens = tokens
        self._kept: dict[str, CachedPrefix] = {}
        """In the order of use, the latest last."""

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        chats = {name: self.chats.get(name, ()) + messages for name, messages in turns.items()}
        # A turn's random numbers depend on the conversation and how far it has come, not on the company.
        requests = [
            GenerationRequest([], f"{sampling.seed}:{name}:{len(chat)}", self._kept.get(name), keep=True)
            for name, chat in chats.items()
        ]
        replies = dict(zip(chats, self._reply(list(chats.values()), requests, sampling), strict=True))
        for (name, chat), request in zip(chats.items(), requests, strict=True):
            self.chats[name] = (*chat, ChatMessage("assistant", replies[name].text))
            self._store_prefix(name, request.prefix)
        return replies

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self.chats.pop(name, None)
            self._kept.pop(name, None)

    def _store_prefix(self, name: str, prefix: CachedPrefix | None) -> None:
        self._kept.pop(name, None)
        if prefix is not None:
            self._kept[name] = prefix
        while sum(len(kept.tokens) for kept in self._kept.values()) > self._tokens:
            del self._kept[next(iter(self._kept))]
