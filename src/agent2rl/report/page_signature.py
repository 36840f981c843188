"""Signs report.html, so that the dashboard can show a report that this user has made without making it again.

A run directory may be somebody else's, and a page of theirs could hold anything. So a page is shown only if
this user's key signed it, for this record.
"""

import hmac
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from agent2rl import __version__
from agent2rl.core.base_record import Record
from agent2rl.record.files import canonical_json, read_regular_file, sha256_text, write_record
from agent2rl.record.paths import RunPaths
from agent2rl.record.signing_key import ensure_signing_key, read_signing_key
from agent2rl.report.digests import read_ledger_heads


class PageSignature(Record):
    version: str
    """Of agent2rl: a page of another version may lack what the dashboard's style and script expect."""
    run_id: str
    ledger_head: str
    """Heads of the run's ledger and of its additions, such as an audit, when the page was made."""
    page_sha256: str
    signature: str
    """HMAC-SHA256 over the other fields."""


def find_page_key(cache: Path) -> Path:
    return cache / "dashboard" / "page.key"


def sign_page(paths: RunPaths, cache: Path) -> None:
    """Sign the page of a report. Without a writable cache it stays unsigned, and is made anew to show it."""
    with suppress(OSError, ValueError):
        key = ensure_signing_key(find_page_key(cache))
        write_record(paths.page_signature, _make_signature(paths, key, _read_page(paths)))


def read_signed_page(paths: RunPaths, cache: Path) -> str | None:
    """Return the page if this user signed it for the run as it is now, else None."""
    key = read_signing_key(find_page_key(cache))
    try:
        recorded = PageSignature.model_validate_json(read_regular_file(paths.page_signature))
        page = _read_page(paths)
        right = _make_signature(paths, key, page) if key else None
    except (OSError, ValueError, ValidationError):
        return None
    if right is None or not hmac.compare_digest(right.model_dump_json(), recorded.model_dump_json()):
        return None
    return page


def _read_page(paths: RunPaths) -> str:
    return read_regular_file(paths.report_page).decode()


def _make_signature(paths: RunPaths, key: bytes, page: str) -> PageSignature:
    fields = {
        "version": __version__,
        "run_id": paths.run_id,
        "ledger_head": read_ledger_heads(paths),
        "page_sha256": sha256_text(page),
    }
    return PageSignature(
        **fields, signature=hmac.digest(key, canonical_json(fields).encode(), "sha256").hex()
    )
