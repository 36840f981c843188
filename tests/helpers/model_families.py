"""Families of tiny Llamas, really trained: a base, its children, strangers, and the base in disguise."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

Weights = dict[str, torch.Tensor]
VOCABULARY, LENGTH, BATCH, HEADS, GROUPS = 200, 24, 16, 4, 2


def make_random_model(seed: int, hidden: int = 64) -> LlamaForCausalLM:
    """Random weights, as training begins with them."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build_llama(config)


def _build_llama(config: LlamaConfig) -> LlamaForCausalLM:
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


def pretrain_model(seed: int, language: int = 0, steps: int = 100, hidden: int = 64) -> LlamaForCausalLM:
    """A base of its own: another seed is another ancestry, of the same language or not."""
    return train_model(
        make_random_model(seed, hidden),
        make_markov_text(language),
        learning_rate=3e-3,
        steps=steps,
        seed=seed,
    )


def finetune_child(
    parent: LlamaForCausalLM, learning_rate: float, seed: int = 0, **options: Any
) -> LlamaForCausalLM:
    """Fine-tuned on a language that the parent has not seen."""
    return train_model(clone_model(parent), make_markov_text(100 + seed), learning_rate, seed=seed, **options)


def train_model(
    model: LlamaForCausalLM,
    lines: torch.Tensor,
    learning_rate: float,
    steps: int = 40,
    seed: int = 0,
    weight_decay: float = 0.01,
) -> LlamaForCausalLM:
    dice = torch.Generator().manual_seed(seed)

    def loss() -> torch.Tensor:
        batch = lines[torch.randint(len(lines), (BATCH,), generator=dice)]
        logits = model(input_ids=batch).logits[:, :-1]
        return functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))

    return _run_optimizer(model, loss, learning_rate, steps, weight_decay)


def train_with_reward(
    parent: LlamaForCausalLM, learning_rate: float, steps: int = 20, seed: int = 0
) -> LlamaForCausalLM:
    """As GRPO does: sample answers, and follow the reward relative to the group (here: even tokens)."""
    model = clone_model(parent)
    dice = torch.Generator().manual_seed(seed)

    def loss() -> torch.Tensor:
        lines = torch.randint(VOCABULARY, (BATCH, 1), generator=dice)
        with torch.no_grad():
            for _ in range(8):
                chances = model(input_ids=lines).logits[:, -1].softmax(-1)
                lines = torch.cat([lines, torch.multinomial(chances, 1, generator=dice)], dim=1)
        rewards = (lines[:, 1:] % 2 == 0).float().mean(dim=1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        chosen = model(input_ids=lines).logits[:, :-1].log_softmax(-1).gather(2, lines[:, 1:, None])
        gain: torch.Tensor = (advantages[:, None, None] * chosen).mean()
        return -gain

    return _run_optimizer(model, loss, learning_rate, steps, weight_decay=0.0)


def finetune_with_lora(
    parent: LlamaForCausalLM, learning_rate: float, rank: int, steps: int = 40, seed: int = 0
) -> Weights:
    """Fine-tuned by LoRA on a language that the parent has not seen, and merged."""
    own, lines, dice = get_weights(parent), make_markov_text(100 + seed), torch.Generator().manual_seed(seed)
    adapters = {
        name: (
            (torch.randn(rank, tensor.shape[1], generator=dice) / tensor.shape[1] ** 0.5).requires_grad_(),
            torch.zeros(tensor.shape[0], rank).requires_grad_(),
        )
        for name, tensor in own.items()
        if name.endswith("proj.weight")
    }

    def merged() -> Weights:
        return own | {name: own[name] + 2 * up @ down for name, (down, up) in adapters.items()}

    optimizer = torch.optim.AdamW([part for pair in adapters.values() for part in pair], learning_rate)
    for _ in range(steps):
        batch = lines[torch.randint(len(lines), (BATCH,), generator=dice)]
        logits = torch.func.functional_call(parent, merged(), (batch,)).logits[:, :-1]
        optimizer.zero_grad()
        functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: tensor.detach() for name, tensor in merged().items()}


