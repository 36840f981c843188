"""A hub of our own: speaks as much of the Hugging Face hub's HTTP as its library needs to fetch models."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE_FILE_BYTES = 100_000
"""From this size on a file is named by its sha256, as one in large file storage is."""


@dataclass
class HubRepository:
    files: dict[str, bytes]
    commit: str = "1" * 40
    gated: bool = False
    cut: list[int] = field(default_factory=list)
    """After so many bytes the connection breaks: one entry for each transfer of weights that is to break."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What the listing says of a file's size, where that is not the truth."""

    @classmethod
    def of(cls, directory: Path, commit: str) -> "HubRepository":
        return cls({file.name: file.read_bytes() for file in directory.iterdir()}, commit)

    def entries(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "rfilename": name, "size": self.sizes.get(name, len(content))}
            | {"oid": compute_etag(content)[:40]}
            for name, content in self.files.items()
        ]


def compute_etag(content: bytes) -> str:
    if len(content) >= LARGE_FILE_BYTES:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.repositories: dict[str, HubRepository] = {}
        self.sent: list[tuple[str, str | None]] = []
        """Each file that was asked for, and from where on."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        api = parts[:2] == ["api", "models"]
        owner, name, verb, revision, *rest = [*parts[2:], ""] if api else parts
        repository = self.server.repositories.get(f"{owner}/{name}")
        if repository is None:
            self._refuse(404, "RepoNotFound")
        elif revision not in ("main", repository.commit):
            self._refuse(404, "RevisionNotFound")
        elif verb == "revision":
            self._json({"id": f"{owner}/{name}", "sha": repository.commit, "siblings": repository.entries()})
        elif verb == "tree":
            self._json(repository.entries())
        elif repository.gated:
            self._refuse(401, "GatedRepo")
        elif "/".join(rest) not in repository.files:
            self._refuse(404, "EntryNotFound")
        else:
            self._file(repository, "/".join(rest))

    def _file(self, repository: HubRepository, name: str) -> None:
        content = repository.files[name]
        asked = self.headers["Range"]
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("X-Repo-Commit", repository.commit)
        self.send_header("ETag", f'"{compute_etag(content)}"')
        self.send_header("Content-Length", str(len(content) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.server.sent.append((name, asked))
        if name.endswith(".safetensors") and repository.cut:
            self.wfile.write(content[start : start + repository.cut.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(content[start:])

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    with HubServer() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
