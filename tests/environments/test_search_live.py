"""Live search engines, against servers on loopback: what they are asked, what goes wrong, what is opened."""

import gzip
import importlib.util
import socket
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.errors import ExternalServiceError, UserError
from agent2rl.environments.search import LocalCorpus, ReplayBackend, SearchResult
from agent2rl.environments.search.backends import PAGE_CHARACTERS
from agent2rl.environments.search.page_reader import PageReader, ServerAddress, extract_text, is_public
from agent2rl.environments.search.search_engines import (
    ENGINES,
    NAMES,
    DdgsBackend,
    EngineBackend,
    RateLimitedRetry,
    make_searxng_engine,
    open_backend,
    resolve_name,
)
from tests.helpers.web_server import PageRequest, PageResponse, WebServer, make_json_response, serve_pages

KEY = "sk-very-secret-0123456789"
ROWS = {
    "tavily": {"results": [{"url": "http://a", "title": "A", "content": "first", "score": 0.9}]},
    "brave": {
        "web": {"results": [{"url": "http://a", "title": "A", "description": "<strong>first</strong>"}]}
    },
    "serpapi": {"organic_results": [{"link": "http://a", "title": "A", "snippet": "first", "position": 1}]},
}


def quick(per_second: float = 1000, attempts: int = 4, answer_seconds: float = 5) -> RateLimitedRetry:
    return RateLimitedRetry(per_second, attempts, first_seconds=0.01, answer_seconds=answer_seconds)


def live(name: str, web: WebServer) -> EngineBackend:
    return EngineBackend(ENGINES[name], KEY, quick(), url=web.url)


@pytest.mark.parametrize("name", ROWS)
def test_an_engine_is_asked_as_it_wants_and_its_results_are_read(name: str) -> None:
    with serve_pages(lambda _: make_json_response(ROWS[name])) as web:
        assert live(name, web).search("who & what") == (SearchResult("http://a", "A", "first"),)
        (asked,) = web.asked
    said = {**asked.query, **(asked.body or {})}
    assert "who & what" in (said.get("q"), said.get("query"))
    assert KEY in str((asked.headers, said))
    assert asked.method == ("POST" if name == "tavily" else "GET")


def test_an_instance_of_searxng_is_asked_for_json() -> None:
    rows = [{"url": f"http://a/{number}", "title": "", "content": None} for number in range(9)]
    with serve_pages(lambda _: make_json_response({"results": [*rows, {"no": "url"}, 7]})) as web:
        found = open_backend(f"searxng:{web.url}/", {}).search("orin")
        assert web.asked[0].query == {"q": "orin", "format": "json"}
        assert web.asked[0].path == "/search"
    assert found[0] == SearchResult("http://a/0", "http://a/0", "")
    assert len(found) == 5


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(status: int) -> None:
    number = count()
    with serve_pages(
        lambda _: (
            make_json_response({}, status, **{"Retry-After": "0"})
            if next(number) < 2
            else make_json_response(ROWS["brave"])
        )
    ) as web:
        assert live("brave", web).search("orin")
        assert len(web.asked) == 3


def test_an_engine_that_stays_down_is_given_up() -> None:
    with serve_pages(lambda _: make_json_response({}, 503)) as web:
        with pytest.raises(
            ExternalServiceError, match="tavily was asked 4 times without success: status 503"
        ):
            live("tavily", web).search("orin")
        assert len(web.asked) == 4
    with pytest.raises(ExternalServiceError, match="ConnectError"):
        live("tavily", web).search("orin")


def test_silence_has_an_end() -> None:
    wait = threading.Event()

    def silent(_: PageRequest) -> PageResponse:
        wait.wait(5)
        return make_json_response({})

    with serve_pages(silent) as web:
        slow = EngineBackend(ENGINES["brave"], KEY, quick(attempts=2, answer_seconds=0.1), url=web.url)
        with pytest.raises(ExternalServiceError, match="ReadTimeout"):
            slow.search("orin")
        wait.set()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (make_json_response({}, 401), "refuses the key in SERPAPI_API_KEY"),
        (make_json_response({"error": KEY}, 400), "does not take this query"),
        (make_json_response({"error": KEY}, 402), "answered with status 402"),
        (PageResponse(KEY), "did not answer with JSON"),
        (make_json_response([1]), "something else than results"),
        (PageResponse("[" * 100_000), "did not answer with JSON"),
        (PageResponse(b" " * (5 << 20)), "more than 4 MB"),
    ],
)
def test_what_goes_wrong_is_told_without_the_key(page: PageResponse, said: str) -> None:
    with serve_pages(lambda _: page) as web:
        backend = live("serpapi", web)
        with pytest.raises(ExternalServiceError, match=said) as failed:
            backend.search("orin")
        assert len(web.asked) == 1
    assert KEY not in str(failed.value)
    assert KEY not in repr(backend)


