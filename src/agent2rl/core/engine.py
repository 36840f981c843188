"""An engine answers chats with text. It knows nothing of tasks.

`Engine` is what every engine can do. Some can do more (`ScoringEngine`, `LogprobsEngine`,
`ConversationEngine`, …), which `isinstance` tells; `open_conversations` and `has_chat_template` serve every
engine, with whatever it has to offer.

A chat format turns a chat into text without code. A submission may bring one as `chat_format.json` in place
of the base model's chat template. It is rendered here, by a loop over the messages; nothing in it is ever
executed, and it cannot look at what a message says.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class Sampling:
    """How to sample: temperature 0 is greedy; each chat of a batch gets its own seed, derived from `seed`."""

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def derive_seed(self, index: int) -> int:
        """The seed of one chat of a batch, for engines that take a number: 31 bits, which all of them do."""
        digest = hashlib.blake2b(f"{self.seed}:{index}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int
    """Tokens generated, as the engine counts them."""
    full: bool = False
    """Whether a conversation has no room for a reply any more."""


class Engine(Protocol):
    """A loaded model; a context manager, so that its memory is given back."""

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        """One completion for each chat, in order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can say how likely a text is."""

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        """The natural log-probability of each continuation as the reply to its chat."""
        ...


@dataclass(frozen=True)
class ReplyLogprobs:
    """A reply, and how it might have begun."""

    text: str
    first: Mapping[str, float] | None
    """Natural log-probabilities of the likeliest first tokens; None where they are not given."""


@runtime_checkable
class LogprobsEngine(Protocol):
    """An engine that asks a model elsewhere, and may be told how likely other first tokens were."""

    def weigh(self, chats: Sequence[Chat], sampling: Sampling) -> list[ReplyLogprobs]: ...


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine that talks to a model elsewhere, and knows what it is called there and where that is."""

    @property
    def model(self) -> str: ...

    @property
    def url(self) -> str: ...


@runtime_checkable
class TemplateAwareEngine(Protocol):
    """An engine that knows whether its model has a chat template. One that does not know answers chats."""

    @property
    def templated(self) -> bool: ...


@runtime_checkable
class RecordedEngine(Protocol):
    """An engine without a model: it has what was answered elsewhere, under names that the caller knows."""

    def given(self, name: str) -> Sequence[str]:
        """Every answer under a name, uncut."""
        ...


def render_plain_text(chat: Chat) -> str:
    """A chat for a model without a template: paragraphs, and what it said goes on from what it was told.

    What follows what it said goes on from there, too: whoever tells it begins with a line's end.
    """
    text, before = "", ""
    for message in chat:
        apart = before and "assistant" not in (before, message.role)
        text += ("\n\n" if apart else "") + message.content
        before = message.role
    return text


def has_chat_template(engine: Engine) -> bool:
    """Whether chats are put to the model as such; without a template it continues their plain text."""
    return engine.templated if isinstance(engine, TemplateAwareEngine) else True


class Conversations(Protocol):
    """Chats that grow turn by turn, each under a name of the caller's choice."""

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        """Add these messages to each named conversation and the reply to them, which is what is returned.

        A new name begins a conversation. Greedy replies are those that `generate` gives to the whole chats.
        A conversation that has become too long for the model gets an empty reply that says so (`full`).
        """
        ...

    def drop(self, names: Iterable[str]) -> None:
        """Forget these conversations; names that are not known are no fault."""
        ...


@runtime_checkable
class ConversationEngine(Protocol):
    """An engine that keeps what it has read of a conversation, and reads only what is new."""

    def conversations(self) -> Conversations: ...


@dataclass
class StatelessConversations:
    """Conversations with an engine that keeps nothing: it is told everything again at each turn."""

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
    """Conversations with any engine."""
    return (
        engine.conversations() if isinstance(engine, ConversationEngine) else StatelessConversations(engine)
    )


OpenEngine = Callable[[Path], Engine]
"""What an engine plugin provides: given a model directory, a loaded engine."""


# A chat format without code: constant text around each message, and the message itself as it is.

CHAT_FORMAT_FILE = "chat_format.json"
MAX_TEXT_CHARACTERS = 200
"""Of one prefix or suffix: enough for role markers and a sentence, too little for a table of answers."""

FormatText = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]


class RoleFormat(Record):
    """What stands before and after each message of one role."""

    prefix: FormatText = ""
    suffix: FormatText = ""


class ChatFormat(Record):
    """How a chat becomes the text that the model reads."""

    begin: FormatText = ""
    """At the start of every chat, such as a beginning-of-text token."""
    system: RoleFormat
    user: RoleFormat
    assistant: RoleFormat
    generation_prompt: FormatText
    """At the end, where the model's reply begins."""

    def render_chat(self, chat: Chat) -> str:
        roles = {"system": self.system, "user": self.user, "assistant": self.assistant}
        turns = (
            f"{roles[message.role].prefix}{message.content}{roles[message.role].suffix}" for message in chat
        )
        return f"{self.begin}{''.join(turns)}{self.generation_prompt}"

    def render_chats(self, chats: Sequence[Chat]) -> list[str]:
        return [self.render_chat(chat) for chat in chats]


def _describe_turns(user: str, assistant: str) -> ChatFormat:
    """A format in which every turn is a paragraph after a word and a colon."""
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
"""What most models understand. How well an untouched model does in them bounds what a format alone gains."""
