"""WebShop's files, goals and rewards: worked out by hand, and the official catalogue where it is at hand."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent2rl.core.errors import UserError
from agent2rl.environments.webshop import TEST, TRAIN, VALIDATION, Shop, ShoppingGoal, WebshopEpisode, reward
from agent2rl.environments.webshop.product import load_products
from agent2rl.environments.webshop.reward import PurchaseScore, compute_type_factor, is_alike, score_purchase
from agent2rl.environments.webshop.shop import UNBOUNDED, build_goals
from tests.helpers.webshop_products import (
    PRODUCT_ATTRIBUTES,
    PRODUCT_ROWS,
    make_catalogue,
    make_goal,
    make_product_row,
    write_catalogue,
)

PUMPS, LOW, TEA = make_catalogue()


@pytest.fixture(autouse=True)
def _nouns_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values below are those of the rule, whatever is installed."""
    monkeypatch.setattr(reward, "get_noun_tagger", lambda: "rule")


def bought(
    chosen: tuple[str, ...] = ("dark | blue", "6"), price: float = 25.0, **wanted: Any
) -> PurchaseScore:
    return score_purchase(PUMPS, make_goal(**wanted), price, chosen)


# Rewards


def test_a_purchase_that_fits_in_everything_is_worth_one() -> None:
    assert bought() == PurchaseScore(1.0, attributes=1, options=2, price=True, kind=1.0)


@pytest.mark.parametrize(
    ("wanted", "hits"),
    [
        (("rubber sole",), 1),
        (("sole rubber",), 1),  # the same words
        (("rubber soles",), 1),  # 96 of 100
        (("cotton sole",), 0),  # 57
        (("leather",), 1),  # in a feature
        (("long evening",), 1),  # in the description
        (("party",), 1),  # in the title
        (("Party",), 0),  # which is read in small letters
        (("rubber sole", "high heel", "vegan"), 2),
    ],
)
def test_attributes_are_hit_by_likeness_or_by_the_text(wanted: tuple[str, ...], hits: int) -> None:
    worth = bought(attributes=wanted)
    assert worth.attributes == hits
    assert worth.reward == pytest.approx((hits + 2 + 1) / (len(wanted) + 2 + 1))


@pytest.mark.parametrize(
    ("chosen", "hits"),
    [
        ((), 0),
        (("6",), 1),
        (("red", "6"), 1),
        (("dark | blue", "6"), 2),
        (("navy blue", "6"), 2),  # both are blue
        (("darkish", "6"), 1),  # this one is dark
    ],
)
def test_options_are_hit_by_likeness_or_by_their_colour(chosen: tuple[str, ...], hits: int) -> None:
    worth = bought(chosen)
    assert worth.options == hits
    assert worth.reward == pytest.approx((1 + hits + 1) / 4)


def test_only_the_published_code_misses_a_colour_that_the_goal_names() -> None:
    wanted = make_goal(options=(("color", "r.brown2060"),))
    assert score_purchase(PUMPS, wanted, 25.0, ["r.brown2060"]).options == 1
    assert score_purchase(PUMPS, wanted, 25.0, ["r.brown2060"], as_published=True).options == 0
    assert score_purchase(PUMPS, make_goal(), 25.0, ["dark | blue", "6"], as_published=True).options == 2
    unnamed = make_goal(options=(("", "r.brown2060"),))
    assert score_purchase(PUMPS, unnamed, 25.0, ["brown"], as_published=True).options == 1


def test_a_price_at_the_bound_is_within_it() -> None:
    assert bought(price=30.0).reward == 1
    dear = bought(price=30.01)
    assert (dear.price, dear.reward) == (False, 0.75)


