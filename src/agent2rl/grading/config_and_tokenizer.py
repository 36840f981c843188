"""Check which changes a submission makes to the base model's configuration and tokenizer. Allowed are:

    vocab_size            rows were added for new tokens
    tie_word_embeddings   the head was tied to the embeddings, so it is not stored
    eos_token_id          further tokens that end a reply; the base model's own always do
    tokenizer.json        a few added special tokens

Other keys of a submitted config.json must equal those of the base model's configuration, either unchanged or
as the library saves it: a model trained with another configuration would get a meaningless score. A submitted
tokenizer.json is never used, only read for its added tokens: another normalizer, vocabulary or merge list
could turn questions into answers. Added tokens must look like role markers (`<|user|>`, `[PAD]`), so that
none can stand for ordinary text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from agent2rl.core.errors import Refusal
from agent2rl.core.records import Record
from agent2rl.grading.untrusted_model_files import format_value

# The configuration: the base model's, except for three keys that may differ.

Config = Mapping[str, Any]

MAX_ADDED_ROWS = 256
"""Additional rows of the vocabulary: for added tokens, with padding for GPUs."""
MAX_END_TOKENS = 16
VOCABULARY, TIED, END_TOKENS = "vocab_size", "tie_word_embeddings", "eos_token_id"
ADJUSTABLE = {VOCABULARY, TIED, END_TOKENS}
BOOKKEEPING = {
    # who wrote the file, and with what
    *("_name_or_path", "name_or_path", "transformers_version", "unsloth_version", "unsloth_fixed"),
    # the engine decides the precision, and each tensor says its own
    *("dtype", "torch_dtype"),
    # of training and decoding, which the engine does not use
    *("use_cache", "gradient_checkpointing", "output_attentions", "output_hidden_states", "return_dict"),
    # padding and the beginning of a text are written by the tokenizer and the chat template
    *("bos_token_id", "pad_token_id"),
}


@dataclass(frozen=True)
class ConfigChanges:
    """What of a submitted configuration takes effect."""

    vocabulary: int | None = None
    """The grown vocabulary; None where it is the base model's."""
    tied: bool | None = None
    """None: as in the base model."""
    end_tokens: tuple[int, ...] = ()
    """Beyond the base model's."""

    def apply(self, config: Config) -> dict[str, Any]:
        """The base model's configuration with these changes."""
        changed = dict(config)
        part = dict(config["text_config"]) if _is_nested(config) else changed
        if self.vocabulary is not None:
            part[VOCABULARY] = self.vocabulary
        if self.end_tokens:
            part[END_TOKENS] = [*read_numbers(config_value(config, END_TOKENS)), *self.end_tokens]
        if _is_nested(config):
            changed["text_config"] = part
        if self.tied is not None:
            changed[TIED] = self.tied
        return changed


@dataclass
class _Differences:
    found: list[str] = field(default_factory=list)

    def compare(self, mine: Config, accepted: Sequence[Config], within: str = "") -> None:
        """Note every key whose value none of the accepted configurations has."""
        for key in sorted(mine):
            if key in ADJUSTABLE | BOOKKEEPING:
                continue
            values = [config[key] for config in accepted if key in config]
            if not values:
                self.found.append(
                    f"{within}{format_value(key)} is not a key of the base model's configuration"
                )
            elif isinstance(mine[key], Mapping) and (
                inner := [one for one in values if isinstance(one, Mapping)]
            ):
                self.compare(mine[key], inner, f"{within}{key}.")
            elif not any(_same(mine[key], value) for value in values):
                self.found.append(
                    f"{within}{key} is {format_value(mine[key])}, not {format_value(values[0])}"
                )


