"""The tokenizer that a submission is graded with: the base model's, and a few added special tokens.

A submitted tokenizer.json is never used. It is read for the tokens it adds, and everything else in it must be
the base model's: a normalizer, a vocabulary or a merge of the agent's own could turn questions into answers.
Added tokens look like role markers (`<|user|>`, `[PAD]`), so that none of them can stand for ordinary text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent2rl.core.errors import Refusal
from agent2rl.core.records import Record
from agent2rl.grading.strict_json import format_value

Tokenizer = Mapping[str, Any]

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
MAX_ADDED_TOKENS = 64
MARKER = re.compile(r"<[!-;=?-~]{1,30}>|\[[!-Z\\^-~]{1,30}\]")
"""Printable ASCII in one pair of brackets, without a space or a further bracket."""
FLAGS = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
KEEP = 'Keep the base model\'s: AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"]).'
ADD = 'Add tokens with tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]}).'


class AddedToken(Record):
    """A special token beyond the base model's."""

    id: int
    content: str

    def entry(self) -> dict[str, Any]:
        """As tokenizer.json lists it."""
        return {"id": self.id, "content": self.content, **FLAGS}


def check_tokenizer(
    submitted: Tokenizer, accepted: Sequence[Tokenizer], vocabulary: int | None
) -> tuple[AddedToken, ...]:
    """The tokens that a tokenizer.json adds. `accepted` are forms of the base model's own, the first its."""
    for part in PARTS:
        if not any(submitted.get(part) == base.get(part) for base in accepted):
            raise Refusal(f"tokenizer.json: the {part} is not the base model's.", KEEP)
    entries = submitted.get("added_tokens") or []
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise Refusal("tokenizer.json: added_tokens is not a list of tokens.", KEEP)
    known = [{entry["id"]: entry for entry in base.get("added_tokens") or []} for base in accepted]
    own_ids = {number for base in accepted for number in read_token_ids(base).values()}
    added = []
    for entry in entries:
        if any(forms.get(entry["id"]) == entry for forms in known):
            continue
        if entry["id"] in own_ids:
            raise Refusal(f"tokenizer.json changes the token {entry['id']} of the base model.", KEEP)
        added.append(entry)
    return _check_added(
        added, {text for base in accepted for text in read_token_ids(base)}, own_ids, vocabulary
    )


def extend_tokenizer(base: Tokenizer, added: Sequence[AddedToken]) -> dict[str, Any]:
    """The base model's tokenizer.json with further tokens."""
    return {**base, "added_tokens": [*(base.get("added_tokens") or []), *(token.entry() for token in added)]}


def read_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Every token of a tokenizer.json and its number."""
    found = _vocabulary(tokenizer.get("model"))
    for entry in tokenizer.get("added_tokens") or []:
        if _is_entry(entry):
            found[entry["content"]] = entry["id"]
    return found


def read_special_ids(tokenizer: Tokenizer) -> set[int]:
    """The numbers of a tokenizer's special tokens."""
    entries = tokenizer.get("added_tokens") or []
    return {entry["id"] for entry in entries if _is_entry(entry) and entry.get("special") is True}


def _vocabulary(model: object) -> dict[str, int]:
    """BPE and WordPiece map text to numbers; Unigram lists pairs of text and score."""
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
                f"tokenizer.json adds {format_value(content)}, but not as a special token has its "
                f"{', '.join(different)}.",
                ADD,
            )
        texts.add(content)
    numbers = sorted(entry["id"] for entry in entries)
    first = max(own_ids, default=-1) + 1
    if numbers != list(range(first, first + len(numbers))):
        raise Refusal(f"tokenizer.json: added tokens are numbered from {first} on, without gaps.", ADD)
    if numbers and (vocabulary is None or numbers[-1] >= vocabulary):
        raise Refusal(
            f"tokenizer.json has a token {numbers[-1]}; the model knows {vocabulary}.",
            "model.resize_token_embeddings(len(tokenizer)), then train and save both.",
        )
    ordered = sorted(entries, key=lambda entry: int(entry["id"]))
    return tuple(AddedToken(id=entry["id"], content=entry["content"]) for entry in ordered)