def _run_optimizer(
    model: LlamaForCausalLM,
    loss: Callable[[], torch.Tensor],
    learning_rate: float,
    steps: int,
    weight_decay: float,
) -> LlamaForCausalLM:
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=weight_decay)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def make_markov_text(language: int) -> torch.Tensor:
    """Lines of a random Markov chain."""
    dice = torch.Generator().manual_seed(language)
    chances = (2 * torch.randn(VOCABULARY, VOCABULARY, generator=dice)).softmax(-1)
    lines = torch.randint(VOCABULARY, (512, 1), generator=dice)
    while lines.shape[1] < LENGTH:
        lines = torch.cat([lines, torch.multinomial(chances[lines[:, -1]], 1, generator=dice)], dim=1)
    return lines


def clone_model(model: LlamaForCausalLM) -> LlamaForCausalLM:
    return replace_weights(model, get_weights(model))


def replace_weights(model: LlamaForCausalLM, tensors: Weights) -> LlamaForCausalLM:
    copy = _build_llama(deepcopy(model.config))
    copy.load_state_dict({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]})
    return copy


def get_weights(model: LlamaForCausalLM) -> Weights:
    """What is stored: the head is tied to the embeddings."""
    state = model.state_dict()
    return {name: tensor.detach().clone() for name, tensor in state.items() if name != "lm_head.weight"}


def write_model(tensors: Weights, model: LlamaForCausalLM, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(directory)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def add_weights(own: Weights, other: Weights, factor: float, per_matrix: bool = True) -> Weights:
    """The sum of two models, the other one brought to `factor` times the own one's length.

    Each tensor by itself, or all by the same number.
    """

    def length(tensors: list[torch.Tensor]) -> float:
        return float(torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt())

    whole = length(list(own.values())) / length(list(other.values()))
    return {
        name: own[name]
        + factor * (length([own[name]]) / length([other[name]]) if per_matrix else whole) * other[name]
        for name in own
    }


# Changes that keep what the model says


def permute_heads(tensors: Weights) -> Weights:
    """The key-value groups in reverse, each with its own query heads."""
    return _change_attention(
        tensors, lambda lines, groups: lines.reshape(groups, -1, lines.shape[1]).flip(0).reshape(lines.shape)
    )


def flip_values(tensors: Weights) -> Weights:
    """Values with the other sign, and the output that reads them."""
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("v_proj.weight", "o_proj.weight")):
            changed[name] = -tensor
    return changed


def permute_neurons(tensors: Weights, share: float = 1.0) -> Weights:
    return _change_neurons(
        tensors, lambda lines: torch.cat([lines[: (n := int(len(lines) * share))].flip(0), lines[n:]])
    )


def rescale_neurons(tensors: Weights) -> Weights:
    """Each neuron times a factor of its own, divided out after it."""
    changed = dict(tensors)
    for name, tensor in tensors.items():
        factors = torch.logspace(-1, 1, tensor.shape[0 if "up_proj" in name else -1], 2)
        if name.endswith("up_proj.weight"):
            changed[name] = tensor * factors[:, None]
        elif name.endswith("down_proj.weight"):
            changed[name] = tensor / factors
    return changed


def rescale_projections(tensors: Weights, factor: float = 2.0) -> Weights:
    """Each up-projection times a factor, each down-projection by it."""
    scale = {"up_proj.weight": factor, "down_proj.weight": 1 / factor}
    return {
        name: tensor * next((by for end, by in scale.items() if name.endswith(end)), 1.0)
        for name, tensor in tensors.items()
    }


def permute_residual_stream(tensors: Weights) -> Weights:
    """The dimensions between the layers in another order, in everything that reads or writes them."""
    writes = ("o_proj.weight", "down_proj.weight", "norm.weight", "layernorm.weight")
    return {
        name: tensor.flip(0) if name.endswith(writes) else tensor.flip(1) for name, tensor in tensors.items()
    }


