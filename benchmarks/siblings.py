"""How often a sibling of the base model is recognised by its fingerprint, in families of tiny Llamas.

Prints the tables of docs/design/lineage.md:

    .venv/bin/python -m benchmarks.siblings [SEEDS] [HIDDEN]
    .venv/bin/python -m benchmarks.siblings budgets [SEEDS]

The second one asks what more training steps change.

Of each base, two fine-tunes are the known siblings (one by SFT, one GRPO-like), and so are an unrelated model
and a fine-tune with one layer more. Then come models that were trained from the base without them, and models
made from them. Everything is trained here.
"""

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

import torch
from tests.helpers import model_families
from tests.helpers.model_families import Weights, get_weights
from transformers import LlamaForCausalLM

from agent2rl.core.grading_records import SiblingDistance
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.fingerprint import Fingerprint, make_fingerprint, read_fingerprint, write_fingerprint
from agent2rl.grading.siblings import compare_with_siblings

HONEST, COPIED = "trained from the base", "made from a sibling"
DATA = 100
"""Languages that the base has not seen begin here."""


def finetune(parent: LlamaForCausalLM, language: int, rate: float, seed: int, steps: int = 40) -> Weights:
    lines = model_families.make_markov_text(DATA + language)
    copy = model_families.clone_model(parent)
    return get_weights(model_families.train_model(copy, lines, rate, steps, seed))


def make_siblings(base: LlamaForCausalLM, seed: int, hidden: int) -> dict[str, Weights]:
    instruct = finetune(base, 2 * seed, 1e-3, 1000 + seed, steps=150)
    return {
        "instruct": instruct,
        "rewarded": get_weights(model_families.train_with_reward(base, 1e-3, seed=2000 + seed)),
        "stranger": get_weights(model_families.pretrain_model(2 * seed + 1, hidden=hidden)),
        "upscaled": model_families.insert_layer(finetune(base, 2 * seed + 50, 1e-3, 3000 + seed)),
    }


def list_honest(base: LlamaForCausalLM, seed: int) -> Iterator[tuple[str, Weights]]:
    """Models that were trained from the base alone: none of them may look like a sibling."""
    for rate in (1e-5, 1e-4, 1e-3, 3e-3, 1e-2):
        yield f"SFT on other data, learning rate {rate:g}", finetune(base, 2 * seed + 1, rate, seed)
    for steps, rate in ((5, 1e-3), (40, 1e-4), (40, 1e-3), (150, 1e-3), (150, 3e-3)):
        weights = finetune(base, 2 * seed, rate, seed, steps)
        yield f"SFT on the sibling's data, another order, {rate:g}, {steps} steps", weights
    for rate in (1e-4, 1e-3):
        weights = get_weights(model_families.train_with_reward(base, rate, seed=seed))
        yield f"GRPO-like, the sibling's reward, {rate:g}", weights
    yield "LoRA of rank 4, 0.01", model_families.finetune_with_lora(base, 1e-2, 4, seed=2 * seed + 1)
    weights = model_families.finetune_with_lora(base, 3e-3, 16, seed=2 * seed)
    yield "LoRA of rank 16 on the sibling's data, 0.003", weights
    decayed = model_families.finetune_child(base, 1e-3, seed + 7, steps=150, weight_decay=0.3)
    yield "SFT on other data, weight decay 0.3", get_weights(decayed)
    yield "base: noise 0.1 times the weights", model_families.add_noise(get_weights(base), 0.1, seed)
    yield "base: 30% pruned", model_families.prune_weights(get_weights(base), 0.3)
    yield "base: neurons permuted", model_families.permute_neurons(get_weights(base))
    yield "base: basis turned", model_families.rotate_residual_stream(get_weights(base), seed)
    child = finetune(base, 2 * seed + 1, 1e-3, seed)
    yield "child: neurons permuted", model_families.permute_neurons(child)
    yield "child: basis turned", model_families.rotate_residual_stream(child, seed)


