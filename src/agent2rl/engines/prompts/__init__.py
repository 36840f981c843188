"""Turn chats into tokens, the same way for every engine that runs a model directory. Not an engine itself.

Engines that read the same prompts and end replies at the same tokens give comparable scores. A fault of a
model directory is a GradingError that describes it.

A chat template is a program that the agent may have written. It is rendered in Jinja's sandbox, in its own
process (`template_worker.py`) with limited memory, which is killed if it takes too long: a loop inside one
Jinja operation cannot be interrupted in any other way. A model without a template gets plain text to
continue.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from agent2rl.core.engine import CHAT_FORMAT_FILE, Chat, ChatFormat, Sampling, render_plain_text
from agent2rl.core.errors import GradingError
from agent2rl.engines.prompts.continuation import ChatContinuation, EncodedChat

# Rendering chats as text

RENDER_SECONDS = 5.0
RENDER_SECONDS_PER_CHAT = 0.01
START_SECONDS = 60.0
"""Python and Jinja start within this time even on a busy machine."""
WORKER = Path(__file__).with_name("template_worker.py")
TEMPLATE_HINT = (
    "Keep the base model's template, or try yours on a few chats with tokenizer.apply_chat_template."
)


class TemplateRenderer:
    """Renders chats with a template, or as plain text if there is none."""

    def __init__(self, template: str | None, tokens: dict[str, str]) -> None:
        self.template = template
        self.tokens = tokens
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, chats: Sequence[Chat]) -> list[str]:
        if self.template is None:
            return [render_plain_text(chat) for chat in chats]
        # An empty first request waits for the process, so that its start does not count as rendering time.
        if self._process is None:
            self._start_worker()
            self._request_texts([], START_SECONDS)
        request = [[{"role": turn.role, "content": turn.content} for turn in chat] for chat in chats]
        return self._request_texts(request, RENDER_SECONDS + RENDER_SECONDS_PER_CHAT * len(chats))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start_worker(self) -> None:
        # Isolated from the user's environment and directories, of which it needs nothing.
        argv = [sys.executable, "-I", str(WORKER)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={})
        self._send_line({"template": self.template, "tokens": self.tokens})

    def _request_texts(self, chats: list[list[dict[str, str]]], seconds: float) -> list[str]:
        try:
            self._send_line(chats)
            answer = json.loads(self._read_line(time.monotonic() + seconds))
        except (OSError, ValueError):
            self.close()
            raise GradingError("The chat template needs too much memory or crashes.", TEMPLATE_HINT) from None
        if "error" in answer:
            raise GradingError(f"The chat template fails with {answer['error']}.", TEMPLATE_HINT)
        texts: list[str] = answer["texts"]
        return texts

    def _send_line(self, value: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def _read_line(self, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise GradingError("The chat template takes too long.", TEMPLATE_HINT)
            piece = os.read(stdout, 1 << 20)
            if not piece:
                raise OSError("the worker exited")
            pieces.append(piece)
        return b"".join(pieces)


# Encoding text as tokens

MAX_ERROR_CHARACTERS = 400
"""Maximum characters of a library's error that are shown."""


class PromptEncoder:
    """Encodes chats and replies, and checks them against the model's vocabulary and context."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: int,
        context: int,
        chat_format: ChatFormat | None = None,
        plain: bool = False,
    ) -> None:
        """`plain` encodes all chats as plain text, even if the tokenizer has a chat template."""
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.context = context
        self.chat_format = chat_format
        """If set, it replaces the tokenizer's template."""
        template = None if plain else tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        self._templates = TemplateRenderer(template or None, tokens)
        self._continuation = ChatContinuation(
            tokenizer, template if self.templated else None, self.render, self._encode_rendered
        )

    def select_encoder(self, sampling: Sampling) -> "PromptEncoder":
        """Return the encoder for a sampling: this one, or one that encodes plain text."""
        return self._plain_encoder if sampling.plain and self.templated else self

    @cached_property
    def _plain_encoder(self) -> "PromptEncoder":
        return PromptEncoder(self.tokenizer, self.vocabulary, self.context, plain=True)

    @property
    def templated(self) -> bool:
        return self.chat_format is not None or self._templates.template is not None

    def render(self, chats: Sequence[Chat]) -> list[str]:
        """Return the text that the model reads for each chat."""
        return self.chat_format.render_chats(chats) if self.chat_format else self._templates.render(chats)

    def encode_chats(self, chats: Sequence[Chat]) -> list[list[int]]:
        """Return the tokens of each chat; raise GradingError if one is too long for the model."""
        return [self.require_fitting(ids) for ids in self.encode_chats_unbounded(chats)]

    def encode_chats_unbounded(self, chats: Sequence[Chat]) -> list[list[int]]:
        """Return the tokens of each chat, of any length."""
        return self._encode_rendered(self.render(chats))

    def continue_chats(
        self, chats: Sequence[Chat], earlier: Sequence[EncodedChat | None]
    ) -> list[EncodedChat]:
        """Encode chats, of any length, as `encode_chats_unbounded` does.

        It is faster if `earlier` has what this returned for a chat without its last two messages.
        """
        return self._continuation.encode_chats(chats, earlier)

    def _encode_rendered(self, texts: Sequence[str]) -> list[list[int]]:
        # A template writes the special tokens itself.
        rows = self._encode_texts(list(texts), special=not self.templated)
        if not all(rows):
            raise GradingError("A chat without any token cannot be continued.", "Fix the chat template.")
        return rows

    def encode_text(self, text: str) -> list[int]:
        return self._encode_texts([text], special=False)[0]

    def _encode_texts(self, texts: list[str], special: bool) -> list[list[int]]:
        """Encode all texts in one call, so that the tokenizer uses all cores."""
        try:
            encoded = self.tokenizer(texts, add_special_tokens=special)["input_ids"] if texts else []
        except Exception as error:
            raise GradingError(f"The tokenizer fails on a text: {type(error).__name__}.") from error
        rows = cast(list[list[int]], encoded)
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
        """Return the tokens; raise GradingError if there is no room for them and a reply."""
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
    """Return the chat format of a model directory; None if it has none."""
    path = directory / CHAT_FORMAT_FILE
    return ChatFormat.model_validate_json(path.read_bytes()) if path.is_file() else None


def find_end_tokens(config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the end tokens of the configuration and the tokenizer, not of generation_config.json."""
    return frozenset(_flatten_numbers([config.eos_token_id, tokenizer.eos_token_id]))


def build_loading_error(what: str, error: Exception) -> GradingError:
    message = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    return GradingError(
        f"{what}: {type(error).__name__}: {message}",
        "Save model and tokenizer with save_pretrained(path), and test that transformers can load them.",
    )


def _flatten_numbers(values: Iterable[object]) -> Iterable[int]:
    """Yield the numbers in a nested list of numbers and None."""
    for entry in values:
        if isinstance(entry, int):
            yield entry
        elif isinstance(entry, list | tuple):
            yield from _flatten_numbers(entry)
