"""What is found out about a run after it was closed: a chain of its own beside the ledger.

A closed ledger never changes, so that a head that was published with the result stays valid.
`additions.jsonl` has the same form as the ledger. Its first record names the last hash of the run's ledger,
so it cannot be moved to another run, and each later record covers all before it.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue, ValidationError

from agent2rl.core.audit_records import Audit
from agent2rl.core.errors import UserError
from agent2rl.core.records import LedgerEntry
from agent2rl.core.reproduction import Reproduction
from agent2rl.record.ledger import Ledger, read_ledger, repair_ledger
from agent2rl.record.paths import RunPaths

AdditionKind = Literal["opened", "reproduction", "audit"]


@dataclass(frozen=True)
class AdditionsReading:
    """The records up to the first fault, and the fault, if there is one."""

    entries: tuple[LedgerEntry, ...] = ()
    fault: str | None = None
    torn: bool = False
    """Whether the last line is incomplete, as after a crash."""

    @property
    def head(self) -> str:
        return self.entries[-1].hash if self.entries else ""

    def list_reproductions(self) -> tuple[Reproduction, ...]:
        """Return the reproductions, oldest first. Call this only if there is no fault."""
        kind: AdditionKind = "reproduction"
        return tuple(Reproduction.model_validate(each.data) for each in self.entries if each.kind == kind)

    def list_audits(self) -> tuple[Audit, ...]:
        """Return the audits, oldest first. Call this only if there is no fault."""
        kind: AdditionKind = "audit"
        return tuple(Audit.model_validate(each.data) for each in self.entries if each.kind == kind)


def read_additions(paths: RunPaths, run_head: str) -> AdditionsReading:
    """Read what was added to a run whose ledger ends with this hash."""
    if not paths.additions.exists() and not paths.additions_head.exists():
        return AdditionsReading()
    chain = read_ledger(paths.additions, paths.additions_head)
    reading = AdditionsReading(chain.entries, chain.fault, chain.torn)
    fault = chain.fault or _find_fault(reading, run_head)
    return AdditionsReading(chain.entries, f"{paths.additions.name}: {fault}" if fault else None, chain.torn)


def _find_fault(reading: AdditionsReading, run_head: str) -> str | None:
    if not reading.entries:  # a crash may have come before the first record was whole
        return None
    first = reading.entries[0]
    if first.kind != "opened" or first.data.get("ledger_head") != run_head:
        return "it belongs to another record than this ledger"
    try:
        reading.list_reproductions()
        reading.list_audits()
    except ValidationError:
        return "a reproduction or an audit does not say what such records say"
    return None


def require_additions_intact(paths: RunPaths) -> str:
    """Return the last hash of the run's ledger; raise UserError if nothing can be added to the run."""
    entries = read_ledger(paths.ledger, paths.ledger_head).entries
    fault = read_additions(paths, entries[-1].hash).fault if entries else "its ledger cannot be read"
    if fault:
        raise UserError(f"Nothing can be added to {paths.run_id}: {fault}.", "Restore it from a copy.")
    return entries[-1].hash


def append_addition(paths: RunPaths, kind: AdditionKind, data: dict[str, JsonValue]) -> str:
    """Add a record to a closed run and return its hash. The caller holds the run's lock."""
    repair_ledger(paths.additions, paths.additions_head)
    run_head = require_additions_intact(paths)
    chain = Ledger(paths.additions, paths.additions_head)
    try:
        if chain.is_empty:
            opening: AdditionKind = "opened"
            chain.append(opening, {"run_id": paths.run_id, "ledger_head": run_head})
        chain.append(kind, data)
        return chain.last
    finally:
        chain.close()
