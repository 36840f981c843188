"""The official files: where they are, which goals they give, and what an agent is shown of them."""

import json
import shutil
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.environments.webshop import TEST, TRAIN, VALIDATION, Shop
from agent2rl.environments.webshop.goal import Kind, build_goals
from agent2rl.environments.webshop.product import (
    INSTRUCTIONS,
    PRODUCTS,
    REVIEWS,
    find_official_file,
    load_products,
    read_json_file,
)

FEEDBACK = slice(VALIDATION.start, VALIDATION.start + TEST.stop)
"""Of the validation goals, as many as there are test goals."""
FILES = (
    "It wants WebShop's own files, which its setup.sh downloads (-d small or -d all): items_shuffle*.json, "
    "items_ins_v2*.json and, for goals that people wrote, items_human_ins*.json; compressed (.xz) or not."
)


def find_data_folder(data_dir: Path | None) -> Path:
    """The folder that holds the files. No download: their source wants a person to agree to large ones."""
    if data_dir is None:
        raise UserError("webshop has no data of its own.", f"Name a folder with --data-dir. {FILES}")
    for name in (PRODUCTS, INSTRUCTIONS):
        if find_official_file(data_dir, name) is None:
            raise UserError(f"There is no {name}*.json in {data_dir}.", FILES)
    return data_dir


def load_shop(place: Path, kind: Kind | None) -> tuple[Kind, Shop]:
    """The shop with its goals: of the kind that is asked for, or what people wrote where that is enough."""
    kinds: tuple[Kind, ...] = ("human", "generated") if kind is None else (kind,)
    products = load_products(place)
    for each in kinds:
        count = len(build_goals(products, each)[0])
        if count > TRAIN.start:
            return each, Shop.from_products(products, each)
    raise UserError(
        f"There are {count} {each} goals in {place}: all of them would be for scoring.",
        f"Training begins with number {TRAIN.start}.",
    )


def write_visible_files(place: Path, target: Path) -> None:
    """Write what an agent may see: all products, and their attributes without what anybody asks for."""
    for name in (PRODUCTS, REVIEWS):
        if (path := find_official_file(place, name)) is not None:
            shutil.copyfile(path, target / path.name)
    path = find_official_file(place, INSTRUCTIONS)
    assert path is not None
    known = {
        asin: {"attributes": row["attributes"]}
        for asin, row in read_json_file(path, dict).items()
        if "attributes" in row
    }
    (target / f"{INSTRUCTIONS}.json").write_text(json.dumps(known), encoding="utf-8")
