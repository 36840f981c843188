"""What tokens cost, by a table that is shipped and has a date; a file of the user's goes first.

    ["claude-opus-4-6"]
    input = 5.0           # US dollars for a million tokens
    cached = 0.5          # of those read from the cache; left out: as `input`
    written = 6.25        # of those written to it; left out: as `input`
    written_hour = 10.0   # of those written for an hour; left out: as `written`
    output = 25.0         # thoughts included
    above = {tokens = 200_000, input = …, output = …}    # where a longer input makes all of it dearer

A model with a date at the end of its name (-20250929, -2025-08-07) costs what it costs without, unless it has
a table of its own. These are prices of text at the ordinary service tier; what the provider's own tools cost
is not in them.
"""

import re
import tomllib
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.llm import TokenCounts
from agent2rl.core.records import Record

DATED = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$")
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Rates(Record):
    """US dollars for a million tokens."""

    input: Usd
    cached: Usd | None = None
    written: Usd | None = None
    written_hour: Usd | None = None
    output: Usd

    def usd(self, tokens: TokenCounts) -> float:
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.written is None else self.written
        hour = written if self.written_hour is None else self.written_hour
        millionths = (
            (tokens.input - tokens.cached - tokens.written) * self.input
            + tokens.cached * cached
            + (tokens.written - tokens.written_hour) * written
            + tokens.written_hour * hour
            + tokens.output * self.output
        )
        return millionths / 1e6


class LongInputRates(Rates):
    tokens: Annotated[int, Field(gt=0)]
    """An input of more than these costs so, all of it and its answer."""


class Price(Rates):
    above: LongInputRates | None = None

    def compute_tiered_usd(self, tokens: TokenCounts) -> float:
        dear = self.above is not None and tokens.input > self.above.tokens
        return self.above.usd(tokens) if dear and self.above else self.usd(tokens)


class Prices(Record):
    as_of: date
    source: dict[str, str]
    """Where they are published."""
    models: dict[str, Price]

    def find_price(self, model: str) -> Price | None:
        return self.models.get(model) or self.models.get(DATED.sub("", model))

    def usd(self, model: str, tokens: TokenCounts) -> float | None:
        price = self.find_price(model)
        return price.compute_tiered_usd(tokens) if price else None


@cache
def load_shipped_prices() -> Prices:
    text = resources.files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
    return Prices.model_validate(tomllib.loads(text))


def load_prices(path: Path | None = None) -> Prices:
    """The shipped prices, and over them those of a file, which is a table for each model as above."""
    if path is None:
        return load_shipped_prices()
    try:
        given: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        own = {name: Price.model_validate(table) for name, table in given.items()}
    except (OSError, ValueError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UserError(
            f"{path} is no table of prices: {why}.",
            'Write for each model: ["NAME"], input = …, output = … (US dollars for a million tokens).',
        ) from None
    return load_shipped_prices().model_copy(update={"models": {**load_shipped_prices().models, **own}})
