"""An engine loads a model and generates replies to chats. It knows nothing about tasks.

Every engine implements `Engine`. Some implement more protocols (`ScoringEngine`, `LogprobsEngine`,
`ConversationEngine`, …), which `isinstance` detects. `open_conversations` and `has_chat_template` work with
every engine.

A chat format turns a chat into text without code. A submission may include one as `chat_format.json` in place
of the base model's chat template. It is rendered here, by a loop over the messages; nothing in it is ever
executed, and it cannot depend on the content of a message.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Protocol, Self, runtime_checkable

from pydantic import Field

from agent2rl.core.records import Record


@dataclass(frozen=True)
class ChatMessage:
    role: Literal["system", "user", "assistant"]
    content: str


Chat = tuple[ChatMessage, ...]


@dataclass(frozen=True, repr=False)
class Sampling:
    """How to sample: temperature 0 is greedy; each chat of a batch gets its own seed, derived from `seed`."""

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    plain: bool = False
    """Whether the model continues the plain text of the chat, even if it has a chat template."""

    def __repr__(self) -> str:
        # Versions of evaluators are hashes of this text, so `plain` is in it only where it is set.
        names = ("max_tokens", "temperature", "seed", "stop", *(("plain",) if self.plain else ()))
        return f"Sampling({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def derive_seed(self, index: int | str) -> int:
        """Return the seed of one chat, by its index or name: 31 bits, which every engine accepts."""
        digest = hashlib.blake2b(f"{self.seed}:{index}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int
    """Tokens generated, as the engine counts them."""
    full: bool = False
    """Whether the conversation is too long for another reply."""


class Engine(Protocol):
    """A loaded model; a context manager that frees its memory."""

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        """Return one completion for each chat, in order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can compute the likelihood of a text."""

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        """Return the natural log-probability of each continuation as the reply to its chat."""
        ...


@dataclass(frozen=True)
class ReplyLogprobs:
    """A reply with the log-probabilities of its possible first tokens."""

    text: str
    first: Mapping[str, float] | None
    """Natural log-probabilities of the likeliest first tokens; None if the server does not return them."""


@runtime_checkable
class LogprobsEngine(Protocol):
    """An engine that calls a remote model, which may return log-probabilities of the first token."""

    def generate_with_logprobs(self, chats: Sequence[Chat], sampling: Sampling) -> list[ReplyLogprobs]: ...


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine that calls a remote model; it knows the model's name there and the URL."""

    @property
    def model(self) -> str: ...

    @property
    def url(self) -> str: ...


@runtime_checkable
class TemplateAwareEngine(Protocol):
    """An engine that knows whether its model has a chat template; other engines take chats as they are."""

    @property
    def templated(self) -> bool: ...


@runtime_checkable
class RecordedEngine(Protocol):
    """An engine without a model: it returns recorded answers, by names that the caller knows."""

    def get_outputs(self, name: str) -> Sequence[str]:
        """Return every answer recorded under a name, in full."""
        ...


def render_plain_text(chat: Chat) -> str:
    """Render a chat for a model without a chat template.

    Messages are paragraphs, but an assistant message directly continues the text before it. The message after
    an assistant message continues directly too: its author starts it with a newline.
    """
    text, previous_role = "", ""
    for message in chat:
        new_paragraph = previous_role and "assistant" not in (previous_role, message.role)
        text += ("\n\n" if new_paragraph else "") + message.content
        previous_role = message.role
    return text


def has_chat_template(engine: Engine) -> bool:
    """Return whether the model has a chat template; without one it continues the chat's plain text."""
    return engine.templated if isinstance(engine, TemplateAwareEngine) else True


class Conversations(Protocol):
    """Chats that grow turn by turn, each under a name that the caller chooses."""

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        """Append messages to each named conversation, generate and append the replies, and return these.

        A new name starts a conversation. Greedy replies equal those that `generate` gives to the full chats.
        A conversation that is too long for the model gets an empty reply with `full` set.
        """
        ...

    def drop(self, names: Iterable[str]) -> None:
        """Forget these conversations; unknown names are ignored."""
        ...