def check_config(
    config: Config, base: Config, accepted: Sequence[Config], end_tokens: Set[int]
) -> ConfigChanges:
    """What of a submitted configuration takes effect.

    `accepted` are forms of the base model's own; `end_tokens` are those that end its replies anyway.
    """
    differences = _Differences()
    differences.compare(config, accepted)
    if differences.found:
        raise Refusal(
            f"config.json does not fit the base model: {'; '.join(differences.found)}.",
            "Train the base model itself; then copy its config.json, or remove these keys. Only "
            f"{', '.join(sorted(ADJUSTABLE))} may differ.",
        )
    vocabulary = _read_vocabulary(config, base)
    named = _read_end_tokens(config, vocabulary or config_value(base, VOCABULARY))
    return ConfigChanges(vocabulary, _read_tied(config, base), tuple(sorted(named - end_tokens)))


def config_value(config: Config, key: str) -> Any:
    """Return a value of a configuration, or of its nested text configuration."""
    if _is_nested(config) and key in config["text_config"]:
        return config["text_config"][key]
    return config.get(key)


def _is_nested(config: Config) -> bool:
    inner = config.get("text_config")
    return isinstance(inner, Mapping) and VOCABULARY in inner


def _same(mine: object, theirs: object) -> bool:
    """Return whether two values are equal as JSON: like in the library, 1, 1.0 and true differ."""
    if type(mine) is not type(theirs):
        return False
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        return mine.keys() == theirs.keys() and all(_same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return mine == theirs


def _read_vocabulary(config: Config, base: Config) -> int | None:
    size, rows = config_value(config, VOCABULARY), config_value(base, VOCABULARY)
    if size is None or _same(size, rows):
        return None
    if type(rows) is not int or type(size) is not int or not rows < size <= rows + MAX_ADDED_ROWS:
        limits = (
            f"{rows} to {rows + MAX_ADDED_ROWS} are accepted" if type(rows) is int else "the base has none"
        )
        raise Refusal(
            f"config.json: vocab_size is {format_value(size)}; {limits}.",
            "Add few tokens, and let model.resize_token_embeddings set vocab_size.",
        )
    return size


def _read_tied(config: Config, base: Config) -> bool | None:
    tied = config.get(TIED)
    if tied is None or _same(tied, base.get(TIED)):
        return None
    if not isinstance(tied, bool):
        raise Refusal(
            f"config.json: {TIED} is {format_value(tied)}, not true or false.", "Copy the base model's."
        )
    return tied


def _read_end_tokens(config: Config, vocabulary: object) -> set[int]:
    named = config_value(config, END_TOKENS)
    numbers = list(read_numbers(named))
    listed = named if isinstance(named, list) else [] if named is None else [named]
    inside = type(vocabulary) is int and all(0 <= number < vocabulary for number in numbers)
    if len(numbers) != len(listed) or len(numbers) > MAX_END_TOKENS or (numbers and not inside):
        raise Refusal(
            f"config.json: {END_TOKENS} is {format_value(named)}, not a few tokens of the vocabulary.",
            f"Name one token, or a list of at most {MAX_END_TOKENS}.",
        )
    return set(numbers)


def read_numbers(value: object) -> Iterator[int]:
    """Yield the integers in a number, a list or None."""
    for each in value if isinstance(value, list) else [value]:
        if type(each) is int:
            yield each


# The tokenizer: the base model's with a few added special tokens.

Tokenizer = Mapping[str, Any]

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
MAX_ADDED_TOKENS = 64
MARKER = re.compile(r"<[!-;=?-~]{1,30}>|\[[!-Z\\^-~]{1,30}\]")
"""Printable ASCII in one pair of brackets, without a space or a further bracket."""
# Other flags would let a token match normalized text, or take in the spaces around it.
FLAGS = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
KEEP = 'Keep the base model\'s: AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"]).'
ADD = 'Add tokens with tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]}).'


class AddedToken(Record):
    """A special token beyond the base model's."""

    id: int
    content: str

    def entry(self) -> dict[str, Any]:
        """Return the entry for tokenizer.json."""
        return {"id": self.id, "content": self.content, **FLAGS}


def check_tokenizer(
    submitted: Tokenizer, accepted: Sequence[Tokenizer], vocabulary: int | None
) -> tuple[AddedToken, ...]:
    """Return the tokens that a tokenizer.json adds. `accepted` are formats of the base model's own."""
    for part in PARTS:
        if not any(submitted.get(part) == base.get(part) for base in accepted):
            raise Refusal(f"tokenizer.json: the {part} is not the base model's.", KEEP)
    entries = submitted.get("added_tokens") or []
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise Refusal("tokenizer.json: added_tokens is not a list of tokens.", KEEP)
    accepted_tokens = [{entry["id"]: entry for entry in base.get("added_tokens") or []} for base in accepted]
    own_ids = {number for base in accepted for number in read_token_ids(base).values()}
    added = []
    for entry in entries:
        if any(forms.get(entry["id"]) == entry for forms in accepted_tokens):
            continue
        if entry["id"] in own_ids:
            raise Refusal(f"tokenizer.json changes the token {entry['id']} of the base model.", KEEP)
        added.append(entry)
    return _check_added(
        added, {text for base in accepted for text in read_token_ids(base)}, own_ids, vocabulary
    )


def extend_tokenizer(base: Tokenizer, added: Sequence[AddedToken]) -> dict[str, Any]:
    """Return the base model's tokenizer.json with added tokens."""
    return {**base, "added_tokens": [*(base.get("added_tokens") or []), *(token.entry() for token in added)]}


def read_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return every token of a tokenizer.json with its id."""
    token_ids = _vocabulary(tokenizer.get("model"))
    for entry in tokenizer.get("added_tokens") or []:
        if _is_entry(entry):
            token_ids[entry["content"]] = entry["id"]
    return token_ids


def read_special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of a tokenizer's special tokens."""
    entries = tokenizer.get("added_tokens") or []
    return {entry["id"] for entry in entries if _is_entry(entry) and entry.get("special") is True}


def _vocabulary(model: object) -> dict[str, int]:
    """Read the vocabulary: BPE and WordPiece map text to ids; Unigram lists pairs of text and score."""
    entries = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(entries, Mapping):
        return {text: number for text, number in entries.items() if type(number) is int}
    if isinstance(entries, list):
        return {
            pair[0]: number
            for number, pair in enumerate(entries)
            if isinstance(pair, list) and pair and isinstance(pair[0], str)
        }
    return {}


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, Mapping) and type(entry.get("id")) is int and isinstance(entry.get("content"), str)
    )


