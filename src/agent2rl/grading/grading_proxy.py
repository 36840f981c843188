"""The grading proxy: the harness searches and asks judges for grading children, which have no network or
keys.

    GET  /about     the search backend and the judge
    POST /search    {"query": …}                     POST /open    {"id": …} of a search result
    POST /chat      a question to the judge            POST /keep    the same, if its reply could be parsed

A judge's replies that could be parsed are cached, so that the same question is not asked again. The reason
for a missing reply is only in the harness's log, because the agent may read the child's messages and a
server's error may reveal too much.

A failure has status 502 and a reason. Only grading children see the socket's directory, which also holds the
key that every connection needs (`net.socket_keys`).
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import Field, ValidationError

from agent2rl.core.engine import ChatMessage, Engine, LogprobsEngine, Sampling, ScoringEngine
from agent2rl.core.errors import Agent2RLError, ExternalServiceError, RetriesExhausted
from agent2rl.core.llm import LlmUsage
from agent2rl.core.records import Record
from agent2rl.environments.search.backends import (
    NOT_RECORDED,
    PAGE_CHARACTERS,
    REFUSED,
    Backend,
    NotRecorded,
    QueryRefused,
)
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.grading_proxy_client import JudgeQuestion, JudgeReply, PageReply, ProxyInfo, SearchReply
from agent2rl.record.files import canonical_json, sha256_file, sha256_text, write_record

JUDGE_SILENT = "the judge did not answer"
logger = logging.getLogger(__name__)
ATTEMPTS = 3
"""Attempts if the judge's server gives no valid answer."""
CONNECTIONS = 256
"""Connections of gradings and of the world that is served to the agent."""


class SearchQuery(Record):
    query: str = Field(max_length=2000)


class PageRequest(Record):
    id: str = Field(max_length=4000)


@dataclass
class SearchProxy:
    """Searches with a backend. Only pages that a search has found can be opened."""

    name: str
    backend: Backend
    record: Path | None = None
    """The file that its answers are recorded in or replayed from."""
    corpus_sha256: str | None = None
    _found: set[str] = field(default_factory=set)
    _searched: dict[str, SearchReply] = field(default_factory=dict)
    _opened: dict[str, PageReply] = field(default_factory=dict)
    """Cache of the run: successive gradings ask much the same."""

    def search(self, query: str) -> SearchReply:
        if query not in self._searched:
            pages = self.backend.search(query)
            self._found.update(one.id for one in pages)
            self._searched[query] = SearchReply(
                results=tuple((one.id, one.title, one.snippet) for one in pages)
            )
        return self._searched[query]

    def open(self, id: str) -> PageReply:  # noqa: A002
        if id not in self._found:
            raise ExternalServiceError("No search has found this page.")
        if id not in self._opened:
            self._opened[id] = PageReply(page=self.backend.open(id)[:PAGE_CHARACTERS])
        return self._opened[id]


@dataclass
class JudgeProxy:
    """Asks a judge model greedily, and caches replies that could be parsed."""

    name: str
    engine: Engine
    kept: Path
    """Directory of cached replies, each named by the hash of its question."""
    usage: Callable[[], LlmUsage] | None = None
    """Returns the usage so far, if it is metered."""
    one_by_one: bool = False
    """Whether the engine answers one question at a time, as a local one does."""
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _said: dict[Path, JudgeReply] = field(default_factory=dict)
    """What nobody has read yet."""

    def ask_judge(self, question: JudgeQuestion) -> JudgeReply:
        path = self._reply_path(question)
        try:
            return JudgeReply.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):  # not there, or not whole: ask anew
            pass
        try:
            said = self._ask_with_retries(question)
        except Exception as error:
            logger.warning("The judge did not answer: %s", error)
            raise ExternalServiceError(JUDGE_SILENT) from None
        with self._lock:
            self._said[path] = said
        return said

    def _ask_with_retries(self, question: JudgeQuestion) -> JudgeReply:
        """Nonsense is asked for again; where a server is silent, the engine has been patient already."""
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                with self._turn if self.one_by_one else nullcontext():
                    return ask_engine(self.engine, question)
            except ExternalServiceError as error:
                if isinstance(error, RetriesExhausted) or not attempts_left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def keep_reply(self, question: JudgeQuestion) -> JudgeReply:
        path = self._reply_path(question)
        with self._lock:
            said = self._said.pop(path, None)
            if said:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_record(path, said)
        return said or JudgeReply(text="")

    def _reply_path(self, question: JudgeQuestion) -> Path:
        key = sha256_text(canonical_json({"judge": self.name, **question.model_dump(mode="json")}))
        return self.kept / key[:2] / f"{key}.json"


