"""Find secrets in what goes into a bundle: the values of the user's keys, and what looks like a key.

A secret is replaced with as many stars, so that lengths and line numbers stay the same, and JSON stays valid.
A finding is named by the beginning of the secret's hash, so that no message repeats the secret.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dulwich.objects import Blob
from dulwich.repo import Repo

from agent2rl.core.errors import UserError
from agent2rl.gateway.keys import MIN_KEY_LENGTH, Key

# Each begins with letters, for which `re` searches fast; what must not come before them is looked up after.
PATTERNS: Mapping[str, re.Pattern[bytes]] = {
    "an API key": re.compile(rb"sk-(?<![A-Za-z0-9_-]sk-)(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,200}"),
    "a Google key": re.compile(rb"AIza(?<!\wAIza)[A-Za-z0-9_-]{35}"),
    "a Hugging Face token": re.compile(rb"hf_(?<!\whf_)[A-Za-z0-9]{30,60}\b"),
    "a GitHub token": re.compile(rb"gh(?<!\wgh)[pousr]_[A-Za-z0-9]{36,251}"),
    "a GitHub personal token": re.compile(rb"github_pat_[A-Za-z0-9_]{40,251}"),
    "a GitLab token": re.compile(rb"glpat-[A-Za-z0-9_-]{20,100}"),
    "an AWS key": re.compile(rb"AKIA(?<!\wAKIA)[A-Z0-9]{16}\b"),
    "a Slack token": re.compile(rb"xox[abeoprs]-[A-Za-z0-9-]{10,250}"),
    "a Tavily key": re.compile(rb"tvly-[A-Za-z0-9-]{20,100}"),
    "a JSON web token": re.compile(rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    "a private key": re.compile(
        rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----(?s:.{1,20000}?)-----END (?:[A-Z]+ )?PRIVATE KEY-----"
    ),
    "a password in a URL": re.compile(rb"://[^\s/:@\"'<>{}$*\\]{1,100}:[^\s/:@\"'<>{}$*\\]{4,200}@"),
}
PLACEHOLDERS = {b"password", b"passwd", b"pass", b"secret", b"token", b"key"}
"""Passwords of URLs in examples."""
NAME_CHARACTERS = 8
ALL = "all"
"""In place of a name: nothing is a secret because of its looks. The user's own keys still are."""


@dataclass(frozen=True)
class FoundSecret:
    kind: str
    name: str
    """The beginning of its hash."""
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind} ({self.name})"


class SecretScanner:
    """Finds and replaces secrets. `known` are the user's own, by the name of their variable."""

    def __init__(self, known: Mapping[str, str], not_secret: frozenset[str] = frozenset()) -> None:
        self._keys = {
            name: Key(value, name)
            for name, value in known.items()
            if len(value.strip()) >= MIN_KEY_LENGTH and re.fullmatch(r"[!-~]+", value.strip())
        }
        self._not_secret = not_secret

    def replace_secrets(self, content: bytes, where: str) -> tuple[bytes, list[FoundSecret]]:
        """Return the content with stars in place of secrets, and what was found."""
        secrets: list[FoundSecret] = []
        for variable, key in self._keys.items():
            for form in key.forms:
                if form in content and not self._is_declared(form):
                    secrets += [_describe_secret(form, f"the value of {variable}", where)] * content.count(
                        form
                    )
                    content = content.replace(form, b"*" * len(form))
        for kind, pattern in PATTERNS.items() if ALL not in self._not_secret else ():
            content = pattern.sub(self._make_replacement(kind, where, secrets), content)
        return content, secrets

    def find_secrets(self, content: bytes, where: str) -> list[FoundSecret]:
        return self.replace_secrets(content, where)[1]

    def _make_replacement(
        self, kind: str, where: str, secrets: list[FoundSecret]
    ) -> Callable[[re.Match[bytes]], bytes]:
        def replace(match: re.Match[bytes]) -> bytes:
            secret = match[0]
            if secret.startswith(b"://"):  # only what is between these marks
                secret = secret[3:-1]
                if secret.partition(b":")[2].lower() in PLACEHOLDERS:
                    return match[0]
            if self._is_declared(secret):
                return match[0]
            secrets.append(_describe_secret(secret, f"what looks like {kind}", where))
            # Only the text: line ends of a private key stay, so that line numbers do.
            return match[0].replace(secret, re.sub(rb"[^\r\n]", b"*", secret))

        return replace

    def _is_declared(self, secret: bytes) -> bool:
        return _name_secret(secret) in self._not_secret


def scan_code(folder: Path, scanner: SecretScanner) -> list[FoundSecret]:
    """Return the secrets in all objects of a record of code."""
    secrets: list[FoundSecret] = []
    with Repo(str(folder)) as repo:
        for name in sorted(repo.object_store):
            item = repo.object_store[name]
            kind = "file" if isinstance(item, Blob) else item.type_name.decode()
            secrets += scanner.find_secrets(
                item.as_raw_string(), f"{folder.name}/ ({kind} {name.decode()[:10]})"
            )
    return secrets


def refuse_secrets(secrets: list[FoundSecret], hint: str) -> None:
    """Raise if there are any; the message names each once."""
    if not secrets:
        return
    counts = Counter(map(str, secrets))
    lines = "".join(f"\n  {line}" for line in list(counts)[:20])
    raise UserError(f"There are secrets in files that must not be changed:{lines}", hint)


def _describe_secret(secret: bytes, kind: str, where: str) -> FoundSecret:
    return FoundSecret(kind, _name_secret(secret), where)


def _name_secret(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()[:NAME_CHARACTERS]