def _check_added(
    entries: list[Mapping[str, Any]], own_texts: set[str], own_ids: set[int], vocabulary: int | None
) -> tuple[AddedToken, ...]:
    if len(entries) > MAX_ADDED_TOKENS:
        raise Refusal(
            f"tokenizer.json adds {len(entries)} tokens; at most {MAX_ADDED_TOKENS} are accepted.",
            "Add fewer.",
        )
    texts: set[str] = set(own_texts)
    for entry in entries:
        content = entry["content"]
        if not MARKER.fullmatch(content):
            raise Refusal(
                f"tokenizer.json adds the token {format_value(content)}: an added token is a marker of up to "
                "32 characters such as <|user|> or [PAD], without spaces.",
                ADD,
            )
        if content in texts:
            raise Refusal(f"tokenizer.json has the token {format_value(content)} twice.", ADD)
        if different := sorted(name for name, value in FLAGS.items() if entry.get(name) is not value):
            raise Refusal(
                f"tokenizer.json adds {format_value(content)} with the wrong flags for a special token: "
                f"{', '.join(different)}.",
                ADD,
            )
        texts.add(content)
    numbers = sorted(entry["id"] for entry in entries)
    first = max(own_ids, default=-1) + 1
    if numbers != list(range(first, first + len(numbers))):
        raise Refusal(f"tokenizer.json: ids of added tokens must start at {first} and have no gaps.", ADD)
    if numbers and (vocabulary is None or numbers[-1] >= vocabulary):
        raise Refusal(
            f"tokenizer.json: token id {numbers[-1]} is outside the model's vocabulary of {vocabulary}.",
            "model.resize_token_embeddings(len(tokenizer)), then train and save both.",
        )
    ordered = sorted(entries, key=lambda entry: int(entry["id"]))
    return tuple(AddedToken(id=entry["id"], content=entry["content"]) for entry in ordered)
