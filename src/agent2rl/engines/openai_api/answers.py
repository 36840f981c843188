"""What the endpoint's answers say. One that does not say it is an error of the world, never an empty reply.

A reply without any text is one where the server says that it was cut off by its length: the model spent its
tokens on thoughts that are not shown. With any other reason, or none, it is an error.

A server that does not count its tokens has them counted as runs of characters without white space.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agent2rl.core.engine import Completion, Weighed
from agent2rl.core.errors import WorldError

T = TypeVar("T", bound=BaseModel)
Stops = tuple[str, ...]


class Said(BaseModel):
    content: Any = None
    refusal: Any = None


class Candidate(BaseModel):
    token: str
    logprob: float = Field(le=1e-3)
    """Rounded, a certain one may come out a little above 0."""


class Place(BaseModel):
    """One place of a reply, and which tokens might have stood there."""

    top_logprobs: list[Candidate] = []


class Logprobs(BaseModel):
    content: list[Place] | None = None


class Choice(BaseModel):
    message: Said
    finish_reason: str | None = None
    logprobs: Any = None


class Usage(BaseModel):
    completion_tokens: int | None = Field(default=None, ge=0)


class Reply(BaseModel):
    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None


class Named(BaseModel):
    id: str


class Models(BaseModel):
    data: list[Named]


def completion(answer: object, stops: Stops) -> Completion:
    reply = _read(Reply, answer)
    text = _text(reply.choices[0])
    # A lone surrogate cannot be written down as UTF-8.
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    for stop in filter(None, stops):  # some servers leave it in
        text = text.partition(stop)[0]
    counted = reply.usage.completion_tokens if reply.usage else None
    return Completion(text, tokens=len(text.split()) if counted is None else counted)


def weighed(answer: object, stops: Stops) -> Weighed:
    """A server that does not tell first tokens leaves them out, or says something else in their place."""
    try:
        told = Logprobs.model_validate(_read(Reply, answer).choices[0].logprobs)
    except ValidationError:
        told = Logprobs()
    candidates = told.content[0].top_logprobs if told.content else []
    first = {one.token: one.logprob for one in candidates}
    return Weighed(completion(answer, stops).text, first or None)


def model_names(answer: object) -> list[str]:
    return [model.id for model in _read(Models, answer).data]


def _text(choice: Choice) -> str:
    for said in (choice.message.content, choice.message.refusal):
        if isinstance(said, str):
            return said
    if choice.message.content is not None:
        raise WorldError(f"The endpoint's reply is a {type(choice.message.content).__name__}, not text.")
    if choice.finish_reason == "length":
        return ""
    raise WorldError(
        f"The endpoint's reply has no text; it ended with {choice.finish_reason!r}.",
        "A reply that was filtered or is a tool call cannot be used.",
    )


def _read(kind: type[T], answer: object) -> T:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise WorldError(f"The endpoint's answer is malformed: {where}: {first['msg']}.") from None
