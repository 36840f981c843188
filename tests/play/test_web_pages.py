"""Playing a task as web pages: what is shown, what may act, and whatever is sent."""

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from html import unescape
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.webshop import WebshopEnvironment
from agent2rl.environments.webshop.environment import read_goal
from agent2rl.play.web_app import (
    BODY_BYTES,
    MOST_OPEN_GAMES,
    OpenGames,
    has_pages,
    make_application,
    serve_games,
)
from agent2rl.run.task_data import open_training_world
from tests.helpers import webshop_products
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_worlds import STAIRS_WORLD

HERE = "http://127.0.0.1:8000"


@dataclass
class Browser:
    """A person's: it follows where it is led, and clicks what the page has."""

    http: TestClient
    path: str

    @property
    def page(self) -> str:
        answer = self.http.get(self.path)
        assert answer.status_code == 200
        return answer.text

    @property
    def text(self) -> str:
        return unescape(re.sub(r"<[^>]+>", " ", self.page))

    def post(self, what: str, **fields: str) -> Any:
        turn = re.search(r'name="turn" value="(\d+)"', self.page)
        assert turn
        return self.http.post(f"{self.path}/{what}", data={"turn": turn[1], **fields})

    def click(self, label: str) -> None:
        """The button that says so; what it stands for is done."""
        found = re.search(rf'value="([^"]*)"[^>]*>{re.escape(label)}</button>', self.page)
        assert found, self.page
        assert self.post("act", action=unescape(found[1])).status_code == 200

    def search(self, words: str) -> None:
        assert 'name="before" value="search["' in self.page
        self.post("act", before="search[", action=words, after="]")


def browser(world: World, number: int = 1, **options: Any) -> Browser:
    games = OpenGames(world)
    http = TestClient(make_application(games, "a world"), base_url=HERE, headers={"Origin": HERE}, **options)
    return Browser(http, f"/play/{games.open(number)}")


def shop_world(**others: Any) -> World:
    """With one product more, whose texts would like to be a page of their own."""
    evil = "<script>alert(1)</script>"
    rows = (
        webshop_products.make_product_row(
            "B000000009",
            f"Pumps {evil}",
            full_description=f"{evil} \ud800",
            small_description=[evil, '"\' onclick="alert(1)'],
            customization_options=webshop_products.make_options(**{f'Color"{evil}': ["<b>red", "blue"]}),
        ),
        *webshop_products.PRODUCT_ROWS,
    )
    shop = webshop_products.make_shop(rows)
    goal = webshop_products.make_goal(**others).to_record()
    return World(
        (Example("one", "", "", {"goal": goal, "steps": 9}),), lambda: WebshopEnvironment(lambda _: shop)
    )


@pytest.fixture(scope="module")
def webshop() -> Iterator[World]:
    with open_training_world("webshop-mini", None) as (_, world):
        yield world


@pytest.fixture(scope="module")
def homes() -> Iterator[World]:
    with open_training_world("tests.play.alfworld_few_games:TASK", None) as (_, world):
        yield world


def test_a_purchase_is_made_by_clicking_and_its_reward_explained(webshop: World) -> None:
    person, example = browser(webshop), webshop.games[0]
    goal = read_goal(example)
    search, product, *_ = example.target.splitlines()
    assert example.prompt in person.text
    person.search(search.removeprefix("search[").removesuffix("]"))
    person.post("act", action=product)
    assert goal.title in person.text
    person.click("Features")
    assert all(attribute in person.text for attribute in goal.attributes)
    person.click("&lt; Prev")
    for _, value in goal.options:
        person.click(value)
        assert f'aria-pressed="true">{value}</button>' in person.page
    person.click("Buy Now")
    said = " ".join(person.text.split())
    hits, options = len(goal.attributes), len(goal.options)
    assert f"Won. Reward 1 after {5 + options} steps." in said
    assert f"Attributes {', '.join(goal.attributes)} {hits} of {hits}" in said
    assert f"{' '.join(goal.options[-1]).replace(' ', ': ', 1)} {options} of {options}" in said
    assert re.search(rf"Price at most \${goal.price_upper:.2f} 1 of 1 \(\$\d", said)
    assert f"Type {goal.product_category} × 1: the requested kind of product" in said
    assert f"({hits} + {options} + 1) / {hits + options + 1} × 1 = 1" in said
    assert "The game is over. Play it again, or the next one." in person.post("act", action="look").text
    person.post("next")
    assert webshop.games[1].prompt in person.text