@pytest.mark.parametrize(
    ("wanted", "factor"),
    [
        ({}, 1.0),
        ({"query": "x", "product_category": "x", "title": "Pumps blue green"}, 1.0),  # a third of the nouns
        ({"query": "x", "product_category": "x", "title": "Pumps blue green black white"}, 0.5),  # a fifth
        ({"product_category": "x", "title": "Pumps blue green black white"}, 1.0),  # but the same query
        ({"query": "x", "product_category": "Shoes › Women", "title": "Pumps blue green black white"}, 1.0),
        ({"query": "x", "product_category": "Women", "title": "Pumps blue green black white"}, 0.5),
        ({"title": "Pumps one1 " + " ".join(f"word{letter}" for letter in "abcdefghij")}, 0.1),  # an eleventh
        ({"title": "Tea"}, 0.0),
        ({"title": "of 12 xx"}, 1.0),  # no nouns: a fifth is assumed, and the query is the same
        ({"title": "of 12 xx", "query": "x", "product_category": "x"}, 0.5),
    ],
)
def test_the_type_factor_asks_for_query_category_and_nouns(wanted: dict[str, Any], factor: float) -> None:
    assert compute_type_factor(PUMPS, make_goal(**wanted)) == factor
    assert bought(**wanted).reward == factor


def test_likeness_is_above_eighty_five_of_a_hundred_rounded() -> None:
    assert is_alike("x" * 6 + "abcd", "x" * 6 + "bcda") is True  # 18 of 20 letters
    assert is_alike("abcdef", "abcdeg") is False  # 83
    assert is_alike("abcdefg", "abcdefh") is True  # 85.7, rounded 86
    assert is_alike("red shoe", "Shoe!") is True
    assert is_alike("café", "caf") is True
    assert is_alike("+", "+") is True
    assert is_alike("+", "-") is False


# Files and goals


def test_official_files_are_read_compressed_or_not(tmp_path: Path) -> None:
    write_catalogue(tmp_path)
    assert load_products(tmp_path) == make_catalogue()
    assert load_products(tmp_path, 1) == make_catalogue()[:1]
    assert PUMPS.options == {"color": ("red", "dark | blue"), "size": ("5", "6")}
    assert (LOW.bullets, LOW.query, LOW.generated) == (("Cotton lining",), "women's pumps", None)
    assert (TEA.pricing, TEA.price) == ((100.0,), "$100.0")


def test_what_is_searched_is_title_description_first_bullet_and_options() -> None:
    assert PUMPS.text == (
        "red party pumps high heels for a long evening. rubber sole  color: red, dark | blue, and size: 5, 6"
    )


def test_ids_that_are_none_too_long_or_known_are_left_out(tmp_path: Path) -> None:
    write_catalogue(
        tmp_path,
        [
            make_product_row("nan", "A"),
            make_product_row("B0123456789", "B"),
            *PRODUCT_ROWS,
            {**PRODUCT_ROWS[0], "name": "Again"},
        ],
    )
    assert load_products(tmp_path) == make_catalogue()


def test_a_folder_without_the_files_or_with_a_broken_row_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file items_shuffle\*"):
        Shop.load(tmp_path)
    write_catalogue(tmp_path, [{"asin": "B1"}])
    with pytest.raises(UserError, match="the product 'B1'"):
        Shop.load(tmp_path)
    (tmp_path / "items_shuffle_3.json.xz").write_bytes(b"no")
    with pytest.raises(UserError, match="Cannot read"):
        Shop.load(tmp_path)


def test_every_combination_of_options_is_a_goal() -> None:
    goals, _ = build_goals(make_catalogue())
    asked = {one.instruction.split(", and price")[0] for one in goals}
    shoes = PRODUCT_ATTRIBUTES["B000000001"]["instruction"]
    assert asked == {
        *(
            f"{shoes} with color: {colour}, and size: {size}"
            for colour in ("red", "dark | blue")
            for size in "56"
        ),
        *(f"Find me tea that is caffeine free with flavour: {flavour}" for flavour in ("mint", "plain")),
    }
    assert len(goals) == 6


