"""Token prices, from a dated table that ships with the package; a file of the user takes precedence.

    ["claude-opus-4-6"]
    input = 5.0           # US dollars for a million tokens
    cached = 0.5          # for tokens read from the cache; default: `input`
    written = 6.25        # for tokens written to the cache; default: `input`
    written_hour = 10.0   # for tokens cached for an hour; default: `written`
    output = 25.0         # including reasoning
    above = {tokens = 200_000, input = …, output = …}    # if a longer input makes all tokens more expensive

A model with a date at the end of its name (-20250929, -2025-08-07) has the price of the name without it,
unless it has a table of its own. Prices are for text at the standard service tier; they do not include the
provider's own tools.
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
    """US dollars per million tokens."""

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
    """If the input is longer than this, these rates apply to the whole request and its answer."""


class Price(Rates):
    above: LongInputRates | None = None

    def compute_tiered_usd(self, tokens: TokenCounts) -> float:
        is_long = self.above is not None and tokens.input > self.above.tokens
        return self.above.usd(tokens) if is_long and self.above else self.usd(tokens)


class Prices(Record):
    as_of: date
    source: dict[str, str]
    """Provider → URL of its published prices."""
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
    """Return the shipped prices, overridden by those of a file with one table per model as above."""
    if path is None:
        return load_shipped_prices()
    try:
        tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        own = {name: Price.model_validate(table) for name, table in tables.items()}
    except (OSError, ValueError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UserError(
            f"{path} is not a valid price table: {why}.",
            'Write for each model: ["NAME"], input = …, output = … (US dollars per million tokens).',
        ) from None
    return load_shipped_prices().model_copy(update={"models": {**load_shipped_prices().models, **own}})
