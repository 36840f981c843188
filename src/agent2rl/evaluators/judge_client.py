"""Asks the run's judge, many questions at once, and reads what it says.

What the judge does not say in the form that was asked for is asked again; in the end the answer is missing,
which is neither right nor wrong. Where more than a few are, there is no score at all. Not covered: what is
asked, and the judge itself, which the harness asks (`core.desk`).
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from agent2rl.core.errors import GradingError
from agent2rl.net.grading_proxy_client import GradingProxyClient, JudgeQuestion, JudgeReply, ProxyError

T = TypeVar("T")

THREADS = 32
ATTEMPTS = 3
MOST_MISSING = 0.02
"""The share of examples that may be missing."""

Messages = tuple[tuple[Literal["system", "user", "assistant"], str], ...]


@dataclass(frozen=True)
class MissingReply:
    why: str


def ask_judge(
    desk: GradingProxyClient, examples: int, questions: Sequence[Messages], read: Sequence[Callable[[str], T]]
) -> list[T | MissingReply]:
    """What the judge says to each, as its own function reads it; that raises ValueError where it cannot.

    Of all examples a few may be missing, those included that nobody need be asked about.
    """
    asked = [JudgeQuestion(messages=question) for question in questions]
    return list(collect_replies(desk, examples, asked, [_parse_text_only(one) for one in read]))


def collect_replies(
    desk: GradingProxyClient,
    examples: int,
    asked: Sequence[JudgeQuestion],
    read: Sequence[Callable[[JudgeReply], T]],
    most: float = MOST_MISSING,
) -> list[T | MissingReply]:
    """The same, of all that the judge gives. More than the share `most` missing is an error."""
    found: list[T | MissingReply] = [MissingReply("it was not asked")] * len(asked)
    lost = 0
    with ThreadPoolExecutor(THREADS) as pool:
        begun = {
            pool.submit(_ask_with_retries, desk, question, reading): place
            for place, (question, reading) in enumerate(zip(asked, read, strict=True))
        }
        for done in as_completed(begun):
            found[begun[done]] = answer = done.result()
            lost += isinstance(answer, MissingReply)
            if isinstance(answer, MissingReply) and too_many_missing(lost, examples, most):
                pool.shutdown(cancel_futures=True)
                raise make_missing_error(lost, examples, answer.why)
    return found


def _parse_text_only(read: Callable[[str], T]) -> Callable[[JudgeReply], T]:
    return lambda said: read(said.text)


def _ask_with_retries(
    desk: GradingProxyClient, asked: JudgeQuestion, read: Callable[[JudgeReply], T]
) -> T | MissingReply:
    why = ""
    for attempt in range(ATTEMPTS):
        try:
            put = asked.model_copy(update={"attempt": attempt})
            found = read(desk.ask_judge(put))
        except ProxyError as error:  # the harness has tried again itself
            return MissingReply(error.message)
        except ValueError as error:
            why = f"the judge's answer cannot be read: {error}"
        else:
            with suppress(ProxyError):  # then it is asked again another time
                desk.keep_reply(put)
            return found
    return MissingReply(why)


def too_many_missing(missing: int, examples: int, most: float = MOST_MISSING) -> bool:
    return missing > most * examples


def make_missing_error(missing: int, examples: int, why: str) -> GradingError:
    return GradingError(
        f"Of {examples} examples at least {missing} could not be judged, for instance because {why[:300]}.",
        "A score would leave them out; grade again when the judge answers.",
    )


def parse_json_object(text: str, *keys: str) -> dict[str, Any]:
    """The one JSON object that a reply is, with or without a fence around it, and with these keys alone."""
    bare = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        found = json.loads(bare)
    except RecursionError:
        raise ValueError("it is nested without end") from None
    if not isinstance(found, dict) or set(found) != set(keys):
        raise ValueError(f"it is no object with {', '.join(keys)} alone")
    return found
