"""What the endpoint's answers say. One that does not say it is an error of the world, never an empty reply.

A reply without any text is one where the server says that it was cut off by its length: the model spent its
tokens on thoughts that are not shown. With any other reason, or none, it is an error.

A server that does not count its tokens has them counted as runs of characters without white space.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agent2rl.core.engine import Completion, ReplyLogprobs
from agent2rl.core.errors import WorldError

AnswerT = TypeVar("AnswerT", bound=BaseModel)
Stops = tuple[str, ...]


class EndpointMessage(BaseModel):
    content: Any = None
    refusal: Any = None


class TokenCandidate(BaseModel):
    token: str
    logprob: float = Field(le=1e-3)
    """Rounded, a certain one may come out a little above 0."""


class TokenPosition(BaseModel):
    """One place of a reply, and which tokens might have stood there."""

    top_logprobs: list[TokenCandidate] = []


class EndpointLogprobs(BaseModel):
    content: list[TokenPosition] | None = None


class EndpointChoice(BaseModel):
    message: EndpointMessage
    finish_reason: str | None = None
    logprobs: Any = None


class EndpointUsage(BaseModel):
    completion_tokens: int | None = Field(default=None, ge=0)


class EndpointReply(BaseModel):
    choices: list[EndpointChoice] = Field(min_length=1)
    usage: EndpointUsage | None = None


class EndpointModelEntry(BaseModel):
    id: str


class EndpointModelList(BaseModel):
    data: list[EndpointModelEntry]


def parse_completion(answer: object, stops: Stops) -> Completion:
    reply = _validate_answer(EndpointReply, answer)
    text = _extract_text(reply.choices[0])
    # A lone surrogate cannot be written down as UTF-8.
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    for stop in filter(None, stops):  # some servers leave it in
        text = text.partition(stop)[0]
    counted = reply.usage.completion_tokens if reply.usage else None
    return Completion(text, tokens=len(text.split()) if counted is None else counted)


def parse_weighed_reply(answer: object, stops: Stops) -> ReplyLogprobs:
    """A server that does not tell first tokens leaves them out, or says something else in their place."""
    try:
        told = EndpointLogprobs.model_validate(_validate_answer(EndpointReply, answer).choices[0].logprobs)
    except ValidationError:
        told = EndpointLogprobs()
    candidates = told.content[0].top_logprobs if told.content else []
    first = {one.token: one.logprob for one in candidates}
    return ReplyLogprobs(parse_completion(answer, stops).text, first or None)


def parse_model_names(answer: object) -> list[str]:
    return [model.id for model in _validate_answer(EndpointModelList, answer).data]


def _extract_text(choice: EndpointChoice) -> str:
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


def _validate_answer(kind: type[AnswerT], answer: object) -> AnswerT:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise WorldError(f"The endpoint's answer is malformed: {where}: {first['msg']}.") from None