def list_copies(
    base: LlamaForCausalLM, siblings: Mapping[str, Weights], seed: int
) -> Iterator[tuple[str, Weights]]:
    """Models that contain a sibling: all of them should look like it."""
    own, instruct, rewarded = get_weights(base), siblings["instruct"], siblings["rewarded"]
    yield "the sibling", instruct
    yield "the sibling in bfloat16", {name: each.bfloat16() for name, each in instruct.items()}
    yield "the GRPO-like sibling", rewarded
    for share in (0.05, 0.2, 0.5, 0.9):
        yield f"base with {share:.0%} of the sibling", model_families.mix_weights(own, instruct, share)
    yield "base plus 2 times the sibling's change", model_families.mix_weights(own, instruct, 2.0)
    yield "both fine-tunes, half and half", model_families.mix_weights(instruct, rewarded, 0.5)
    trained = model_families.replace_weights(base, instruct)
    for rate, steps in ((1e-4, 40), (1e-3, 40), (3e-3, 40), (1e-3, 150), (1e-2, 40)):
        weights = finetune(trained, 2 * seed + 1, rate, seed, steps)
        yield f"the sibling, trained on other data, {rate:g}, {steps} steps", weights
    child = finetune(base, 2 * seed + 1, 1e-3, seed)
    for share in (0.3, 0.5):
        yield f"a child with {share:.0%} of the sibling", model_families.mix_weights(child, instruct, share)
    for scale in (0.1, 0.3):
        yield (
            f"the sibling: noise {scale:g} times the weights",
            model_families.add_noise(instruct, scale, seed),
        )
    for share in (0.3, 0.5):
        yield f"the sibling: {share:.0%} pruned", model_families.prune_weights(instruct, share)
    yield (
        "one layer of the sibling",
        {name: (instruct if ".layers.1." in name else own)[name] for name in own},
    )
    yield "the sibling: heads permuted", model_families.permute_heads(instruct)
    yield "the sibling: neurons permuted", model_families.permute_neurons(instruct)
    yield "the sibling: stream permuted", model_families.permute_residual_stream(instruct)
    yield "the sibling: values turned", model_families.rotate_values(instruct, seed)
    yield "the sibling: basis turned", model_families.rotate_residual_stream(instruct, seed)
    both = model_families.permute_neurons(model_families.rotate_residual_stream(instruct, seed))
    yield "the sibling: basis turned and neurons permuted", both
    yield "the sibling: layers rescaled by 2", model_families.rescale_projections(instruct)
    yield "the sibling: neurons rescaled", model_families.rescale_neurons(instruct)
    permuted = model_families.replace_weights(base, model_families.permute_neurons(instruct))
    yield "the sibling: neurons permuted, then trained, 1e-4", finetune(permuted, 2 * seed + 1, 1e-4, seed)
    upscaled = siblings["upscaled"]
    yield "two layers of the sibling with three", {name: upscaled[name] for name in own}
    stranger = siblings["stranger"]
    yield "the unrelated sibling", stranger
    yield "base with 5% of the unrelated sibling", model_families.mix_weights(own, stranger, 0.05)
    yield "base plus 0.2 times the unrelated sibling", model_families.add_weights(own, stranger, 0.2)
    yield (
        "base plus 0.2 times the unrelated one, rescaled",
        {
            name: 2 * each if each.dim() > 1 and "embed" not in name else each
            for name, each in model_families.add_weights(own, stranger, 0.2).items()
        },
    )


def fingerprint_siblings(
    siblings: Mapping[str, Weights], like: LlamaForCausalLM, place: Path
) -> list[Fingerprint]:
    """Through files, as a run gets them."""
    found = []
    for name, weights in siblings.items():
        directory = model_families.write_model(weights, like, place / name)
        path = place / f"{name}.fingerprint"
        write_fingerprint(make_fingerprint(directory, name), path)
        found.append(read_fingerprint(path))
    return found


def compare_family(seed: int, hidden: int, place: Path) -> Iterator[tuple[str, str, SiblingDistance]]:
    """Yield the group, the kind and the closest sibling of each model of a family."""
    base = model_families.pretrain_model(2 * seed, hidden=hidden)
    read: BaseModel = read_base_model(model_families.write_model(get_weights(base), base, place / "base"))
    weights = make_siblings(base, seed, hidden)
    siblings = fingerprint_siblings(weights, base, place)
    made = {HONEST: list_honest(base, seed), COPIED: list_copies(base, weights, seed)}
    for group, models in made.items():
        for number, (kind, tensors) in enumerate(models):
            model = model_families.write_model(tensors, base, place / f"{group} {number}")
            yield group, kind, compare_with_siblings(model, read, siblings)[0]