def test_engines_behind_an_instance_that_do_not_answer_are_a_failure_and_not_an_empty_list() -> None:
    silent = {"results": [], "unresponsive_engines": [["google", "timeout"]]}
    answers = [silent, silent, {"results": [{"url": "http://a"}], "unresponsive_engines": [["bing", "?"]]}]
    with serve_pages(lambda _: make_json_response(answers.pop(0))) as web:
        assert EngineBackend(make_searxng_engine(web.url), patience=quick()).search("orin") == (
            SearchResult("http://a", "http://a", ""),
        )
    with (
        serve_pages(lambda _: make_json_response(silent)) as web,
        pytest.raises(ExternalServiceError, match="searxng was asked 4 times without success"),
    ):
        EngineBackend(make_searxng_engine(web.url), patience=quick()).search("orin")
    with serve_pages(lambda _: make_json_response({"results": [], "unresponsive_engines": []})) as web:
        assert EngineBackend(make_searxng_engine(web.url), patience=quick()).search("orin") == ()


def test_ddgs_that_finds_nothing_is_tried_again_and_then_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds nothing, too, where every page that it asks refuses to answer, as this one does."""
    pages = pytest.importorskip("ddgs.engines").ENGINES["text"]
    with serve_pages(lambda _: PageResponse(status=429)) as web:
        monkeypatch.setattr(pages["mojeek"], "search_url", web.url)
        for name in set(pages) - {"mojeek"}:
            monkeypatch.delitem(pages, name)
        with pytest.raises(
            ExternalServiceError, match=r"ddgs was asked 2 times without success.*No results found"
        ):
            DdgsBackend(quick(attempts=2)).search("orin")
        assert len(web.asked) == 2


@pytest.mark.parametrize("answer", [{}, {"web": None}, {"web": {"results": {}}}, {"web": []}])
def test_an_answer_without_results_finds_nothing(answer: object) -> None:
    with serve_pages(lambda _: make_json_response(answer)) as web:
        assert live("brave", web).search("orin") == ()


def test_no_engine_is_asked_faster_than_it_likes() -> None:
    with serve_pages(lambda _: make_json_response(ROWS["brave"])) as web:
        backend = EngineBackend(ENGINES["brave"], KEY, quick(per_second=20), url=web.url)
        begun = time.monotonic()
        threads = [threading.Thread(target=backend.search, args=(str(number),)) for number in range(7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begun >= 6 / 20
        assert len(web.asked) == 7


PAGE = """<html><head><title>Orin</title><style>p {}</style></head><body><nav>Menu</nav>
<h1>Orin&nbsp;Foods</h1><script>alert("<p>no</p>")</script><p>Founded by <b>Ada</b> &amp; Bo.<p>In
1920.</p><table><tr><td>a<td>b</tr></table></body></html>"""


def test_a_page_is_read_as_its_words() -> None:
    assert extract_text(PAGE) == "Orin Foods\nFounded by Ada & Bo.\nIn 1920.\na b"


@given(st.text(alphabet="<>/ abp\"'=&;!-scriptdvhead", max_size=200))
def test_any_text_can_be_read_as_a_page(text: str) -> None:
    assert "\0" not in extract_text(text)


@pytest.mark.parametrize(
    "made", ["<!--", "<a ", "</", "<![cdata[", "<?", "&", "<svg>", "<b a='", "<svg></nav>"]
)
def test_a_page_that_is_made_to_be_slow_is_read_in_no_time(made: str) -> None:
    began = time.process_time()
    page = "<p>Orin</p><nav>" + made * (500_000 // len(made)) + "</nav>" * 20_000
    assert extract_text(page).startswith("Orin")
    assert time.process_time() - began < 10


def test_a_page_is_read_only_as_far_as_it_is_wanted() -> None:
    parts = iter(range(1000))
    assert len(extract_text("<p>Orin</p> \n" * 100_000, 10_000, lambda: next(parts))) >= 10_000
    assert next(parts) < 10
    with serve_pages(lambda _: PageResponse("<p>Orin</p>" * 100_000)) as web:
        assert len(own(web, most_bytes=2 << 20).read(web.url)) == PAGE_CHARACTERS


def own(web: WebServer, most_bytes: int = 1 << 20, seconds: float = 5) -> PageReader:
    return PageReader(ServerAddress.from_url(web.url), most_bytes, seconds)


def test_a_found_page_is_opened_on_the_server_that_the_user_named() -> None:
    def answer(asked: PageRequest) -> PageResponse:
        if asked.path == "/search":
            return make_json_response(
                {"results": [{"url": f"{web.url}/moved", "title": "Orin", "content": ""}]}
            )
        return (
            PageResponse(PAGE)
            if asked.path == "/page"
            else PageResponse(status=302, headers={"Location": "/page"})
        )

    with serve_pages(answer) as web:
        backend = EngineBackend(make_searxng_engine(web.url), patience=quick())
        (found,) = backend.search("orin")
        assert backend.open(found.id).startswith("Orin Foods\nFounded by Ada")


def test_no_page_leads_into_a_private_network() -> None:
    with serve_pages(lambda _: PageResponse("secret")) as inner:
        name = inner.url.replace("127.0.0.1", "localhost")
        for url in (inner.url, name, inner.url.replace("127.0.0.1", "[::ffff:127.0.0.1]")):
            with pytest.raises(ExternalServiceError, match=r"private network|cannot be read"):
                PageReader().read(url)
        with (
            serve_pages(lambda _: PageResponse(status=302, headers={"Location": inner.url})) as outer,
            pytest.raises(ExternalServiceError, match="private network"),
        ):
            own(outer).read(outer.url)
        assert inner.asked == []


def test_no_page_leads_to_the_benchmark_itself() -> None:
    with (
        serve_pages(
            lambda _: PageResponse(status=302, headers={"Location": "/datasets/google/DeepSearchQA"})
        ) as web,
        pytest.raises(ExternalServiceError, match="withheld"),
    ):
        own(web).read(web.url)
    assert [asked.path for asked in web.asked] == ["/"]


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "::1", "::", "fe80::1%eth0", "fc00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"),
        *("2002:a00:1::", "2001:0:a00:1::", "ff02::1", "255.255.255.255", "192.0.0.192", "168.63.129.16"),
        *("::127.0.0.1", "fec0::1", "64:ff9b:1::a00:1", "::ffff:168.63.129.16"),
    ],
)
def test_an_address_inside_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_an_address_outside_is_public() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://a/b", "http://", "http://u:p@a/", "gopher://a", "http://a:99999/", "x"],
)
def test_only_web_pages_are_opened(url: str) -> None:
    with pytest.raises(ExternalServiceError, match="cannot be opened"):
        PageReader().read(url)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (PageResponse(status=404), "status 404"),
        (PageResponse(b"%PDF", headers={"Content-Type": "application/pdf"}), "no text but application/pdf"),
        (PageResponse(status=301, headers={"Location": "/"}), "without end"),
        (PageResponse(b"x", headers={"Content-Encoding": "br"}), "unknown way"),
        (PageResponse(b"no gzip", headers={"Content-Encoding": "gzip"}), "damaged"),
    ],
)
def test_a_page_that_cannot_be_read_says_why(page: PageResponse, said: str) -> None:
    with serve_pages(lambda _: page) as web, pytest.raises(ExternalServiceError, match=said):
        own(web).read(web.url)


def test_a_page_is_read_up_to_its_limit_however_it_is_packed() -> None:
    headers = {"Content-Type": "text/plain; charset=latin-1", "Content-Encoding": "gzip"}
    with serve_pages(
        lambda _: PageResponse(gzip.compress("é".encode("latin-1") * 100_000), headers=headers)
    ) as web:
        assert own(web, most_bytes=1000).read(web.url) == "é" * 1000
    with serve_pages(lambda _: PageResponse(b"a" * 10_000, headers={"Content-Type": "text/plain"})) as web:
        assert own(web, most_bytes=1000).read(web.url) == "a" * 1000


def test_a_page_that_trickles_has_an_end() -> None:
    wait = threading.Event()

    def slow(_: PageRequest) -> PageResponse:
        wait.wait(5)
        return PageResponse()

    with serve_pages(slow) as web:
        with pytest.raises(ExternalServiceError):
            own(web, seconds=0.1).read(web.url)
        wait.set()


@pytest.mark.parametrize("said", [b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n", b"\x16\x03"])
def test_a_page_that_drips_has_an_end(said: bytes) -> None:
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        line, _ = server.accept()
        with line, suppress(OSError):
            line.recv(4096)
            line.sendall(said)
            while not over.wait(0.05):
                line.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        scheme = "http" if said.startswith(b"HTTP") else "https"
        url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/"
        try:
            with pytest.raises(ExternalServiceError, match=r"within 0\.5 s|cannot be read"):
                PageReader(ServerAddress.from_url(url), seconds=0.5).read(url)
        finally:
            over.set()
            thread.join()


def test_backends_are_chosen_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("orin")
    record = tmp_path / "record.jsonl"
    record.write_text("")
    assert isinstance(open_backend(f"local:{tmp_path}", {}), LocalCorpus)
    assert isinstance(open_backend(f"replay:{record}", {}), ReplayBackend)
    assert isinstance(open_backend("brave", {"BRAVE_API_KEY": KEY}), EngineBackend)
    if importlib.util.find_spec("ddgs"):
        open_backend("ddgs", {})
    for name, said in (
        ("brave", "Set BRAVE_API_KEY"),
        ("bing", "Backends: ddgs, tavily, brave"),
        ("searxng", "searxng:URL"),
        ("searxng:nonsense", "Invalid SearXNG URL"),
        ("ddgs:x", "no search backend"),
        (f"local:{tmp_path / 'none'}", "nothing to search"),
        (f"replay:{tmp_path / 'none'}", "not a search recording"),
    ):
        with pytest.raises(UserError, match=said):
            open_backend(name, {})
    assert len(NAMES) == 7
    assert resolve_name("replay:x.jsonl") == f"replay:{Path('x.jsonl').resolve()}"
    assert resolve_name("brave") == "brave"
