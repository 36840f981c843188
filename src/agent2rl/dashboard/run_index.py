"""An SQLite index of all runs of a directory: change stamps, queries, and digests.

The run directories are the source of truth; the index is an SQLite file in the cache, built from them. A
background thread reads runs again whose files have new time stamps, so pages never wait for it. Deleting the
file only costs the time to rebuild it.

One table holds the columns that every page searches, another the long texts of each run.
"""

import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.errors import UserError
from agent2rl.dashboard.run_status import RunRow, build_row_from_digest, build_row_from_view, find_run
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.record.run_lock import is_held
from agent2rl.report import digests

logger = logging.getLogger(__name__)

# Change stamps: the time stamps of the files that a row is built from.


@dataclass(frozen=True)
class ChangeStamp:
    text: str
    """Differs whenever the files change that the row is built from."""
    changed: float


def read_stamps(runs: Path) -> Iterator[tuple[str, ChangeStamp]]:
    """Yield name and stamp of every run; checks five files each."""
    with os.scandir(runs) as directory:
        entries = [(entry.name, entry.path) for entry in directory if not entry.name.startswith(".")]
    for name, path in entries:
        spec, head, result, digest, added = [_read_mtime(f"{path}/{name}") for name in _LOOKED_AT]
        if spec is None:
            continue
        # A crash changes no file; that its lock is free is all that shows it.
        going = "ended" if result else is_held(Path(f"{path}/{_LOCK}"))
        yield name, ChangeStamp(f"{spec} {head} {result} {digest} {added} {going}", spec / 1e9)


