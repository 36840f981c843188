"""The untouched base model that submissions are compared with. It is the user's own, so it is trusted."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent2rl.core.engine import CHAT_FORMAT_FILE, MAX_TEXT_CHARACTERS, ChatFormat
from agent2rl.core.errors import Refusal, UserError
from agent2rl.core.grading_records import Manifest
from agent2rl.grading.config_and_tokenizer import END_TOKENS, config_value, read_numbers, read_token_ids
from agent2rl.grading.file_hashes import FileHashCache
from agent2rl.grading.freeze import (
    CONFIG,
    TEMPLATE,
    TEMPLATE_JSON,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARY_FILES,
    compute_manifest,
)
from agent2rl.grading.untrusted_model_files import (
    MIB,
    Tensor,
    format_value,
    read_bytes,
    read_object,
    read_tensors,
    weights_sha256,
)

SETTINGS_BYTES = 16 * MIB
TOKENIZER_BYTES = 64 * MIB
TEMPLATE_BYTES = MIB
CHAT_FORMAT_BYTES = 16 << 10
CHAT_FORMAT_EXAMPLE = (
    'A chat format looks like this: {"begin": "", "system": {"prefix": "<|system|>", "suffix": "</s>"}, '
    '"user": {"prefix": "<|user|>", "suffix": "</s>"}, "assistant": {"prefix": "<|assistant|>", '
    '"suffix": "</s>"}, "generation_prompt": "<|assistant|>"}. Each text has at most '
    f"{MAX_TEXT_CHARACTERS} characters."
)


@dataclass(frozen=True)
class BaseModel:
    """The untouched base model."""

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    templates: frozenset[str]
    """Its own chat templates."""
    chat_format: ChatFormat | None
    """Its declared chat format, if it has one instead of a template."""
    weights_sha256: str
    manifest: Manifest

    @property
    def templated(self) -> bool:
        """Whether it gets chats. A model without a tokenizer is not a language model and accepts chats."""
        return bool(self.chat_format) or any(self.templates) or not self.has_tokenizer

    @property
    def has_tokenizer(self) -> bool:
        names = {file.path for file in self.manifest.files}
        return bool(names.intersection((TOKENIZER, *VOCABULARY_FILES)))

    @property
    def parameters(self) -> int:
        return sum(tensor.parameters for tensor in self.tensors.values())

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.manifest.files)

    @cached_property
    def tokenizer(self) -> Mapping[str, Any] | None:
        """Its tokenizer.json, or None."""
        path = self.directory / TOKENIZER
        return read_object(path, TOKENIZER_BYTES) if path.is_file() else None

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end its replies, from its configuration and its tokenizer."""
        numbers = set(read_numbers(config_value(self.config, END_TOKENS)))
        path = self.directory / TOKENIZER_CONFIG
        named = read_object(path, SETTINGS_BYTES).get("eos_token") if path.is_file() else None
        text = named.get("content") if isinstance(named, Mapping) else named
        number = read_token_ids(self.tokenizer or {}).get(text) if isinstance(text, str) else None
        return frozenset(numbers if number is None else {*numbers, number})


def read_base_model(directory: Path, hashes: FileHashCache | None = None) -> BaseModel:
    """Read a base model. It is the user's, so a fault in it is a user error and not a refusal."""
    try:
        config = read_object(directory / CONFIG, MIB)
        tensors = read_tensors(directory)
        templates, chat_format = frozenset(read_templates(directory)), read_chat_format(directory)
        # Each digest takes one core as long as the largest file needs, so both are made side by
        # side.
        with ThreadPoolExecutor(1, "base-model") as pool:
            weights = pool.submit(_hash_weights, directory, tensors, hashes)
            manifest = compute_manifest(directory, hashes)
            digest = weights.result()
        return BaseModel(directory, config, tensors, templates, chat_format, digest, manifest)
    except (Refusal, OSError) as error:
        raise UserError(
            f"The base model {directory} cannot be used: {error}",
            "Name a directory with config.json and safetensors weights.",
        ) from error


def _hash_weights(directory: Path, tensors: Mapping[str, Tensor], hashes: FileHashCache | None) -> str:
    if hashes is None:
        return weights_sha256(directory)
    files = sorted({tensor.file for tensor in tensors.values()})
    return hashes.get_digest("weights", files, lambda: weights_sha256(directory))


def read_templates(directory: Path) -> Iterator[str]:
    """Yield every chat template of a model directory, from all files that the library reads."""
    for name in (TOKENIZER_CONFIG, TEMPLATE_JSON):
        if (directory / name).is_file():
            yield from _named_templates(read_object(directory / name, SETTINGS_BYTES), name)
    if (directory / TEMPLATE).is_file():
        yield read_text(directory / TEMPLATE, TEMPLATE_BYTES)


def read_chat_format(directory: Path) -> ChatFormat | None:
    """Read the chat format of a model directory, or return None."""
    path = directory / CHAT_FORMAT_FILE
    if not path.is_file():
        return None
    try:
        return ChatFormat.model_validate(read_object(path, CHAT_FORMAT_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refusal(
            f"{CHAT_FORMAT_FILE}: {format_value(where)}: {first['msg']}.", CHAT_FORMAT_EXAMPLE
        ) from None


def read_text(path: Path, most_bytes: int) -> str:
    try:
        return read_bytes(path, most_bytes).decode()
    except UnicodeDecodeError:
        raise Refusal(f"{path.name} is not UTF-8 text.", "Copy the base model's.") from None


def _named_templates(settings: Mapping[str, Any], file: str) -> Iterator[str]:
    """Yield the chat templates in a settings file: none, one, or a list of named ones."""
    templates = settings.get("chat_template")
    entries = (
        templates if isinstance(templates, list) else [] if templates is None else [{"template": templates}]
    )
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
            raise Refusal(
                f"The chat_template of {file} is neither text nor a list of names and templates.",
                "Save the tokenizer with tokenizer.save_pretrained(path).",
            )
        yield entry["template"]
