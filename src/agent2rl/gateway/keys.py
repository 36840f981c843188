"""The driver's key: a value that does not print, and what keeps it out of everything that is sent or written.

What is taken out is replaced by as many stars, so that lengths stay as they were. Besides the key itself, its
forms in JSON and in URLs are looked for. A key of a few letters is no secret (`EMPTY`, `sk-1234`), and
taking it out would mangle answers: it is left alone.
"""

import json
import re
from typing import NoReturn
from urllib.parse import quote

from agent2rl.core.errors import UserError

MIN_KEY_LENGTH = 8
"""Letters of a key that is looked for."""
ACCOUNT_IDS = re.compile(
    rb"\b(?:org|proj|user|acct|sk|pk)[-_][\w*.-]{6,}|\bprojects/[\w-]{4,}|\bAIza[\w-]{10,}"
)
"""What providers' errors name their customers by: organisations, projects, parts of keys."""


class Key:
    """Shown by nothing, copied into nothing; `reveal` is called where it is sent, and nowhere else."""

    __slots__ = ("_forms", "_secret")

    def __init__(self, secret: str, name: str = "The driver's key") -> None:
        secret = secret.strip()
        if not re.fullmatch(r"[!-~]+", secret):
            raise UserError(f"{name} is empty or holds characters that no key has.", "Set it again.")
        self._secret = secret
        forms = (
            {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
            if len(secret) >= MIN_KEY_LENGTH
            else set()
        )
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
        raise TypeError("a key is not copied")


class Redactor:
    """Takes a key out of a stream, whatever way it is cut. Holds back only what may be a key's beginning."""

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
    """How many of the last bytes may be the first of a form."""
    at = max(0, len(data) - len(form) + 1)
    while (at := data.find(form[:1], at)) >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at += 1
    return 0


def redact_accounts(data: bytes) -> bytes:
    """A provider's error without what it calls its customer."""
    return ACCOUNT_IDS.sub(lambda found: b"*" * len(found[0]), data)