def format_row(kind: str, found: list[SiblingDistance]) -> str:
    alike = Counter(f"{one.name} ({one.resemblance})" if one.resemblance else "none" for one in found)
    said = ", ".join(f"{many} {name}" for name, many in alike.most_common())

    def middle(figure: str) -> str:
        values = [getattr(one, figure) for one in found if getattr(one, figure) is not None]
        return f"{median(values):.2f}" if values else ""

    figures = ("cosine", "share", "spread", "matched", "norms")
    return f"| {kind} | {said} | {' | '.join(map(middle, figures))} |"


BUDGETS = (5, 20, 40, 150, 600, 1200)
"""Training steps; the sibling itself had 150."""


def compare_budgets(seed: int, place: Path) -> Iterator[tuple[str, int, float, SiblingDistance]]:
    """Yield the group, the steps, the learning rate and the distance to the only sibling."""
    base = model_families.pretrain_model(2 * seed)
    read = read_base_model(model_families.write_model(get_weights(base), base, place / "base"))
    instruct = make_siblings(base, seed, 64)["instruct"]
    siblings = fingerprint_siblings({"instruct": instruct}, base, place)
    trained = model_families.replace_weights(base, instruct)
    for steps in BUDGETS:
        for rate in (3e-4, 1e-3, 3e-3):
            made = {
                HONEST: finetune(base, 2 * seed, rate, seed, steps),
                COPIED: finetune(trained, 2 * seed + 1, rate, seed, steps),
            }
            for group, weights in made.items():
                model = model_families.write_model(weights, base, place / f"{group} {steps} {rate}")
                yield group, steps, rate, compare_with_siblings(model, read, siblings)[0]


def main_budgets(seeds: int) -> None:
    """The sibling's own data in another order, and the sibling trained further on other data."""
    torch.set_num_threads(1)
    found: dict[tuple[int, float, str], list[SiblingDistance]] = defaultdict(list)
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as directory:
            for group, steps, rate, distance in compare_budgets(seed, Path(directory)):
                found[steps, rate, group].append(distance)
        print(f"seed {seed}", file=sys.stderr, flush=True)
    print("| steps | learning rate | cosine | matched | spread | accused | cosine | spread | recognised |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for steps, rate in sorted({(steps, rate) for steps, rate, _ in found}):
        honest, copied = (found[steps, rate, group] for group in (HONEST, COPIED))
        cosine = max(one.cosine or 0.0 for one in honest)
        matched = max(one.matched or 0.0 for one in honest)
        spread = min(one.spread or 0.0 for one in honest)
        least, even = min(one.cosine or 0.0 for one in copied), max(one.spread or 0.0 for one in copied)
        accused, recognised = (sum(bool(one.resemblance) for one in group) for group in (honest, copied))
        print(
            f"| {steps} | {rate:g} | {cosine:.2f} | {matched:.2f} | {spread:.2f} "
            f"| {accused} of {len(honest)} | {least:.2f} | {even:.2f} | {recognised} of {len(copied)} |"
        )


def main(seeds: int, hidden: int) -> None:
    torch.set_num_threads(1)
    closest: dict[tuple[str, str], list[SiblingDistance]] = defaultdict(list)
    began = time.perf_counter()
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as directory:
            for group, kind, distance in compare_family(seed, hidden, Path(directory)):
                closest[group, kind].append(distance)
        print(f"seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    for group in (HONEST, COPIED):
        rows = {kind: found for (of, kind), found in closest.items() if of == group}
        alike = sum(bool(one.resemblance) for found in rows.values() for one in found)
        print(f"\n{group}: {alike} of {sum(map(len, rows.values()))} look like a sibling\n")
        print(
            "| weights | looks like | cosine | share | spread | matched | norms |\n"
            "|---|---|--:|--:|--:|--:|--:|"
        )
        for kind, found in rows.items():
            print(format_row(kind, found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["budgets"]:
        main_budgets(int((*sys.argv[2:], "5")[0]))
    else:
        main(*(int(argument) for argument in sys.argv[1:] or ("5", "64")))
