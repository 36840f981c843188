"""How fast WebShop is here: loading, indexing, searching, stepping. CPU time of one process on one core.

    python -m benchmarks.webshop FOLDER [--steps 20000] [--seed 0]      the shop in FOLDER
    python -m benchmarks.webshop FOLDER --recombined 1180000           the search alone, over so many texts

FOLDER holds the official files. Steps are those of the environment that grades: random clicks on what is
listed, and searches for words out of the goal's instruction. Recombined texts are made of runs of the
products' own words, each as long as one of theirs, with a word that no other has; they are not kept.
"""

import argparse
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from agent2rl.core.task import Example
from agent2rl.environments.retrieval import Bm25Index
from agent2rl.environments.webshop import Shop, ShoppingGoal, WebshopEnvironment
from agent2rl.environments.webshop.product import load_products
from agent2rl.environments.webshop.shop import FOUND

QUERIES = 2000
RUN = 12
"""Words that follow one another in a recombined text as they do in a product's."""
OFFICIAL = 40
"""Steps a second of the official text environment with its Lucene index, as others measured it (about 25 ms a
step on one core of a small machine): cited, not measured here."""


def main() -> None:
    given = _arguments().parse_args()
    chance = random.Random(given.seed)
    begun = time.process_time()
    products = load_products(given.folder)
    print(f"reading {len(products)} products: {time.process_time() - begun:.2f} s")
    if given.recombined:
        texts = _Texts([one.text for one in products], given.recombined, chance)
        began = time.process_time()
        index = Bm25Index.from_texts(texts)
        seconds = time.process_time() - began - texts.seconds
    else:
        began = time.process_time()
        index = Bm25Index.from_texts((one.asin, one.text) for one in products)
        seconds = time.process_time() - began
    print(f"indexing {len(index.ids)} texts: {seconds:.2f} s")
    shop = Shop.from_products(products)
    _time_queries(index, [_words(chance, chance.choice(shop.goals)) for _ in range(QUERIES)])
    if not given.recombined:
        _time_steps(shop, chance, given.steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the whole program: {peak:.2f} GiB")


def _time_queries(index: Bm25Index, queries: list[str]) -> None:
    took = []
    for query in queries:
        began = time.thread_time_ns()
        index.search_ids(query, FOUND)
        took.append((time.thread_time_ns() - began) / 1e6)
    median, most = (sorted(took)[int(share * len(took))] for share in (0.5, 0.95))
    different = f"{len(set(queries))} of {len(queries)} queries are different"
    print(f"query: median {median:.3f} ms, p95 {most:.3f} ms; {different}")


def _time_steps(shop: Shop, chance: random.Random, steps: int) -> None:
    """One walk, its searches timed apart from its other steps, each of which lists what can be clicked."""
    goals = [Example(str(n), "", "", {"goal": goal.to_record()}) for n, goal in enumerate(shop.goals)]
    store = WebshopEnvironment(lambda _: shop)
    seconds, count = {"search": 0.0, "click": 0.0}, {"search": 0, "click": 0}
    queries: set[str] = set()
    over = True
    while sum(count.values()) < steps:
        if over:
            store.reset(chance.choice(goals))
        assert store.visit is not None
        searching = store.visit.page == "start" or chance.random() < 0.1
        query = _words(chance, store.visit.goal)
        began = time.thread_time_ns()
        if searching:
            over = store.step(f"search[{query}]").done
        else:
            over = store.step(f"click[{chance.choice(store.visit.available.clickables)}]").done
        kind = "search" if searching else "click"
        seconds[kind] += (time.thread_time_ns() - began) / 1e9
        count[kind] += 1
        queries |= {query} if searching else set()
    whole = steps / sum(seconds.values())
    print(f"steps a second, search included: {whole:,.0f} ({count['search'] / steps:.0%} of them searches,")
    print(f"  {len(queries)} of {count['search']} queries different); cited for the official one: {OFFICIAL}")
    print(f"steps a second without search: {count['click'] / seconds['click']:,.0f}")


def _words(chance: random.Random, goal: ShoppingGoal) -> str:
    """Most of an instruction, in its order."""
    return " ".join(word for word in goal.instruction.split() if chance.random() < 0.8)


class _Texts:
    """Texts for an index, and the seconds that making them took."""

    def __init__(self, texts: list[str], count: int, chance: random.Random) -> None:
        self._words = [text.split() for text in texts]
        self._count, self._chance = count, chance
        self.seconds = 0.0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number in range(self._count):
            began = time.thread_time_ns()
            made = self._text(number)
            self.seconds += (time.thread_time_ns() - began) / 1e9
            yield f"{number:010}", made

    def _text(self, number: int) -> str:
        chance, words = self._chance, [f"m{number}"]
        length = len(chance.choice(self._words))
        while len(words) < length:
            source = chance.choice(self._words)
            start = chance.randrange(len(source))
            words += source[start : start + RUN]
        return " ".join(words)


def _arguments() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--steps", type=int, default=20000)
    arguments.add_argument("--recombined", type=int, default=0, metavar="TEXTS")
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


if __name__ == "__main__":
    main()
