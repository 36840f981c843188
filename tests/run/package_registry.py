"""Package registries of our own: as much of npm's HTTP as npm needs, and folders for pip and apt."""

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class NpmRegistry(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _NpmHandler)
        self.pages: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"

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
def serve_npm_registry(address: str = "127.0.0.1") -> Iterator[NpmRegistry]:
    with NpmRegistry(address) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _make_tarball(files: dict[str, str]) -> bytes:
    return _make_tar({f"package/{name}": text for name, text in files.items()})


def _make_tar(files: dict[str, str]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
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


def write_debian_repository(folder: Path, release: str, name: str, version: str, content: str) -> None:
    """A repository without a signature that has one package, of one file: usr/share/NAME."""
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: tests\nDescription: tiny\n"
    )
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _make_tar({"./control": control}),
        "data.tar.gz": _make_tar({f"./usr/share/{name}": content}),
    }
    package = b"!<arch>\n" + b"".join(
        f"{part:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
        + data
        + b"\n" * (len(data) % 2)
        for part, data in parts.items()
    )
    path = f"pool/{name}_{version}_all.deb"
    index = (
        f"{control}Filename: {path}\nSize: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n"
    )
    digest = f"{hashlib.sha256(index.encode()).hexdigest()} {len(index)}"
    files: dict[str, bytes] = {path: package}
    lines = []
    for machine in ("amd64", "arm64"):
        files[f"dists/{release}/main/binary-{machine}/Packages"] = index.encode()
        lines.append(f" {digest} main/binary-{machine}/Packages\n")
    about = f"Suite: {release}\nCodename: {release}\nArchitectures: amd64 arm64\nComponents: main\n"
    date = f"Date: {formatdate(usegmt=True)}\n"
    files[f"dists/{release}/Release"] = f"{about}{date}SHA256:\n{''.join(lines)}".encode()
    for place, data in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(data)
