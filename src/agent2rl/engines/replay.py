"""Replays recorded outputs in place of a model, to grade outputs without one.

`outputs.jsonl` in the model directory has one output per line, `{"id": …, "output": …}`; several with the
same id are several samples. They are returned as they are: no token limit or stop string cuts them.

It is not for runs, so it is in no listing; its name is `agent2rl.engines.replay:open_engine`.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Self

from agent2rl.core.engine import Chat, Completion, Sampling
from agent2rl.core.errors import GradingError

OUTPUTS = "outputs.jsonl"


class ReplayEngine:
    def __init__(self, outputs: Mapping[str, Sequence[str]]) -> None:
        self._outputs = outputs
        self._left = chain.from_iterable(outputs.values())

    def read_answers(self, name: str) -> Sequence[str]:
        return self._outputs.get(name, ())

    def generate(self, chats: Sequence[Chat], _: Sampling) -> list[Completion]:
        """Return outputs in the order of the file, for evaluators that do not look them up by id."""
        texts = list(islice(self._left, len(chats)))
        if len(texts) < len(chats):
            raise GradingError("There are fewer outputs than questions.")
        return [Completion(text, tokens=len(text.split())) for text in texts]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to release."""


def open_engine(model_dir: Path) -> ReplayEngine:
    outputs: dict[str, list[str]] = {}
    for line in (model_dir / OUTPUTS).read_bytes().splitlines():
        row = json.loads(line)
        outputs.setdefault(row["id"], []).append(row["output"])
    return ReplayEngine(outputs)
