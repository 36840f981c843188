"""The way to the provider: connections that stay open, through proxies, encrypted."""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.gateway.fake_provider import (
    MODEL,
    FakeProvider,
    GatewayClient,
    ProviderReply,
    make_response_body,
    make_stream_reply,
    serve_gateway,
    serve_provider,
)
from tests.helpers.http_server import serve_app


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with serve_provider() as provider:
        yield provider


@contextmanager
def relaying(to: int) -> Iterator[tuple[int, list[bytes]]]:
    """A proxy that connects everybody to one port, whatever name they ask for; and what they asked."""
    asked: list[bytes] = []
    ready, over = threading.Event(), threading.Event()
    port = 0

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    async def main() -> None:
        nonlocal port
        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        ready.set()
        while not over.is_set():
            await asyncio.sleep(0.02)
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait()
    try:
        yield port, asked
    finally:
        over.set()
        thread.join()


def test_a_connection_is_used_again_and_one_that_was_closed_is_not(provider: FakeProvider) -> None:
    closing = {"content-type": "application/json", "connection": "close"}
    with serve_gateway(provider) as agent:
        for _ in range(3):
            assert agent.ask().status_code == 200
        assert len(provider.clients) == 1
        provider.replies.append(make_stream_reply("anthropic"))
        assert agent.ask(stream=True).status_code == 200
        provider.replies.append(ProviderReply((make_response_body("anthropic"),), headers=closing))
        assert agent.ask().content == make_response_body("anthropic")
        assert len(provider.clients) == 1
        assert agent.ask().status_code == 200
        assert len(provider.clients) == 2


def test_a_server_that_closes_what_is_idle_is_connected_to_anew(provider: FakeProvider) -> None:
    with serve_provider(keep_alive_seconds=0) as hasty, serve_gateway(hasty) as agent:
        for _ in range(3):
            assert agent.ask().status_code == 200
            time.sleep(0.05)
        assert len(hasty.clients) == 3


def test_a_proxy_that_the_environment_names_is_asked(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", provider.url.replace("http://", "http://me:pass%20word@"))
    with serve_gateway(provider, driver=f"{MODEL}@http://provider.example:8000") as agent:
        assert agent.ask().status_code == 200
    (heard,) = provider.heard
    assert heard.path == "http://provider.example:8000/v1/messages"
    assert heard.headers["host"] == "provider.example:8000"
    assert heard.headers["proxy-authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # this machine needs none
    with serve_gateway(provider) as agent:
        assert agent.ask().status_code == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for provider.example, in one file."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl here to make a certificate with")
    place = tmp_path_factory.mktemp("tls") / "provider.pem"
    name = ["-subj", "/CN=provider.example", "-addext", "subjectAltName=DNS:provider.example"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(place), "-out", str(place.with_suffix(".crt"))]
    subprocess.run(["openssl", "req", "-x509", *key, *name, *files], check=True, capture_output=True)
    with place.open("a") as whole_of_it:
        whole_of_it.write(place.with_suffix(".crt").read_text())
    return place


def test_what_is_encrypted_goes_through_a_tunnel_and_is_believed_only_with_its_certificate(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FakeProvider()
    with (
        serve_app(provider, ssl_certfile=certificate) as url,
        relaying(int(url.rpartition(":")[2])) as (port, asked),
    ):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with _asking() as agent:
            answer = agent.ask()
            assert answer.status_code == 502
            assert "CERTIFICATE_VERIFY_FAILED" in answer.text
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with _asking() as agent:
            for stream in (False, True, False):
                assert agent.ask(stream=stream).status_code == 200
    assert asked[-1].startswith(b"CONNECT provider.example:443 HTTP/1.1\r\n")
    assert len(provider.heard) == 3
    assert len(provider.clients) == 1


@contextmanager
def _asking() -> Iterator[GatewayClient]:
    with serve_gateway(FakeProvider(), driver=f"{MODEL}@https://provider.example/v1") as agent:
        yield agent


class LoopOfAnotherPackage(asyncio.SelectorEventLoop):
    """Like uvloop's, which vLLM brings: it cannot try the addresses of a host in parallel."""

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        if "happy_eyeballs_delay" in options:
            raise TypeError("create_connection() got an unexpected keyword argument 'happy_eyeballs_delay'")
        return await super().create_connection(*args, **options)


def test_an_event_loop_that_another_package_brings_changes_nothing(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvloop = ModuleType("uvloop")
    vars(uvloop)["new_event_loop"] = LoopOfAnotherPackage
    monkeypatch.setitem(sys.modules, "uvloop", uvloop)
    with serve_gateway(provider) as agent:
        assert agent.ask().status_code == 200
