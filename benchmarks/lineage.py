"""How often the lineage of a submission is told right: families of tiny Llamas, trained here, many seeds.

Prints the table of docs/design/lineage.md: .venv/bin/python -m benchmarks.lineage [SEEDS] [HIDDEN]
"""

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from tests.helpers import model_families
from tests.helpers.model_families import Weights, get_weights

from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.lineage import LineageReport, trace_lineage

FIGURES = ("retained", "added", "pull", "alignment")


def kin(seed: int, hidden: int) -> Iterator[tuple[str, Weights]]:
    """The base first, then everything that is held against it."""
    base = model_families.pretrain_model(2 * seed, hidden=hidden)
    own = get_weights(base)
    yield "base", own
    for rate in (1e-5, 1e-4, 1e-3, 3e-3, 1e-2):
        yield f"SFT, learning rate {rate:g}", get_weights(model_families.finetune_child(base, rate, seed))
    yield (
        "SFT, 1e-3, weight decay 0.1, 200 steps",
        get_weights(model_families.finetune_child(base, 1e-3, seed, steps=200, weight_decay=0.1)),
    )
    yield (
        "SFT, learning rate 0.01, 200 steps",
        get_weights(model_families.finetune_child(base, 1e-2, seed, steps=200)),
    )
    for rate in (1e-4, 1e-3):
        yield (
            f"GRPO-like, learning rate {rate:g}",
            get_weights(model_families.train_with_reward(base, rate, seed=seed)),
        )
    for rank, rate in ((4, 1e-3), (4, 1e-2), (16, 3e-3)):
        yield (
            f"LoRA of rank {rank}, learning rate {rate:g}",
            model_families.finetune_with_lora(base, rate, rank, seed=seed),
        )
    stranger = get_weights(model_families.pretrain_model(2 * seed + 1, hidden=hidden))
    yield "another seed, same text", stranger
    distant = get_weights(model_families.pretrain_model(2 * seed + 1, language=7, hidden=hidden))
    yield "another seed, other text", distant
    yield "re-initialised", get_weights(model_families.make_random_model(1000 + seed, hidden))
    yield (
        "same first weights, other text",
        get_weights(model_families.pretrain_model(2 * seed, language=7, hidden=hidden)),
    )
    for share in (0.05, 0.2, 0.5, 0.7, 0.9):
        yield f"{share:.0%} of another seed mixed in", model_families.mix_weights(own, stranger, share)
    for factor in (0.2, 0.3, 0.5, 1.0, 2.0, 5.0):
        yield (
            f"base plus {factor:g} times another seed, by matrix",
            model_families.add_weights(own, stranger, factor),
        )
    for factor in (0.3, 0.9):
        yield (
            f"base plus {factor:g} times another seed of other text, by model",
            model_families.add_weights(own, distant, factor, per_matrix=False),
        )
    for scale in (0.1, 0.5, 2.0, 10.0):
        yield f"noise {scale:g} times the weights", model_families.add_noise(own, scale, seed)
    yield (
        "one layer of another seed",
        {name: (stranger if ".layers.1." in name else own)[name] for name in own},
    )
    moderate = get_weights(model_families.finetune_child(base, 1e-3, seed))
    yield "child, 20% of another seed mixed in", model_families.mix_weights(moderate, stranger, 0.2)
    for factor in (0.3, 0.5):
        yield (
            f"child plus {factor:g} times another seed",
            model_families.add_weights(moderate, stranger, factor),
        )
    for kind, start in (("base", own), ("child", moderate)):
        yield f"{kind}: heads permuted", model_families.permute_heads(start)
        yield f"{kind}: neurons permuted", model_families.permute_neurons(start)
        yield f"{kind}: a tenth of the neurons permuted", model_families.permute_neurons(start, 0.1)
        yield f"{kind}: values flipped", model_families.flip_values(start)
        yield f"{kind}: layers rescaled by 2", model_families.rescale_projections(start)
        yield f"{kind}: neurons rescaled", model_families.rescale_neurons(start)
        yield f"{kind}: stream permuted", model_families.permute_residual_stream(start)


def row(name: str, reports: list[LineageReport]) -> str:
    verdicts = ", ".join(
        f"{many} {verdict}" for verdict, many in Counter(r.verdict for r in reports).most_common()
    )

    def middle(figure: str) -> str:
        found = [getattr(report, figure) for report in reports if getattr(report, figure) is not None]
        return f"{median(found):.2f}" if found else ""

    figures = " | ".join(middle(figure) for figure in FIGURES)
    return f"| {name} | {verdicts} | {figures} |"


def main(seeds: int, hidden: int) -> None:
    torch.set_num_threads(1)
    reports: dict[str, list[LineageReport]] = defaultdict(list)
    like = model_families.make_random_model(0, hidden)
    began = time.perf_counter()
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as directory:
            for number, (name, tensors) in enumerate(kin(seed, hidden)):
                place = model_families.write_model(tensors, like, Path(directory, str(number)))
                if number == 0:
                    base = read_base_model(place)
                else:
                    reports[name].append(trace_lineage(place, base))
        print(f"seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"| weights | verdicts | {' | '.join(FIGURES)} |\n|---|---|{'--:|' * len(FIGURES)}")
    for name, found in reports.items():
        print(row(name, found))


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:] or ("10", "64")))
