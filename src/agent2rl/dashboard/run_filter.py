"""The filter, sort order and page of the run list, all kept in the URL so that it can be shared."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from agent2rl.dashboard.rendering import link
from agent2rl.dashboard.run_index import FILTER_COLUMNS, SORTABLE_COLUMNS, RunQuery

PAGE = 100
DAY = 86_400.0


@dataclass(frozen=True)
class RunFilter:
    filters: tuple[tuple[str, str], ...] = ()
    words: str = ""
    since: str = ""
    """First day, as YYYY-MM-DD."""
    until: str = ""
    sort: str = "started"
    descending: bool = True
    page: int = 1

    def build_query(self, limit: int | None = PAGE) -> RunQuery:
        return RunQuery(
            self.filters,
            self.words,
            _to_timestamp(_parse_day(self.since)),
            _to_timestamp(_parse_day(self.until), DAY),
            self.sort,
            self.descending,
            (self.page - 1) * PAGE,
            limit,
        )

    def get_values(self, column: str) -> list[str]:
        return [value for name, value in self.filters if name == column]

    @property
    def is_filtered(self) -> bool:
        return bool(self.filters or self.words or self.since or self.until)

    def to_url(self, path: str = "/") -> str:
        order = {} if self.sort == "started" and self.descending else {"sort": self.sort}
        direction = {} if self.descending else {"order": "up"}
        page = {"page": str(self.page)} if self.page > 1 else {}
        return link(
            path,
            **group_by_name(self.filters),
            q=self.words,
            since=self.since,
            until=self.until,
            **order,
            **direction,
            **page,
        )

    def sort_url(self, column: str) -> str:
        """Return the URL of the same runs sorted by this column, or reversed if they already are."""
        descending = (
            not self.descending if self.sort == column else column in ("started", "score", "gain", "seconds")
        )
        return replace(self, sort=column, descending=descending, page=1).to_url()

    def page_url(self, page: int) -> str:
        return replace(self, page=page).to_url()


def parse_filter(query: Iterable[tuple[str, str]]) -> RunFilter:
    """Parse the query of a URL; unknown parameters are ignored."""
    pairs = list(query)
    single = dict(pairs)
    sort = single.get("sort", "started")
    page = single.get("page", "1")
    return RunFilter(
        filters=tuple((name, value) for name, value in pairs if name in FILTER_COLUMNS and value),
        words=single.get("q", "")[:200],
        since=single.get("since", "") if _parse_day(single.get("since", "")) else "",
        until=single.get("until", "") if _parse_day(single.get("until", "")) else "",
        sort=sort if sort in SORTABLE_COLUMNS else "started",
        descending=single.get("order") != "up",
        page=max(1, int(page)) if page.isdigit() and len(page) < 8 else 1,
    )


def group_by_name(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group query parameters by name."""
    grouped: dict[str, list[str]] = {}
    for name, value in pairs:
        grouped.setdefault(name, []).append(value)
    return grouped


def _parse_day(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None


def _to_timestamp(day: datetime | None, later: float = 0.0) -> float | None:
    return day.timestamp() + later if day else None
