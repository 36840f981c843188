"""WebShop's pages, and the visit that leads from one to another, on a small catalogue of our own."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.webshop import WebshopEnvironment, WebshopEpisode
from agent2rl.environments.webshop.pages import PageLayout
from tests.helpers.webshop_products import (
    SHOE_CATEGORY,
    make_goal,
    make_product_row,
    make_shop,
    write_catalogue,
)

SHOP = make_shop()
ASKED = "Instruction: [SEP] Find me women's pumps [SEP] Back to Search"
ITEM = " [SEP] ".join(
    [
        *(ASKED, "< Prev", "color", "red", "dark | blue", "size", "5", "6"),
        *("Red Party Pumps", "Price: $19.5 to $29.5", "Rating: N.A."),
        *("Description", "Features", "Reviews", "Buy Now"),
    ]
)


def visit(*actions: str, **of: Any) -> WebshopEpisode:
    begun = WebshopEpisode(SHOP, make_goal(), **of)
    for action in actions:
        begun.step(action)
    return begun


def test_a_visit_begins_where_one_searches() -> None:
    begun = visit()
    assert begun.observation == "WebShop [SEP] Instruction: [SEP] Find me women's pumps [SEP] Search"
    assert begun.available == (True, ("search",))


def test_results_show_ids_titles_and_prices() -> None:
    found = visit("search[party pumps]")
    assert found.observation == (
        f"{ASKED} [SEP] Page 1 (Total results: 2) [SEP] Next >"
        " [SEP] B000000002 [SEP] Red Party Pumps, Low [SEP] $20.0"
        " [SEP] B000000001 [SEP] Red Party Pumps [SEP] $19.5 to $29.5"
    )
    assert found.available == (False, ("back to search", "next >", "b000000002", "b000000001"))


def test_a_product_is_shown_with_its_options() -> None:
    seen = visit("search[pumps]", "click[B000000001]")
    assert seen.observation == ITEM
    buttons = ("back to search", "< prev", "description", "features", "reviews", "buy now")
    assert seen.available == (False, (*buttons, "red", "dark | blue", "5", "6"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Description", "High heels for a long evening."),
        ("Features", "Rubber sole [SEP] Made of leather"),
        ("Reviews", ""),
    ],
)
def test_more_is_on_sub_pages_and_back_is_the_product_with_what_was_chosen(name: str, shown: str) -> None:
    seen = visit("search[pumps]", "click[b000000001]", "click[red]", f"click[{name}]")
    assert seen.observation == f"{ASKED} [SEP] < Prev" + (f" [SEP] {shown}" if shown else "")
    assert seen.available == (False, ("back to search", "< prev"))
    assert seen.step("click[< Prev]") == ITEM
    assert seen.options == {"color": "red"}


def test_attributes_have_a_page_where_it_is_wanted() -> None:
    way = ("search[pumps]", "click[b000000001]", "click[attributes]")
    assert visit(*way).observation == ITEM
    shown = f"rubber sole [SEP] high heel [SEP] fashion [SEP] women's pumps [SEP] {SHOE_CATEGORY}"
    assert visit(*way, with_attributes=True).observation == f"{ASKED} [SEP] < Prev [SEP] {shown}"


def test_reviews_are_shown_where_there_are_any() -> None:
    seen = visit("search[tea]", "click[b000000003]")
    assert "Rating: 4.5" in seen.observation
    assert seen.step("click[reviews]").endswith('"Fine" [SEP] 5 [SEP] I drink it. [SEP] "Hm" [SEP] 2')


def test_an_empty_feature_is_an_empty_piece() -> None:
    assert (
        visit("search[tea]", "click[b000000003]", "click[features]").observation
        == f"{ASKED} [SEP] < Prev [SEP] "
    )


def test_an_option_is_chosen_by_a_click_and_the_last_choice_counts() -> None:
    seen = visit("search[pumps]", "click[b000000001]", "click[5]", "choose[Dark | Blue]", "click[6]")
    assert seen.options == {"size": "6", "color": "dark | blue"}
    assert seen.observation == ITEM


def test_leaving_a_product_forgets_what_was_chosen() -> None:
    way = ("search[pumps]", "click[b000000001]", "click[6]")
    assert visit(*way, "click[< prev]").page == "results"
    assert visit(*way, "click[< prev]").options == {}
    assert visit(*way, "click[back to search]").page == "start"
    assert visit(*way, "click[back to search]", "search[pumps]", "click[b000000001]").options == {}


def test_fifty_results_are_shown_ten_by_ten_and_beyond_them_nothing() -> None:
    many = WebshopEpisode(
        make_shop([make_product_row(f"B{number:03}", "Plain Hat") for number in range(60)]), make_goal()
    )
    pages = [many.step("search[hat]"), *(many.step("click[Next >]") for _ in range(5))]
    assert [page.split(" [SEP] ")[3] for page in pages] == [
        f"Page {n} (Total results: 50)" for n in range(1, 7)
    ]
    assert [page.count("Plain Hat") for page in pages] == [10, 10, 10, 10, 10, 0]
    assert many.available == (False, ("back to search", "< prev", "next >"))
    assert many.step("click[< prev]") == pages[4]
    assert "< Prev" not in pages[0]


def test_pages_can_be_shorter_for_a_small_context() -> None:
    found = visit("search[party pumps]", layout=PageLayout(" | ", shown=1))
    assert found.observation == (
        "Instruction: | Find me women's pumps | Back to Search | Page 1 (Total results: 2) | Next >"
        " | B000000002 | Red Party Pumps, Low | $20.0"
    )
    assert "B000000001" in found.step("click[next >]")
    bare = visit("search[party pumps]", "click[b000000002]", layout=PageLayout(" | ", head=False))
    assert bare.observation.startswith("< Prev | Red Party Pumps, Low | Price: $20.0 | Rating: N.A. | Desc")
    assert "Find me women's pumps" in bare.step("click[back to search]")
    store = WebshopEnvironment(lambda _: SHOP)
    seen = store.reset(example(layout={"separator": "\n"}))
    assert seen.observation == "WebShop\nInstruction:\nFind me women's pumps\nSearch"
    for wrong in ({"shown": 0}, {"separator": 3}, {"head": "no"}):
        with pytest.raises(UserError, match="invalid layout"):
            store.reset(example(layout=wrong))


def test_searching_works_from_every_page() -> None:
    results = visit("search[tea]").observation
    ways = (
        ("search[pumps]",),
        ("search[pumps]", "click[b000000001]"),
        ("search[pumps]", "click[b000000001]", "click[features]"),
    )
    assert all(visit(*way, "search[TEA]").observation == results for way in ways)


@pytest.mark.parametrize("door", ["<r>", "<a> rubber sole", "<c> fashion", "<q> women's pumps"])
def test_the_official_back_doors_are_words(door: str) -> None:
    plain = door[1] + door[3:]
    assert visit(f"search[{door}]").observation == visit(f"search[{plain}]").observation


@pytest.mark.parametrize(
    "action",
    [
        *(
            "",
            "search",
            "search[]",
            "click[]",
            "click[buy now",
            "buy now",
            " click[6]",
            "press[6]",
            "click[7]",
        ),
        *("click[search]", "Click[6]", "search[a\nb]", "click[b000000002]", "click[next >]"),
    ],
)
def test_an_action_that_makes_no_sense_changes_nothing(action: str) -> None:
    seen = visit("search[pumps]", "click[b000000001]", action)
    assert (seen.observation, seen.options, seen.score) == (ITEM, {}, None)


def test_buying_ends_the_visit() -> None:
    seen = visit("search[pumps]", "click[b000000001]", "click[6]", "click[dark | blue]", "click[Buy Now]")
    assert seen.score is not None
    assert seen.score.reward == 1
    assert seen.observation == " [SEP] ".join(
        [
            *("Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"),
            *("Purchased", "asin", "B000000001", "options", '{"color": "dark | blue", "size": "6"}'),
            *("attrs", "None", "category", "None", "query", "None", "product category", "None"),
            *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category"),
            *("product category", "query", "Goal", "None"),
            *("Reward", "Your score (min 0.0, max 1.0)", "1.0", "Reward Details", "None"),
        ]
    )
    assert seen.available == (False, ())
    assert seen.step("search[pumps]") == seen.observation


WORDS = st.sampled_from(
    [
        *(
            "search[",
            "click[",
            "choose[",
            "]",
            "pumps",
            "tea",
            "next >",
            "< prev",
            "back to search",
            "buy now",
        ),
        *("description", "features", "reviews", "attributes", "b000000001", "b000000003", "<r>", "6", " "),
    ]
)
ACTIONS = st.one_of(st.text(max_size=30), st.lists(WORDS, max_size=4).map("".join))


@given(st.lists(ACTIONS, max_size=12), st.booleans())
def test_any_action_on_any_page_is_answered(actions: list[str], with_attributes: bool) -> None:
    begun = WebshopEpisode(SHOP, make_goal(), with_attributes=with_attributes)
    for action in actions:
        assert begun.step(action)
        assert all(name == name.lower() for name in begun.available.clickables)


@given(st.lists(st.integers(0, 30), max_size=15))
def test_whatever_can_be_clicked_can_be_clicked(choices: list[int]) -> None:
    begun = visit("search[red tea pumps]")
    for choice in choices:
        names = begun.available.clickables
        if names:
            begun.step(f"click[{names[choice % len(names)]}]")
    assert begun.observation


# As an environment


def example(**meta: Any) -> Example:
    return Example("0", "Find me women's pumps", "", {"goal": make_goal().to_record(), **meta})


def test_an_environment_rewards_the_purchase_and_then_stands_still() -> None:
    store = WebshopEnvironment(lambda _: SHOP)
    assert store.reset(example()).observation.startswith("WebShop")
    steps = [
        store.step(action) for action in ("search[pumps]", "click[b000000001]", "click[6]", "click[buy now]")
    ]
    assert [(step.reward, step.done, step.won) for step in steps] == [(0, False, False)] * 3 + [
        (0.75, True, False)
    ]
    after = store.step("search[pumps]")
    assert (after.reward, after.done, after.observation) == (0, True, steps[-1].observation)


def test_an_action_that_makes_no_sense_is_invalid_and_an_option_that_is_chosen_is_not() -> None:
    store = WebshopEnvironment(lambda _: SHOP)
    store.reset(example())
    actions = ("dance", "search[pumps]", "click[b000000001]", "click[6]", "click[7]", "click[buy now]")
    steps = [store.step(action) for action in actions]
    assert [step.invalid for step in steps] == [True, False, False, False, True, False]
    assert steps[3].observation == steps[2].observation == steps[4].observation


def test_an_episode_without_a_purchase_is_cut() -> None:
    store = WebshopEnvironment(lambda _: SHOP)
    store.reset(example(steps=2))
    assert not store.step("search[pumps]").done
    last = store.step("dance")
    assert (last.done, last.cut, last.won, last.reward) == (True, True, False, 0)


def test_an_example_without_a_goal_or_steps_is_refused() -> None:
    store = WebshopEnvironment(lambda _: SHOP)
    with pytest.raises(UserError, match=r"has no goal.*open_world\(\).environment"):
        store.reset(Example("0", "", "", {}))
    with pytest.raises(UserError, match="allows 0 steps"):
        store.reset(example(steps=0))
    with pytest.raises(RuntimeError):
        WebshopEnvironment(lambda _: SHOP).step("search[pumps]")


def test_the_world_of_a_run_plays_its_training_goals(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    write_catalogue(tmp_path / "shop")
    line = {"id": "train-1", "question": "Find me", "goal": make_goal().to_record(), "steps": 5}
    (tmp_path / "train.jsonl").write_text(json.dumps(line) + "\n")
    world = registry.find_world("webshop")(tmp_path)
    environment = world.environment()
    environment.reset(world.games[0])
    search, click = world.tools
    assert "B000000001" in environment.step(search("pumps")).observation
    assert environment.step(click("B000000001")).observation == ITEM