@runtime_checkable
class ConversationEngine(Protocol):
    """An engine that caches the state of conversations and processes only new messages."""

    def conversations(self) -> Conversations: ...


@dataclass
class StatelessConversations:
    """Conversations with a stateless engine, which gets the full chat at each turn."""

    engine: Engine
    chats: dict[str, Chat] = field(default_factory=dict)

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        chats = {name: self.chats.get(name, ()) + messages for name, messages in turns.items()}
        replies = dict(zip(chats, self.engine.generate(list(chats.values()), sampling), strict=True))
        for name, chat in chats.items():
            self.chats[name] = (*chat, ChatMessage("assistant", replies[name].text))
        return replies

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self.chats.pop(name, None)


def open_conversations(engine: Engine) -> Conversations:
    """Return conversations with any engine, cached if the engine supports it."""
    return (
        engine.conversations() if isinstance(engine, ConversationEngine) else StatelessConversations(engine)
    )


@runtime_checkable
class ForkableEngine(Protocol):
    """An engine that can share its work with processes forked from this one."""

    def fork_processes(self, most: int) -> AbstractContextManager[Engine]:
        """Return an engine with the same replies, which runs in up to `most` processes if that is faster."""
        ...


def use_all_cores(engine: Engine, most: int) -> AbstractContextManager[Engine]:
    """Return the engine; inside the context it runs in up to `most` processes if that is faster.

    Call it before this process starts threads, which a fork does not have.
    """
    return engine.fork_processes(most) if isinstance(engine, ForkableEngine) else nullcontext(engine)


OpenEngine = Callable[[Path], Engine]
"""What an engine plugin provides: a function from a model directory to a loaded engine."""


# Chat formats: constant text around each message, which itself stays unchanged

CHAT_FORMAT_FILE = "chat_format.json"
MAX_TEXT_CHARACTERS = 200
"""Longest prefix or suffix: enough for role markers and a sentence, too short for a table of answers."""

FormatText = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]


class RoleFormat(Record):
    """Text before and after each message of one role."""

    prefix: FormatText = ""
    suffix: FormatText = ""


class ChatFormat(Record):
    """How to render a chat as the text that the model reads."""

    begin: FormatText = ""
    """Start of every chat, such as a beginning-of-text token."""
    system: RoleFormat
    user: RoleFormat
    assistant: RoleFormat
    generation_prompt: FormatText
    """End of the text, where the model's reply starts."""

    def render_chat(self, chat: Chat) -> str:
        roles = {"system": self.system, "user": self.user, "assistant": self.assistant}
        turns = (
            f"{roles[message.role].prefix}{message.content}{roles[message.role].suffix}" for message in chat
        )
        return f"{self.begin}{''.join(turns)}{self.generation_prompt}"

    def render_chats(self, chats: Sequence[Chat]) -> list[str]:
        return [self.render_chat(chat) for chat in chats]


def _describe_turns(user: str, assistant: str) -> ChatFormat:
    """Return a format that prefixes each turn with a word and a colon."""
    return ChatFormat(
        system=RoleFormat(suffix="\n\n"),
        user=RoleFormat(prefix=f"{user}: ", suffix="\n"),
        assistant=RoleFormat(prefix=f"{assistant}: ", suffix="\n\n"),
        generation_prompt=f"{assistant}:",
    )


USUAL_FORMATS = (
    _describe_turns("User", "Assistant"),
    _describe_turns("Question", "Answer"),
    ChatFormat(
        system=RoleFormat(suffix="\n\n"),
        user=RoleFormat(suffix="\n"),
        assistant=RoleFormat(suffix="\n\n"),
        generation_prompt="",
    ),
)
"""Formats that most models understand. The untouched model's scores in them bound a format's own gain."""