def ask_engine(engine: Engine, question: JudgeQuestion) -> JudgeReply:
    """Return an engine's reply; for a choice also the probability of each option, if the engine supports
    it."""
    chat = tuple(ChatMessage(role, text) for role, text in question.messages)
    # Another seed for another attempt, so that a reply that could not be parsed is not given again.
    sampling = Sampling(max_tokens=question.max_tokens, seed=question.attempt)
    if question.choices and isinstance(engine, ScoringEngine):
        logs = engine.logprobs([chat] * len(question.choices), question.choices)
        likely = _normalize_choices(dict(zip(question.choices, logs, strict=True)))
        return JudgeReply(text=max(likely, key=lambda choice: likely[choice]), likely=likely)
    if question.choices and isinstance(engine, LogprobsEngine):
        weighed = engine.generate_with_logprobs([chat], sampling)[0]
        return JudgeReply(text=weighed.text, likely=_sum_choice_tokens(weighed.first, question.choices))
    return JudgeReply(text=engine.generate([chat], sampling)[0].text)


def _normalize_choices(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the probability of each choice, given that one of them is made."""
    # Subtracted before exp, which would round the probability of every long choice to zero.
    highest = max(logs.values())
    shares = {choice: math.exp(log - highest) for choice, log in logs.items()}
    whole = math.fsum(shares.values())
    return {choice: share / whole for choice, share in shares.items()}


def _sum_choice_tokens(first: Mapping[str, float] | None, choices: Sequence[str]) -> dict[str, float] | None:
    """Sum the probabilities of first tokens that are a choice, with or without surrounding spaces."""
    if first is None:
        return None
    sums: dict[str, float] = {}
    for token, log in first.items():
        if token.strip() in choices:
            sums[token.strip()] = sums.get(token.strip(), 0.0) + math.exp(log)
    return sums


@dataclass(frozen=True)
class ProxyServices:
    """The services of a run's grading proxy."""

    searching: SearchProxy | None = None
    judging: JudgeProxy | None = None

    def describe_services(self) -> ProxyInfo:
        record = self.searching.record if self.searching else None
        return ProxyInfo(
            search=self.searching.name if self.searching else None,
            record_sha256=sha256_file(record) if record and record.exists() else None,
            corpus_sha256=self.searching.corpus_sha256 if self.searching else None,
            judge=self.judging.name if self.judging else None,
        )

    def __bool__(self) -> bool:
        return bool(self.searching or self.judging)


def create_proxy_app(offer: ProxyServices) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.get("/about")
    def about() -> JSONResponse:
        return _respond_with(offer.describe_services)

    if searching := offer.searching:

        @app.post("/search")
        def search(request: SearchQuery) -> JSONResponse:
            return _respond_with(lambda: searching.search(request.query))

        @app.post("/open")
        def opened(request: PageRequest) -> JSONResponse:
            return _respond_with(lambda: searching.open(request.id))

    if judging := offer.judging:

        @app.post("/chat")
        def chat(request: JudgeQuestion) -> JSONResponse:
            return _respond_with(lambda: judging.ask_judge(request))

        @app.post("/keep")
        def keep(request: JudgeQuestion) -> JSONResponse:
            return _respond_with(lambda: judging.keep_reply(request))

    return app


def _respond_with(answer: Callable[[], Record]) -> JSONResponse:
    try:
        return JSONResponse(answer().model_dump(mode="json"))
    except NotRecorded as error:
        return JSONResponse({"error": error.message, "kind": NOT_RECORDED}, status_code=502)
    except QueryRefused as error:
        return JSONResponse({"error": error.message, "kind": REFUSED}, status_code=502)
    except Agent2RLError as error:
        return JSONResponse({"error": error.message}, status_code=502)
    except Exception as error:  # a backend library's message might contain a key
        return JSONResponse({"error": f"internal error ({type(error).__name__})"}, status_code=502)


@contextmanager
def serve_grading_proxy(offer: ProxyServices) -> Iterator[Path | None]:
    """Serve the proxy and yield its socket, or None without any service."""
    if not offer:
        yield None
        return
    with serve_on_socket(create_proxy_app(offer), CONNECTIONS) as socket:
        yield socket
