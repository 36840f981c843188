"""Which runs are asked for, in which order, as the index understands it."""

import json
from dataclasses import asdict, dataclass

FILTER_COLUMNS = ("task", "level", "agent", "driver", "model", "mode", "protocol", "state", "ending")
"""What can be filtered by."""
SORTABLE_COLUMNS = (
    "started",
    "task",
    "agent",
    "driver",
    "model",
    "mode",
    "state",
    "score",
    "gain",
    "seconds",
    "submissions",
)
NUMERIC_COLUMNS = {"started", "score", "gain", "seconds", "submissions", "level"}


@dataclass(frozen=True)
class RunQuery:
    """Which runs, in which order."""

    filters: tuple[tuple[str, str], ...] = ()
    """Column and value; several values of one column are alternatives."""
    words: str = ""
    since: float | None = None
    until: float | None = None
    sort: str = "started"
    descending: bool = True
    offset: int = 0
    limit: int | None = 100

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunQuery":
        found = json.loads(text)
        return cls(**{**found, "filters": tuple(map(tuple, found["filters"]))})

    def build_where_clause(self) -> tuple[str, list[str | float]]:
        """As a condition of SQL and its values."""
        parts: list[str] = []
        values: list[str | float] = []
        by_column: dict[str, list[str]] = {}
        for column, value in self.filters:
            if column in FILTER_COLUMNS:
                by_column.setdefault(column, []).append(value)
        for column, wanted in by_column.items():
            parts.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            values += wanted
        for word in self.words.split():
            parts.append(
                "(run_id || ' ' || task || ' ' || agent || ' ' || driver || ' ' || model) LIKE ? ESCAPE '\\'"
            )
            values.append("%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%")
        for sign, bound in ((">=", self.since), ("<", self.until)):
            if bound is not None:
                parts.append(f"started {sign} ?")
                values.append(bound)
        return ("WHERE " + " AND ".join(parts) if parts else ""), values