def test_goals_are_those_of_the_official_code_after_seeding() -> None:
    random.seed(
        7
    )  # the official order of draws: prices of all products, then a bound for each that is asked for
    price = random.uniform(19.5, 29.5)
    shoe_bound = max(random.sample([10.0 * n for n in range(1, 100) if 10.0 * n > price][:4], 2))
    tea_bound = max(random.sample([110.0, 120.0, 130.0, 140.0], 2))
    goals, prices = build_goals(make_catalogue(), seed=7)
    assert prices == {"B000000001": price, "B000000002": 20.0, "B000000003": 100.0}
    assert {one.asin: one.price_upper for one in goals} == {"B000000001": shoe_bound, "B000000003": tea_bound}
    order = list(range(6))
    random.seed(233)
    random.shuffle(order)
    colours = [("dark | blue", "5"), ("dark | blue", "6")]
    made = [("red", "5"), ("red", "6"), *colours, ("mint",), ("plain",)]
    assert [tuple(value for _, value in one.options) for one in goals] == [made[place] for place in order]


def test_building_goals_leaves_the_global_generator_alone_and_is_the_same_each_time() -> None:
    random.seed(1)
    before = random.getstate()
    assert build_goals(make_catalogue()) == build_goals(make_catalogue())
    assert random.getstate() == before
    assert build_goals(make_catalogue(), seed=1) != build_goals(make_catalogue(), seed=2)


def test_what_people_wrote_are_goals_if_they_ask_for_anything() -> None:
    (only,), _ = build_goals(make_catalogue(), "human")
    assert only.instruction.startswith("i want mint tea, and price lower than 1")
    assert only.options == (("", "mint"),)


def test_a_price_beyond_all_bounds_has_none() -> None:
    dear = replace(TEA, pricing=(980.0,))
    goals, _ = build_goals([dear])
    assert {one.price_upper for one in goals} == {UNBOUNDED}
    assert not any("price" in one.instruction for one in goals)


def test_a_goal_survives_being_written_down() -> None:
    assert ShoppingGoal.from_record(json.loads(json.dumps(make_goal().to_record()))) == make_goal()
    with pytest.raises(UserError, match="Invalid goal"):
        ShoppingGoal.from_record({"asin": "B000000001"})


# The official catalogue of a thousand products


@pytest.fixture(scope="module")
def small(shared_data: Path) -> Shop:
    return Shop.load(shared_data / "webshop")


def test_the_official_small_catalogue_has_its_6910_goals(small: Shop) -> None:
    assert len(small.products) == 1000
    assert len(small.goals) == 6910
    assert [len(small.goals[part]) for part in (TEST, VALIDATION, TRAIN)] == [500, 1000, 5410]


def test_every_official_goal_is_won_by_buying_what_it_was_made_from(small: Shop) -> None:
    assert all(_oracle(small, one).reward == 1 for one in small.goals)


def test_the_published_reward_loses_458_goals_that_nobody_can_win(small: Shop) -> None:
    assert sum(_oracle(small, one, as_published=True).reward < 1 for one in small.goals) == 458


def test_the_small_catalogue_has_thirteen_human_goals(shared_data: Path) -> None:
    people = Shop.load(shared_data / "webshop", kind="human")
    assert len(people.goals) == 13
    assert all(_oracle(people, one).reward == 1 for one in people.goals)


def test_an_official_goal_is_found_and_bought_in_text(small: Shop) -> None:
    wanted = small.goals[0]
    begun = WebshopEpisode(small, wanted)
    begun.step(f"search[{wanted.instruction}]")
    assert wanted.asin in begun.observation
    for name in (wanted.asin, *(value for _, value in wanted.options), "Buy Now"):
        begun.step(f"click[{name}]")
    assert begun.score is not None
    assert begun.score.reward == 1


def _oracle(shelf: Shop, wanted: ShoppingGoal, as_published: bool = False) -> PurchaseScore:
    chosen = [value for _, value in wanted.options]
    price = shelf.prices[wanted.asin]
    return score_purchase(shelf.products[wanted.asin], wanted, price, chosen, as_published=as_published)