def _read_mtime(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - path objects of ten thousand runs take a second
    except OSError:
        return None


_RUN = RunPaths(Path("run"))
_FILES = (_RUN.spec, _RUN.ledger_head, _RUN.result, _RUN.digest, _RUN.additions_head)
_LOOKED_AT = tuple(map(_RUN.relative_name, _FILES))
_LOCK = _RUN.relative_name(_RUN.lock)


# Queries.

FILTER_COLUMNS = (
    "task",
    "level",
    "expert",
    "clock",
    "network",
    "agent",
    "driver",
    "model",
    "mode",
    "protocol",
    "state",
    "ending",
)
"""Columns that can be filtered by."""
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
        fields = json.loads(text)
        return cls(**{**fields, "filters": tuple(map(tuple, fields["filters"]))})

    def build_where_clause(self) -> tuple[str, list[str | float]]:
        """Return the query as an SQL condition and its values."""
        parts: list[str] = []
        values: list[str | float] = []
        by_column: dict[str, list[str]] = {}
        for column, value in self.filters:
            if column in FILTER_COLUMNS:
                by_column.setdefault(column, []).append(value)
        for column, alternatives in by_column.items():
            parts.append(f"{column} IN ({', '.join('?' * len(alternatives))})")
            values += alternatives
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


VERSION = 7
POLL_SECONDS = 0.5
SHARE = 0.1
"""Largest share of the time spent looking for changes."""
BATCH = 200
MOST_VALUES = 200
"""Largest number of filter values offered per column."""

MISSING_DATABASE_ERRORS = ("no such table", "unable to open")
"""What SQLite says if the file is gone."""

Level = Callable[[str], int | None]


def read_digests(path: Path, query: RunQuery) -> list[RunDigest]:
    """Return the digests of all matching runs except those still in progress."""
    where, values = query.build_where_clause()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as base:
        statement = f"SELECT digest FROM texts WHERE run_id IN (SELECT run_id FROM runs {where})"
        texts = [text for (text,) in base.execute(statement, values)]
    return [RunDigest.model_validate_json(text) for text in texts if text]


class RunIndex:
    def __init__(self, runs: Path, cache: Path, level: Level) -> None:
        self.runs, self._level = runs, level
        name = hashlib.sha256(str(runs).encode()).hexdigest()[:16]
        self.path = cache / "dashboard" / f"{name}-{VERSION}.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for old in self.path.parent.glob(f"{name}-*.sqlite*"):
            if not old.name.startswith(self.path.name):
                old.unlink(missing_ok=True)
        self.version = 0
        """Grows with every change."""
        self.unreadable: dict[str, str] = {}
        """Run directories that cannot be read, and why."""
        self.waiting = 0
        """Number of runs that are not in the index yet."""
        self.looked = False
        """Whether the directory has been read since the server started."""
        self.gone = ""
        """Why the directory cannot be read, or empty; the index then shows its last known state."""
        self._choices: tuple[int, dict[str, list[tuple[str, int]]]] = (-1, {})
        self._seen = 0
        """Hash of the table at the last check: other servers may write to it, too."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._refresh_forever, daemon=True)
        self._refused: dict[str, str] = {}
        """Stamps of unreadable runs, which are not retried until they change."""
        self._ensure_tables()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(5)

    # --- queries ---

    def select_rows(self, query: RunQuery) -> tuple[list[RunRow], int]:
        """Return the matching rows, and their number without the limit."""
        where, values = query.build_where_clause()
        order = query.sort if query.sort in SORTABLE_COLUMNS else "started"
        direction = "DESC" if query.descending else "ASC"
        # `IS NULL` first: runs without a value come last in both directions.
        text = f"SELECT run_id FROM runs {where} ORDER BY {order} IS NULL, {order} {direction}, run_id DESC"
        if query.limit is not None:
            text += f" LIMIT {int(query.limit)} OFFSET {int(query.offset)}"
        with closing(self._open_database()) as base:
            names = base.execute(text, values).fetchall()
            texts = [
                base.execute("SELECT row FROM texts WHERE run_id = ?", name).fetchone() for name in names
            ]
            (total,) = base.execute(f"SELECT COUNT(*) FROM runs {where}", values).fetchone()
        return [RunRow.model_validate_json(text) for (text,) in filter(None, texts)], total

    def compute_fingerprint(self, query: RunQuery, *options: str) -> str:
        """Return a hash that differs whenever a matching run has changed."""
        where, values = query.build_where_clause()
        digest = hashlib.sha256("\n".join(options).encode())
        with closing(self._open_database()) as base:
            text = f"SELECT run_id, stamp, analysed FROM runs {where} ORDER BY run_id"
            for row in base.execute(text, values):
                digest.update("\n".join(map(str, row)).encode())
        return digest.hexdigest()[:32]

    def list_filter_values(self) -> dict[str, list[tuple[str, int]]]:
        """Return the values of each filter column, and how many runs have them."""
        version, values = self._choices
        if version == self.version:
            return values
        version = self.version
        with closing(self._open_database()) as base:
            values = {
                name: [
                    (str(int(value)) if name == "level" else str(value), count)
                    for value, count in base.execute(
                        f"SELECT {name}, COUNT(*) FROM runs WHERE {name} IS NOT NULL AND {name} != '' "
                        f"GROUP BY {name} ORDER BY {name} LIMIT {MOST_VALUES}"
                    )
                ]
                for name in FILTER_COLUMNS
            }
        self._choices = version, values
        return values

    # --- digests ---

    def list_lacking_digests(self) -> list[tuple[str, str]]:
        """Return name and stamp of runs that are over and have no digest yet, the newest first."""
        with closing(self._open_database()) as base:
            text = "SELECT run_id, stamp FROM runs WHERE NOT analysed AND state != 'running' "
            return list(base.execute(text + "ORDER BY started DESC"))

    def store_digest(self, name: str, stamp: str, digest: str) -> None:
        """Store the digest of a run unless the run has changed meanwhile."""
        with closing(self._open_database()) as base:
            text = "UPDATE runs SET analysed = 1 WHERE run_id = ? AND stamp = ?"
            if base.execute(text, (name, stamp)).rowcount:
                (text,) = base.execute("SELECT row FROM texts WHERE run_id = ?", (name,)).fetchone()
                verdict = RunDigest.model_validate_json(digest).compliance
                row = RunRow.model_validate_json(text).model_copy(update={"compliance": verdict})
                base.execute(
                    "UPDATE texts SET row = ?, digest = ? WHERE run_id = ?",
                    (row.model_dump_json(), digest, name),
                )
            base.commit()
        self.version += 1

    # --- refresh ---

    def _ensure_tables(self) -> None:
        """Create the tables if needed; a damaged file is rebuilt."""
        try:
            with closing(self._open_database()) as base:
                base.executescript(_render_schema())
                base.execute(f"SELECT {', '.join(_list_columns())} FROM runs LIMIT 1")
        except sqlite3.OperationalError as error:
            if "column" not in str(error):
                raise  # busy, or not writable
            self._recreate_tables()
        except sqlite3.DatabaseError:
            self._recreate_tables()

    def _recreate_tables(self) -> None:
        logger.info("rebuilding the run index %s", self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for end in ("", "-wal", "-shm"):
            Path(f"{self.path}{end}").unlink(missing_ok=True)
        with closing(self._open_database()) as base:
            base.executescript(_render_schema())

    def refresh(self) -> None:
        """Update the index from the run directories."""
        stamps = dict(read_stamps(self.runs))
        with closing(self._open_database()) as base:
            stamps_in_index = dict(base.execute("SELECT run_id, stamp FROM runs"))
            if gone := stamps_in_index.keys() - stamps.keys():
                _delete_runs(base, gone)
                base.commit()
            handled = stamps_in_index | self._refused
            changed = [name for name, stamp in stamps.items() if handled.get(name) != stamp.text]
            changed.sort(reverse=True)  # the newest first: they are what readers look at
            self.waiting = sum(name not in stamps_in_index for name in changed)
            for first in range(0, len(changed), BATCH):
                self._store_runs(base, {name: stamps[name] for name in changed[first : first + BATCH]})
                if self._end.is_set():
                    return
            now = hash(frozenset(base.execute("SELECT run_id, stamp, analysed FROM runs")))
        if now != self._seen or not self.looked:
            self.version += 1
        self._seen, self.looked = now, True
        self._refused = {name: stamp for name, stamp in self._refused.items() if name in stamps}
        self.unreadable = {name: reason for name, reason in self.unreadable.items() if name in stamps}

    def _store_runs(self, base: sqlite3.Connection, stamps: dict[str, ChangeStamp]) -> None:
        marks = ", ".join("?" * len(_list_columns()))
        for name, stamp in stamps.items():
            try:
                row, digest = self._read_row(find_run(self.runs, name), stamp.changed)
            except (UserError, OSError, ValueError, ArithmeticError, RecursionError) as error:
                logger.debug("cannot read run %s: %s", name, error)
                self.unreadable[name], self._refused[name] = str(error), stamp.text
                _delete_runs(base, [name])
                continue
            self.unreadable.pop(name, None)
            self._refused.pop(name, None)
            values = [getattr(row, column) for column in _list_stored_columns()]
            row_values = (name, stamp.text, digest is not None, *values)
            base.execute(f"INSERT OR REPLACE INTO runs VALUES ({marks})", row_values)
            base.execute(
                "INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", (name, row.model_dump_json(), digest)
            )
        base.commit()
        self.version += 1
        self.waiting = max(0, self.waiting - len(stamps))

    def _read_row(self, paths: RunPaths, changed: float) -> tuple[RunRow, str | None]:
        # A crashed run may have been resumed since its digest was made.
        if (digest := digests.read_cached_digest(paths)) and not (
            digest.state != "finished" and is_held(paths.lock)
        ):
            digest = digest.model_copy(update={"run_id": paths.run_id})  # the directory may have been renamed
            return build_row_from_digest(digest, self._level(digest.task), changed), digest.model_dump_json()
        view = read_run(paths)
        return build_row_from_view(view, self._level(view.spec.task), changed), None

    def _refresh_forever(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            try:
                self.refresh()
                self._set_unavailable("")
            except (
                OSError,
                sqlite3.Error,
            ) as error:  # for example a full disk or a missing directory: try again
                self._set_unavailable(f"{type(error).__name__}: {error}")
                if isinstance(error, sqlite3.Error):
                    self._recreate_if_damaged(error)
            self._end.wait(max(POLL_SECONDS, (time.monotonic() - began) / SHARE))

    def _recreate_if_damaged(self, error: sqlite3.Error) -> None:
        """Rebuild a damaged or deleted file, but not one that is only busy."""
        if type(error) is sqlite3.DatabaseError or any(
            sign in str(error) for sign in MISSING_DATABASE_ERRORS
        ):
            with suppress(OSError, sqlite3.Error):  # the next refresh tries again
                self._recreate_tables()

    def _set_unavailable(self, gone: str) -> None:
        if gone != self.gone:
            if gone:
                logger.warning("cannot refresh the run index: %s", gone)
            self.gone = gone
            self.version += 1

    def _open_database(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.path, timeout=30)
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=OFF")  # the index can be rebuilt
        return base


def _delete_runs(base: sqlite3.Connection, names: Iterable[str]) -> None:
    for table in ("runs", "texts"):
        keys = [(name,) for name in names if name.isascii()]  # SQLite stores no names that are not valid text
        base.executemany(f"DELETE FROM {table} WHERE run_id = ?", keys)


def _list_stored_columns() -> Sequence[str]:
    return tuple(dict.fromkeys((*FILTER_COLUMNS, *SORTABLE_COLUMNS)))


def _list_columns() -> Sequence[str]:
    return ("run_id", "stamp", "analysed", *_list_stored_columns())


def _render_schema() -> str:
    kinds = {"run_id": "TEXT PRIMARY KEY", "analysed": "INTEGER", **dict.fromkeys(NUMERIC_COLUMNS, "REAL")}
    columns = ", ".join(f"{name} {kinds.get(name, 'TEXT')}" for name in _list_columns())
    return (
        f"CREATE TABLE IF NOT EXISTS runs ({columns});"
        "CREATE TABLE IF NOT EXISTS texts (run_id TEXT PRIMARY KEY, row TEXT, digest TEXT);"
        "CREATE INDEX IF NOT EXISTS by_start ON runs (started);"
    )
