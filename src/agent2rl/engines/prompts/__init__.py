"""From chats to tokens, the same for every engine that runs a model directory. No engine itself.

Engines that read the same prompts and end replies at the same tokens give scores that can be compared.
Whatever is wrong with a model directory is a GradingError that says what.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from agent2rl.core.chat_format import CHAT_FORMAT_FILE, ChatFormat
from agent2rl.core.engine import Chat
from agent2rl.core.errors import GradingError
from agent2rl.engines.prompts.templates import TemplateRenderer

MAX_ERROR_CHARACTERS = 400
"""Characters of a library's error that are passed on."""


class PromptEncoder:
    """The tokens of chats and replies, for a model that knows so many and has room for so many."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: int,
        context: int,
        chat_format: ChatFormat | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.context = context
        self.chat_format = chat_format
        """In place of the tokenizer's template, where there is one."""
        template = tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        self._templates = TemplateRenderer(template or None, tokens)

    @property
    def templated(self) -> bool:
        return self.chat_format is not None or self._templates.template is not None

    def render(self, chats: Sequence[Chat]) -> list[str]:
        """The text that the model reads for each chat."""
        return self.chat_format.render_chats(chats) if self.chat_format else self._templates.render(chats)

    def encode_chats(self, chats: Sequence[Chat]) -> list[list[int]]:
        """The tokens that the model reads for each chat, none of which may be too long for it."""
        return [self.require_fitting(ids) for ids in self.encode_chats_unbounded(chats)]

    def encode_chats_unbounded(self, chats: Sequence[Chat]) -> list[list[int]]:
        """The tokens of each chat, however many."""
        # A template writes the special tokens itself.
        found = self._encode_texts(self.render(chats), special=not self.templated)
        if not all(found):
            raise GradingError("A chat without any token cannot be continued.", "Mend the chat template.")
        return found

    def encode_text(self, text: str) -> list[int]:
        return self._encode_texts([text], special=False)[0]

    def _encode_texts(self, texts: list[str], special: bool) -> list[list[int]]:
        """All at once, which a tokenizer does on all cores."""
        try:
            encoded = self.tokenizer(texts, add_special_tokens=special)["input_ids"] if texts else []
        except Exception as error:
            raise GradingError(f"The tokenizer fails on a text: {type(error).__name__}.") from error
        rows = [list(map(int, ids)) for ids in cast(list[list[int]], encoded)]
        largest = max((max(ids) for ids in rows if ids), default=0)
        if largest >= self.vocabulary or any(min(ids) < 0 for ids in rows if ids):
            raise GradingError(
                f"The tokenizer has a token {largest}; the model knows {self.vocabulary}.",
                "Submit the tokenizer that belongs to the model.",
            )
        return rows

    def close(self) -> None:
        self._templates.close()

    def require_fitting(self, ids: list[int]) -> list[int]:
        """The tokens themselves, if there is room for them and a reply."""
        if len(ids) >= self.context:
            raise GradingError(
                f"A chat has {len(ids)} tokens; the model's context has {self.context}.",
                "Train for a longer context, or keep the base model's max_position_embeddings.",
            )
        return ids


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        tokenizer.decode(tokenizer("a").input_ids)
    except Exception as error:
        raise build_loading_error("The tokenizer cannot be loaded", error) from error
    return cast(PreTrainedTokenizerBase, tokenizer)


def load_chat_format(directory: Path) -> ChatFormat | None:
    """The chat format that a model directory declares; None where it has none."""
    path = directory / CHAT_FORMAT_FILE
    return ChatFormat.model_validate_json(path.read_bytes()) if path.is_file() else None


def find_end_tokens(config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a reply: the configuration's and the tokenizer's, not generation_config.json's."""
    return frozenset(_flatten_numbers([config.eos_token_id, tokenizer.eos_token_id]))


def build_loading_error(what: str, error: Exception) -> GradingError:
    said = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    return GradingError(
        f"{what}: {type(error).__name__}: {said}",
        "Save model and tokenizer with save_pretrained(path), and load them once with transformers to try.",
    )


def _flatten_numbers(found: Iterable[object]) -> Iterable[int]:
    """The numbers among numbers, lists of numbers and nothing."""
    for entry in found:
        if isinstance(entry, int):
            yield entry
        elif isinstance(entry, list | tuple):
            yield from _flatten_numbers(entry)
