"""A package registry of our own: as much of npm's HTTP as npm needs, and wheels in a folder for pip."""

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class NpmRegistry(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _NpmHandler)
        self.pages: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def publish(self, name: str, version: str, script: str, **more: object) -> None:
        """A package whose program of the same name is the script."""
        about = {"name": name, "version": version, "bin": {name: "program.js"}, **more}
        ball = _make_tarball({"package.json": json.dumps(about), "program.js": script})
        path = f"/{name}/-/{name}-{version}.tgz"
        dist = {"tarball": self.url + path, "shasum": hashlib.sha1(ball).hexdigest()}
        document = {
            "name": name,
            "dist-tags": {"latest": version},
            "versions": {version: about | {"dist": dist}},
        }
        self.pages |= {path: ball, f"/{name}": json.dumps(document).encode()}


class _NpmHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: NpmRegistry

    def do_GET(self) -> None:
        body = self.server.pages.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"{}")))
        self.end_headers()
        self.wfile.write(body or b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_npm_registry() -> Iterator[NpmRegistry]:
    with NpmRegistry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _make_tarball(files: dict[str, str]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text.encode()), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return target.getvalue()


def write_wheel(folder: Path, name: str, version: str, module: str) -> None:
    """A package of one module, of the same name."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": module,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
