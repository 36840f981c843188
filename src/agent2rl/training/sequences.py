"""What was said after a prompt: the model's words and the world's in one row of tokens, and whose each is.

An answer to a question is the case where the model said all of it. An episode is one row, and all its turns
are learnt in one pass, where the model always read exactly what had been said so far. Not covered: how likely
a model is to say it, which is `policy`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

TokenIds = Sequence[int]


@dataclass(frozen=True)
class TrainingSequence:
    prompt: TokenIds
    tokens: TokenIds
    """After the prompt: what the model said, ends of turns included, and what it was told in between."""
    said: Sequence[bool]
    """Which of them the model said."""

    @classmethod
    def from_answer(cls, prompt: TokenIds, tokens: TokenIds) -> Self:
        return cls(prompt, tokens, [True] * len(tokens))

    @property
    def count(self) -> int:
        """Tokens that the model said."""
        return sum(self.said)


def build_sequences(turns: Iterable[tuple[TokenIds, TokenIds]]) -> tuple[TrainingSequence, ...]:
    """A conversation whose turns are all that the model had read by then, and what it said to that.

    A new row begins where a turn does not go on from the tokens of the last one: where a stop string cut a
    reply, a template rewrote it, its text came back divided into other tokens, or there is no template and
    messages are set apart by blank lines. So every word is learnt after the tokens that it was said after.
    """
    found: list[tuple[TokenIds, list[int], list[bool]]] = []
    whole: list[int] = []
    for read, reply in turns:
        if found and list(read[: len(whole)]) == whole:
            _, tokens, said = found[-1]
            told = list(read[len(whole) :])
        else:
            tokens, said, told = [], [], []
            found.append((list(read), tokens, said))
        tokens += [*told, *reply]
        said += [False] * len(told) + [True] * len(reply)
        whole = [*read, *reply]
    return tuple(TrainingSequence(*row) for row in found)
