"""The miniature of WebShop: its generated shop and goals."""

import re
from collections import Counter
from pathlib import Path

import pytest
from scripts import seedling
from tokenizers import Tokenizer

from agent2rl import registry
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.task import FOLDER_VARIABLE, Example
from agent2rl.environments.webshop import Shop, WebshopEnvironment
from agent2rl.environments.webshop.environment import read_goal
from agent2rl.environments.webshop.product import read_products
from agent2rl.environments.webshop.reward import get_noun_tagger, score_purchase
from agent2rl.tasks.webshop.mini import (
    COLOURS,
    LOOK_ALIKE_EXTRA_PRICE,
    STEPS,
    TASK,
    build_shop,
    generate_stock,
)

SPLITS = TASK.load(None)


def reward(store: WebshopEnvironment, example: Example, actions: list[str]) -> float:
    store.reset(example)
    return max([store.step(action).reward for action in actions], default=0.0)


def test_the_miniature_is_found_by_its_name() -> None:
    assert registry.find_task("webshop-mini") is TASK


@pytest.fixture
def grading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WebshopEnvironment:
    """The store that grades, with its shop where a grading has it."""
    write = SPLITS.evaluator_folders["shop"]
    assert not isinstance(write, Path)
    write(tmp_path / "shop")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return WebshopEnvironment()


def test_the_answers_of_all_goals_win_within_their_steps(grading: WebshopEnvironment) -> None:
    for part in (SPLITS.train, SPLITS.feedback, SPLITS.heldout):
        assert all(reward(grading, one, one.target.splitlines()) == 1 for one in part)
    assert max(len(one.target.splitlines()) for one in SPLITS.train) < STEPS


def test_nonsense_is_worth_nothing(grading: WebshopEnvironment) -> None:
    assert all(reward(grading, one, ["dance", "click[buy now]"]) == 0 for one in SPLITS.feedback[:5])


def test_scoring_buys_what_training_never_buys() -> None:
    parts = [
        {read_goal(one).asin for one in part} for part in (SPLITS.train, SPLITS.feedback, SPLITS.heldout)
    ]
    assert [len(part) for part in (SPLITS.feedback, SPLITS.heldout)] == [400, 400]
    assert len(SPLITS.train) == 480
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    assert len({one.id for part in (SPLITS.train, SPLITS.feedback, SPLITS.heldout) for one in part}) == sum(
        len(part) for part in (SPLITS.train, SPLITS.feedback, SPLITS.heldout)
    )


def test_the_agent_gets_the_shop_without_what_scoring_asks_for(tmp_path: Path) -> None:
    write = SPLITS.folders["shop"]
    assert not isinstance(write, Path)
    write(tmp_path)
    seen = Shop.load(tmp_path)
    assert {*seen.products} == {*build_shop().products}
    assert seen.prices == build_shop().prices
    assert {goal.asin for goal in seen.goals} == {read_goal(one).asin for one in SPLITS.train}


def test_the_grader_gets_the_shop_without_what_anybody_asks_for(
    grading: WebshopEnvironment, tmp_path: Path
) -> None:
    assert grading.find(SPLITS.feedback[0]).prices == build_shop().prices
    assert not any('"instruction"' in path.read_text() for path in (tmp_path / "shop").iterdir())


def test_a_look_alike_is_the_same_but_for_its_price() -> None:
    dear = [one for one in build_shop().products.values() if generate_stock().parts[one.asin] is None]
    assert len(dear) == 2 * 24
    for one in dear:
        same = [
            other
            for other in build_shop().products.values()
            if (other.query, other.attributes) == (one.query, one.attributes) and other.asin != one.asin
        ]
        assert same
        assert one.pricing[0] > LOOK_ALIKE_EXTRA_PRICE
        goal = next(goal for goal in build_shop().goals if goal.asin in {other.asin for other in same})
        assert score_purchase(one, goal, one.pricing[0], [value for _, value in goal.options]).price is False


def test_only_the_features_say_how_a_thing_is() -> None:
    for one in build_shop().products.values():
        look = one.attributes[1]
        assert look in one.bullets[1]
        assert look not in one.text.split()


def test_every_goal_asks_for_one_product_alone_that_is_within_its_price() -> None:
    """Of another brand, material or look there may be many: no other gets the whole reward."""
    for one in SPLITS.feedback[:30]:
        goal = read_goal(one)
        chosen = [value for _, value in goal.options]
        full = [
            asin
            for asin, product in build_shop().products.items()
            if score_purchase(product, goal, build_shop().prices[asin], chosen).reward == 1
        ]
        assert full == [goal.asin]


def test_texts_are_made_of_few_words() -> None:
    listed = Path(seedling.__file__).with_name("words.txt").read_text(encoding="utf-8")
    known = {*re.findall(r"[a-z]+", listed.lower())}
    texts = [
        f"{one.title} {one.description} {' '.join(one.bullets)}" for one in build_shop().products.values()
    ]
    found = Counter(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))
    assert {*found} - known == {"it"}


def test_a_colour_has_the_same_token_in_an_action_as_in_the_instruction_and_on_the_page(
    tmp_path: Path,
) -> None:
    registry.find_model("seedling").write(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for colour in COLOURS:
        texts = (f"click[all {colour}]", f"with color: all {colour}, and", f"| color | all {colour} |")
        tokens = [tokenizer.encode(text).ids for text in texts]
        assert len(set.intersection(*map(set, tokens)) & {*tokenizer.encode(f" {colour}").ids}) == 1


def test_the_shop_is_the_same_each_time() -> None:
    before = build_shop()
    generate_stock.cache_clear()
    build_shop.cache_clear()
    assert build_shop().goals == before.goals


def test_what_is_asked_cannot_be_foretold_from_what_the_agent_sees() -> None:
    files = generate_stock().build_files(("train", "feedback", "heldout"))
    foretold = {goal.instruction for goal in Shop.from_products(read_products(files, "here")).goals}
    asked = [one.prompt for one in (*SPLITS.feedback, *SPLITS.heldout)]
    assert sum(any(words in prompt for words in foretold) for prompt in asked) < len(asked) // 2


def test_a_folder_is_refused_and_answers_can_be_withheld() -> None:
    with pytest.raises(UserError, match="reads no files"):
        TASK.load(Path())
    assert TASK.withhold is not None
    assert not any(one.target for one in TASK.withhold(SPLITS).train)


def test_without_a_grading_there_is_no_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(GradingError, match="only during grading"):
        WebshopEnvironment().reset(SPLITS.train[0])


def test_the_record_says_what_a_noun_was_decided_by() -> None:
    assert f"nouns-by-{get_noun_tagger()}" in TASK.evaluator.version