def test_a_poor_purchase_shows_what_it_lacks() -> None:
    person = browser(shop_world(price_upper=1000000.0))
    person.search("green tea")
    person.click("Green Tea Set")
    person.click("Reviews")
    assert "I drink it." in person.text
    person.click("&lt; Prev")
    person.click("Buy Now")
    said = person.text
    assert "Over, not won. Reward 0 " in said
    assert re.search(r"Price\s+any\s+1 of 1", said)
    assert "× 0: another kind of product" in said


def test_the_model_sees_the_very_text_that_the_page_shows_beside_it(webshop: World) -> None:
    person, place = browser(webshop), webshop.environment()
    place.reset(webshop.games[0])
    search, product, *_ = webshop.games[0].target.splitlines()
    for action in (search, "nonsense", "click[next >]", "click[< prev]", product, "click[reviews]"):
        person.post("act", action=action)
        exact = re.search(r'<pre class="exact">\n(.*?)</pre>', person.page, re.DOTALL)
        assert exact
        assert unescape(exact[1]) == place.step(action).observation
    steps = re.search(r'<ol class="steps">(.*?)</ol>', person.page, re.DOTALL)
    assert steps
    assert steps[1].count("<li>") == 6


def test_nothing_that_a_product_says_is_markup() -> None:
    person = browser(shop_world())
    person.search("pumps script <img src=x onerror=alert(1)>")
    for click in ("b000000009", "description", "< prev", "features", "< prev", "<b>red", "buy now"):
        person.post("act", action=f"click[{click}]")
        page = person.page
        assert "alert(1)" in page
        assert not re.search(r"<script|<img|<b>|<[^>]* onclick=", page)
    answer = person.http.get(person.path)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_home_is_played_by_the_experts_advice_to_the_end(homes: World) -> None:
    person = browser(homes, 2)
    person.post("act", action="look")
    person.post("again")
    assert "step 0 of 20" in person.text
    person.click("inventory")
    for _ in range(20):
        if "Won. Reward 1" in person.text:
            break
        advice = person.http.get(person.path, params={"expert": "1"}).text
        said = re.search(r'The expert would say <button form="act" name="action" value="([^"]+)"', advice)
        assert said
        person.post("act", action=unescape(said[1]))
    assert "Won. Reward 1" in person.text
    assert homes.games[1].prompt in person.text
    assert person.http.get(person.path, params={"expert": "1"}).text.count("The game is over.") == 1


def test_only_worlds_with_pages_have_them(homes: World, webshop: World) -> None:
    assert [has_pages(one) for one in (STAIRS_WORLD, homes, webshop)] == [False, False, True]


def test_what_is_clicked_on_an_earlier_page_does_nothing(homes: World) -> None:
    person = browser(homes)
    told = []
    for what in ("act", "act", "again"):
        sent = person.http.post(f"{person.path}/{what}", data={"turn": "0", "action": "look"})
        told.append("That page was out of date." in sent.text)
    assert told == [False, True, True]
    assert "step 1 of 20" in person.text
    assert "That page was out of date." not in person.text


def test_a_game_is_chosen_by_number_or_id() -> None:
    person = browser(STAIRS_WORLD)
    assert "the 8 training games" in " ".join(person.http.get("/").text.split())
    for name, goal in (("3", 3), ("stairs-8", 8), (" ", 1)):
        assert f"Climb to step {goal}." in person.http.post("/begin", data={"episode": name}).text
    wrong = person.http.post("/begin", data={"episode": "heldout-1"})
    assert (wrong.status_code, "held-out games cannot be played" in wrong.text) == (404, True)


ORIGINS = ["http://evil.test", "null", "http://127.0.0.1:9", "http://evil.test:8000", "http://["]


@pytest.mark.parametrize("origin", ORIGINS)
def test_another_web_site_can_do_nothing(origin: str) -> None:
    person = browser(STAIRS_WORLD)
    for path in ("/begin", f"{person.path}/act", f"{person.path}/next"):
        sent = person.http.post(path, data={"turn": "0", "action": "up"}, headers={"Origin": origin})
        assert sent.status_code == 403
    assert "step 0" in person.text


