"""A chat format without code: constant text around each message, and the message itself as it is.

A submission may bring one as `chat_format.json` in place of the base model's chat template. It is rendered
here, by a loop over the messages; nothing in it is ever executed, and it cannot look at what a message says.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from agent2rl.core.engine import Chat
from agent2rl.core.records import Record

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
