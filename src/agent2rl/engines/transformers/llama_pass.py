"""One pass of a Llama network on CPU, with fewer and larger operations than the library's modules.

A pass over some hundred tokens of a small model takes milliseconds, of which calls of modules, small
operations and their temporary tensors are a large part. This pass computes the same from the same weights, as
they are at that moment, up to rounding: products write to where they are needed, and behind the last layer's
attention only the tokens whose logits are asked for go on. It is for exactly the library's own modules, where
nobody has changed or hooked them, and not for training.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama as llama

from agent2rl.engines.transformers.attention import NAME, LayerAttention, PackedRows, describe_layer
from agent2rl.engines.transformers.kv_cache import SlotKVCache


class LlamaLayer(NamedTuple):
    """The weights of a layer, transposed where they are factors of a product."""

    attention: LayerAttention
    head_size: int
    attention_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    feed_forward_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


def read_llama_layers(network: PreTrainedModel) -> list[LlamaLayer] | None:
    """Return the layers of a network that `run_llama` can run as it is now; None for any other."""
    if (
        type(network) is not llama.LlamaForCausalLM
        or network.device.type != "cpu"
        or network.training
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or network.config._attn_implementation != NAME
        or network.config.hidden_act != "silu"
    ):
        return None
    model = network.model
    if not all(
        _is_unchanged(module, kind)
        for module, kind in (
            (network, llama.LlamaForCausalLM),
            (model, llama.LlamaModel),
            (model.norm, llama.LlamaRMSNorm),
            (network.lm_head, nn.Linear),
        )
    ):
        return None
    layers = list(_read_layers(model))
    return layers if len(layers) == len(model.layers) else None


def _read_layers(model: llama.LlamaModel) -> Iterator[LlamaLayer]:
    """Yield the layers up to the first that is not exactly the library's."""
    for layer in model.layers:
        attention, block = layer.self_attn, layer.mlp
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        linear = (
            *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
            *(block.gate_proj, block.up_proj, block.down_proj),
        )
        if not (
            _is_unchanged(layer, llama.LlamaDecoderLayer)
            and _is_unchanged(attention, llama.LlamaAttention)
            and _is_unchanged(block, llama.LlamaMLP)
            and all(_is_unchanged(norm, llama.LlamaRMSNorm) for norm in norms)
            and all(_is_unchanged(module, nn.Linear) and module.bias is None for module in linear)
            and all(module.weight.dtype == torch.float32 for module in (*norms, *linear))
        ):
            return
        query, key, value, output, gate, up, down = (module.weight.t() for module in linear)
        yield LlamaLayer(
            describe_layer(attention, {"scaling": attention.scaling}),
            attention.head_dim,
            norms[0].weight,
            *(query, key, value, output),
            norms[1].weight,
            *(gate, up, down),
        )


def _is_unchanged(module: nn.Module, kind: type[nn.Module]) -> bool:
    return (
        type(module) is kind
        and "forward" not in module.__dict__
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def run_llama(
    network: llama.LlamaForCausalLM,
    layers: list[LlamaLayer],
    ids: Tensor,
    positions: Tensor,
    rows: PackedRows,
    cache: SlotKVCache | None,
    keep: Tensor,
) -> Tensor:
    """Return the logits after the tokens `keep` of one packed pass, (kept, vocabulary)."""
    model = network.model
    epsilon = network.config.rms_norm_eps
    hidden = model.embed_tokens(ids)
    cos, sin = _compute_rotation(model, hidden, positions)
    for number, layer in enumerate(layers):
        normed = rms_norm(hidden, layer.attention_norm.shape, layer.attention_norm, epsilon)
        query, key, value = _project(normed, layer, cos, sin)
        if cache is None:
            keys, values = key.transpose(0, 1)[None], value.transpose(0, 1)[None]
        else:
            keys, values = cache.write(number, key, value)
        attended = rows.attend(query.transpose(0, 1), keys, values, layer.attention).flatten(1)
        if number == len(layers) - 1:
            hidden, attended = hidden[keep], attended[keep]
        hidden.addmm_(attended, layer.output)
        normed = rms_norm(hidden, layer.feed_forward_norm.shape, layer.feed_forward_norm, epsilon)
        inner = silu(normed @ layer.gate, inplace=True).mul_(normed @ layer.up)
        hidden.addmm_(inner, layer.down)
    logits: Tensor = network.lm_head(model.norm(hidden))
    return logits


def _compute_rotation(model: llama.LlamaModel, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines, and sines with the signs of the rotation, (tokens, 1, head_size) each."""
    cos, sin = model.rotary_emb(hidden[None], positions[None])
    first, second = sin[0].chunk(2, -1)
    return cos[0, :, None], torch.cat((-first, second), -1)[:, None]


def _project(normed: Tensor, layer: LlamaLayer, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries and keys, and values, (tokens, heads, head_size) each."""
    tokens, size = len(normed), layer.head_size
    widths = [weight.shape[1] for weight in (layer.query, layer.key, layer.value)]
    joined = normed.new_empty((tokens, sum(widths)))
    for weight, part in zip((layer.query, layer.key, layer.value), joined.split(widths, 1), strict=True):
        torch.mm(normed, weight, out=part)
    heads = joined.view(tokens, -1, size)
    query, key, value = heads.split([width // size for width in widths], 1)
    rotated = heads[:, : (widths[0] + widths[1]) // size]
    first, second = rotated.chunk(2, -1)
    swapped = torch.cat((second, first), -1)
    rotated.mul_(cos).addcmul_(swapped, sin)
    return query, key, value