def test_a_name_that_only_points_to_this_computer_is_no_host_of_ours() -> None:
    person = browser(STAIRS_WORLD)
    for host, status in (("evil.test", 400), ("evil.test:8000", 400), ("", 400), ("localhost:1", 200)):
        assert person.http.get(person.path, headers={"Host": host}).status_code == status


def test_acting_takes_a_post_and_a_name_that_nobody_can_guess() -> None:
    person = browser(STAIRS_WORLD)
    assert person.http.get(f"{person.path}/act", params={"action": "up"}).status_code == 405
    assert person.http.post("/play/guess/act", data={"turn": "0", "action": "up"}).status_code == 404
    assert person.http.post(f"{person.path}/leave", data={"turn": "0"}).status_code == 404
    assert len(person.path) > 20
    assert person.path != browser(STAIRS_WORLD).path


def test_games_are_bounded_in_number_and_the_one_left_alone_the_longest_goes() -> None:
    games = OpenGames(STAIRS_WORLD)
    first, second = games.open(1), games.open(2)
    table = games.get(second)
    assert games.get(first)
    kept = [games.open(3) for _ in range(MOST_OPEN_GAMES - 1)]
    assert games.get(second) is None
    assert table
    assert table.game.closed
    assert all(games.get(name) for name in (first, *kept))
    http = TestClient(make_application(games, "stairs"), base_url=HERE)
    lost = http.get(f"/play/{second}")
    assert (lost.status_code, "There is no such game" in lost.text) == (404, True)


def test_any_action_gives_a_page(homes: World, webshop: World) -> None:
    people = [browser(one) for one in (homes, webshop, shop_world())]
    words = st.sampled_from(
        ["search[", "click[", "]", "pumps", "b000000009", "buy now", "look", "think:", "<b>"]
    )
    texts = st.text(max_size=40) | st.lists(words, max_size=5).map("".join)

    @settings(max_examples=60)
    @given(
        person=st.sampled_from(people),
        body=st.binary(max_size=60) | st.text(st.characters(codec="ascii")).map(str.encode),
        action=texts.map(lambda text: text.encode("utf-8", "replace").decode()),
        what=st.sampled_from(["act", "act", "again", "next"]),
    )
    def check(person: Browser, body: bytes, action: str, what: str) -> None:
        assert person.http.post(f"{person.path}/act", content=body).status_code in (200, 400)
        assert person.post(what, action=action).status_code == 200
        assert "</html>" in person.page

    check()


def test_what_is_too_long_or_has_too_many_parts_is_refused() -> None:
    person = browser(STAIRS_WORLD)
    assert person.post("act", action="x" * BODY_BYTES).status_code == 413
    assert person.post("act", **{f"field{n}": "x" for n in range(99)}).status_code == 400
    assert "step 0" in person.text


def test_a_fault_of_the_world_is_a_page_too() -> None:
    person = browser(STAIRS_WORLD, raise_server_exceptions=False)
    sent = person.post("act", action="trip")
    assert (sent.status_code, "The environment failed (ValueError)." in sent.text) == (500, True)
    person.post("act", action="up")
    assert "Won. Reward 1" in person.text


def test_a_port_that_is_taken_is_said() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"Port {port} .* cannot be used.*--port"):
            serve_games(STAIRS_WORLD, "stairs", 1, port, print)


def test_the_shop_is_served_on_this_computer_until_it_is_interrupted(launcher: RunLauncher) -> None:
    with subprocess.Popen(
        launcher.command("play", "webshop-mini", "--episode", "train-0003"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=launcher.home,
        env=launcher.environment(),
    ) as serving:
        assert serving.stdout
        try:
            address, how = serving.stdout.readline().strip(), serving.stdout.readline()
            with httpx.Client(timeout=120) as http:
                page = http.get(address).text
                style = http.get(httpx.URL(address).join("/style.css"))
                serving.send_signal(signal.SIGINT)
                rest, errors = serving.communicate(timeout=120)
        finally:
            serving.kill()
    assert "training game 4 of" in page
    assert address.startswith("http://127.0.0.1:")
    assert how == "(Ctrl-C to stop)\n"
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert (serving.returncode, rest, errors) == (0, "", "loading webshop-mini\n")
