"""The tokenizer of a GGUF file in the Hugging Face format, and whether it is that of the file.

transformers can read one out of a GGUF file too, but without `tokenizer.ggml.pre`, which says that digits are
cut off before all else: the two spaces of "quarters.  25" are then two tokens, where the model knows one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import AutoTokenizer

from agent2rl.models.smollm2_135m.gguf_source import GgufSource

TEMPLATE = "chat_template.jinja"
CONTROL = 3
"""The type of a token that no text is split into: <|im_end|> and the like."""
TEXTS = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "It's 3.14 × 10^5 = 314,000 — don't you think?  Two  spaces,\ttabs\r\nand\n\n\nlines.",
    "def f(x: int) -> int:\n    return x ** 2  # <<2*3=6>>6\n#### 72",
    "Zwölf Boxkämpfer jagen Viktor über den großen Sylter Deich. 日本語もある。 Привет! 🙂",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "",
)
CHATS = (
    [{"role": "user", "content": "What is 2 + 2?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hello!\n"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye {{ now }}"},
    ],
)


def build_tokenizer_files(source: GgufSource) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, out of the file's own vocabulary and merges."""
    tokens, pre = source["tokenizer.ggml.tokens"], source["tokenizer.ggml.pre"]
    assert (source["tokenizer.ggml.model"], pre) == ("gpt2", "smollm"), "the file is pinned by its hash"
    vocabulary = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _describe_added_token(number, tokens[number]) for number in _find_control_tokens(source)
        ],
        "normalizer": None,
        # What `smollm` stands for: digits apart, then as GPT-2.
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, _describe_byte_level()],
        },
        "post_processor": None,
        "decoder": _describe_byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in source["tokenizer.ggml.merges"]],
        },
    }
    settings = {
        "add_prefix_space": source["tokenizer.ggml.add_space_prefix"],
        "bos_token": tokens[source["tokenizer.ggml.bos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[source["tokenizer.ggml.eos_token_id"]],
        "model_max_length": source["llama.context_length"],
        "pad_token": tokens[source["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[source["tokenizer.ggml.unknown_token_id"]],
    }
    return {"tokenizer.json": vocabulary, "tokenizer_config.json": settings}


def find_tokenizer_faults(source: GgufSource, model_dir: Path, rows: int) -> Iterator[str]:
    """In what the tokenizer, as transformers loads it, differs from the file's."""
    loaded: Any = AutoTokenizer.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    tokens: list[str] = source["tokenizer.ggml.tokens"]
    if not len(loaded) == len(tokens) == rows:
        yield f"it has {len(loaded)} tokens, the file {len(tokens)}, the embedding {rows} rows"
    if loaded.convert_ids_to_tokens(list(range(len(tokens)))) != tokens:
        yield "its tokens have other numbers"
    for name, role in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if getattr(loaded, f"{name}_token_id") != source[f"tokenizer.ggml.{role}_token_id"]:
            yield f"another token is its {role} token"
    for number in _find_control_tokens(source):
        if loaded.encode(tokens[number], add_special_tokens=False) != [number]:
            yield f"{tokens[number]} is not one token"
    for text in TEXTS:
        if loaded.decode(loaded.encode(text), clean_up_tokenization_spaces=False) != text:
            yield f"{text[:20]!r} does not come back"
    if loaded.tokenize("quarters.  25") != ["quarters", ".", "ĠĠ", "2", "5"]:
        yield "digits are not cut off first"
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        source["tokenizer.chat_template"]
    )
    for chat in CHATS:
        for ask in (True, False):
            written = loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=ask)
            if written != template.render(messages=chat, add_generation_prompt=ask):
                yield f"its chat template writes {written[:40]!r}"


def _find_control_tokens(source: GgufSource) -> list[int]:
    types = source["tokenizer.ggml.token_type"]
    return [number for number, kind in enumerate(types) if kind == CONTROL]


def _describe_added_token(number: int, token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": True}


def _describe_byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