def _change_attention(tensors: Weights, change: Callable[[torch.Tensor, int], torch.Tensor]) -> Weights:
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            changed[name] = change(tensor, GROUPS)
        elif name.endswith("o_proj.weight"):
            changed[name] = change(tensor.T, GROUPS).T
    return changed


def _change_neurons(tensors: Weights, change: Callable[[torch.Tensor], torch.Tensor]) -> Weights:
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            changed[name] = change(tensor)
        elif name.endswith("down_proj.weight"):
            changed[name] = change(tensor.T).T
    return changed


# Rotations, pruning and added layers


def rotate_values(tensors: Weights, seed: int = 0) -> Weights:
    """The values of each key-value group in another basis, and the output that reads them."""
    changed = dict(tensors)
    for name, values in tensors.items():
        if not name.endswith("v_proj.weight"):
            continue
        output = name.replace("v_proj", "o_proj")
        size = values.shape[0] // GROUPS
        turns = [_make_rotation(size, seed + group) for group in range(GROUPS)]
        changed[name] = _join_blocks(turns) @ values
        per_head = [turns[head * GROUPS // HEADS] for head in range(HEADS)]
        changed[output] = tensors[output] @ _join_blocks(per_head).T
    return changed


def rotate_residual_stream(tensors: Weights, seed: int = 0) -> Weights:
    """The basis between the layers turned, after each norm's weights were multiplied into what reads it.

    The last norm's weights become their mean, because the head is tied: nearly the same function.
    """
    folded, width = dict(tensors), tensors["model.norm.weight"].shape[0]
    for name, tensor in tensors.items():
        layer = name.partition(".self_attn." if ".self_attn." in name else ".mlp.")[0]
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            folded[name] = tensor * tensors[f"{layer}.input_layernorm.weight"]
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            folded[name] = tensor * tensors[f"{layer}.post_attention_layernorm.weight"]
        elif name.endswith("layernorm.weight"):
            folded[name] = torch.ones_like(tensor)
    folded["model.norm.weight"] = torch.full((width,), float(tensors["model.norm.weight"].mean()))
    turn = _make_rotation(width, seed)
    writes = ("o_proj.weight", "down_proj.weight")
    return {
        name: tensor if tensor.dim() < 2 else turn.T @ tensor if name.endswith(writes) else tensor @ turn
        for name, tensor in folded.items()
    }


def prune_weights(tensors: Weights, share: float) -> Weights:
    """The smallest values of each matrix set to zero."""
    return {
        name: tensor if tensor.dim() < 2 else tensor * (tensor.abs() > tensor.abs().flatten().quantile(share))
        for name, tensor in tensors.items()
    }


def insert_layer(tensors: Weights) -> Weights:
    """A copy of the first layer after it, so that the second one becomes the third."""
    grown = {name.replace(".layers.1.", ".layers.2."): tensor for name, tensor in tensors.items()}
    first = {name: tensor for name, tensor in tensors.items() if ".layers.0." in name}
    return grown | {
        name.replace(".layers.0.", ".layers.1."): tensor.clone() for name, tensor in first.items()
    }


def mix_weights(one: Weights, other: Weights, share: float) -> Weights:
    """The other model with this share, the first one with the rest."""
    return {name: torch.lerp(one[name], other[name], share) for name in one}


def add_noise(tensors: Weights, scale: float, seed: int) -> Weights:
    """White noise of so many times each tensor's length."""
    dice = torch.Generator().manual_seed(seed)
    return {
        name: tensor + scale * tensor.square().mean().sqrt() * torch.randn(tensor.shape, generator=dice)
        for name, tensor in tensors.items()
    }


def _join_blocks(blocks: list[torch.Tensor]) -> torch.Tensor:
    joined: torch.Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return joined


def _make_rotation(size: int, seed: int) -> torch.Tensor:
    turn: torch.Tensor = torch.linalg.qr(
        torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    )[0]
    return turn
