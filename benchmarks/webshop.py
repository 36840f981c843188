"""How fast WebShop is here: loading, indexing, searching, stepping. CPU time of one process.

    python benchmarks/webshop.py FOLDER [--steps 20000] [--seed 0]

FOLDER holds the official files. Queries are the goals' instructions; steps are random clicks and searches.
"""

import argparse
import random
import time
from pathlib import Path

from agent2rl.environments.retrieval import Index
from agent2rl.environments.webshop import Shop, Visit
from agent2rl.environments.webshop.product import load_products

QUERIES = 2000


def main() -> None:
    given = _arguments().parse_args()
    begun = time.process_time()
    products = load_products(given.folder)
    read = time.process_time()
    Index.of((one.asin, one.text) for one in products)
    indexed = time.process_time()
    shop = Shop.of(products)
    print(f"products {len(products)}, goals {len(shop.goals)}")
    print(f"reading {read - begun:.2f} s, indexing {indexed - read:.2f} s")
    chance = random.Random(given.seed)
    queries = [chance.choice(shop.goals).instruction for _ in range(QUERIES)]
    took = sorted(_seconds(shop, query) for query in queries)
    median, most = (1000 * took[int(share * QUERIES)] for share in (0.5, 0.95))
    print(f"query: median {median:.3f} ms, p95 {most:.3f} ms")
    print(f"step: {1000 * _walk(shop, chance, given.steps):.3f} ms on average, what can be clicked listed")


def _seconds(shop: Shop, query: str) -> float:
    begun = time.process_time_ns()
    shop.search(query)
    return (time.process_time_ns() - begun) / 1e9


def _walk(shop: Shop, chance: random.Random, steps: int) -> float:
    visit = Visit(shop, chance.choice(shop.goals))
    begun = time.process_time()
    for _ in range(steps):
        names = visit.available.clickables
        if visit.score is not None:
            visit = Visit(shop, chance.choice(shop.goals))
        elif visit.page == "start" or chance.random() < 0.1:
            visit.step(f"search[{visit.goal.instruction}]")
        else:
            visit.step(f"click[{chance.choice(names)}]")
    return (time.process_time() - begun) / steps


def _arguments() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--steps", type=int, default=20000)
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


if __name__ == "__main__":
    main()
