"""The driver's API key: a value that never prints, and its redaction from everything that is sent or written.

A redacted key is replaced with as many stars, so that lengths stay the same. Its forms in JSON and in URLs
are redacted too. A key of a few letters is not a secret (`EMPTY`, `sk-1234`), and redacting it would mangle
answers, so it is left alone.
"""

import json
import re
from typing import NoReturn
from urllib.parse import quote

from agent2rl.core.errors import UserError

MIN_KEY_LENGTH = 8
"""Shorter keys are not redacted."""
ACCOUNT_IDS = re.compile(
    rb"\b(?:org|proj|user|acct|sk|pk)[-_][\w*.-]{6,}|\bprojects/[\w-]{4,}|\bAIza[\w-]{10,}"
)
"""Account names in providers' errors: organisations, projects, parts of keys."""


class Key:
    """A secret that cannot be printed or copied; only the code that sends it calls `reveal`."""

    __slots__ = ("_forms", "_secret")

    def __init__(self, secret: str, name: str = "The driver's key") -> None:
        secret = secret.strip()
        if not re.fullmatch(r"[!-~]+", secret):
            raise UserError(f"{name} is empty or has invalid characters.", "Set it again.")
        self._secret = secret
        forms = (
            {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
            if len(secret) >= MIN_KEY_LENGTH
            else set()
        )
        # The longest first, because one form may contain another.
        self._forms = tuple(form.encode() for form in sorted(forms, key=len, reverse=True))

    def reveal(self) -> str:
        return self._secret

    def redact(self, data: bytes) -> bytes:
        for form in self._forms:
            data = data.replace(form, b"*" * len(form))
        return data

    def redact_text(self, text: str) -> str:
        return self.redact(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    @property
    def forms(self) -> tuple[bytes, ...]:
        return self._forms

    def __repr__(self) -> str:
        return "Key(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key cannot be copied")


class Redactor:
    """Redacts a key from a stream, however it is chunked. Holds back only what may be the start of a key."""

    def __init__(self, key: Key | None) -> None:
        self._key = key if key and key.forms else None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        if self._key is None:
            return chunk
        clean = self._key.redact(self._held + chunk)
        held = max(_count_partial_match(clean, form) for form in self._key.forms)
        self._held = clean[len(clean) - held :]
        return clean[: len(clean) - held]

    def finish(self) -> bytes:
        rest, self._held = self._held, b""
        return rest


def _count_partial_match(data: bytes, form: bytes) -> int:
    """Return how many of the last bytes may be the start of a form."""
    at = max(0, len(data) - len(form) + 1)
    while (at := data.find(form[:1], at)) >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at += 1
    return 0


def redact_accounts(data: bytes) -> bytes:
    """Redact account names from a provider's error."""
    return ACCOUNT_IDS.sub(lambda match: b"*" * len(match[0]), data)
