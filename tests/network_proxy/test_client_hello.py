"""The server name is read out of a ClientHello, whole or in parts."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.network_proxy.connections import ClientHello, NotClientHello, parse_client_hello
from tests.network_proxy.small_internet import make_client_hello

NAME = b"\x00\x00"
ENCRYPTED = b"\xfe\x0d"


def vector(data: bytes, size: int = 2) -> bytes:
    return len(data).to_bytes(size) + data


def server_name(*names: bytes) -> bytes:
    return NAME + vector(vector(b"".join(b"\x00" + vector(name) for name in names)))


def build_hello(*extensions: bytes, record_bytes: int = 1 << 14) -> bytes:
    body = b"\x03\x03" + bytes(32) + vector(b"", 1) + vector(b"\x13\x01") + vector(b"\x00", 1)
    message = b"\x01" + vector(body + vector(b"".join(extensions)), 3)
    parts = [message[at : at + record_bytes] for at in range(0, len(message), record_bytes)]
    return b"".join(b"\x16\x03\x01" + vector(part) for part in parts)


def test_the_name_of_a_real_client_is_read() -> None:
    hello = make_client_hello("Example.org")
    assert parse_client_hello(hello) == ClientHello("example.org", encrypted=False)
    assert parse_client_hello(make_client_hello(None)) == ClientHello(None, encrypted=False)


def test_a_hello_in_parts_is_read_once_it_is_whole() -> None:
    hello = make_client_hello("example.org")
    assert all(parse_client_hello(hello[:length]) is None for length in range(len(hello)))
    split = build_hello(server_name(b"example.org"), record_bytes=7)
    assert parse_client_hello(split) == ClientHello("example.org", encrypted=False)


def test_an_encrypted_hello_is_noticed() -> None:
    hello = parse_client_hello(build_hello(server_name(b"a.org"), ENCRYPTED + vector(b"secret")))
    assert hello == ClientHello("a.org", encrypted=True)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH",
        b"\x16\x02\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\x00\x00\x01",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x01\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        build_hello(server_name(b"a.org", b"b.org")),
        build_hello(server_name(b"a.org"), server_name(b"b.org")),
        build_hello(server_name("ä.org".encode())),
        build_hello(NAME + vector(b"\x00\x09\x00")),
        build_hello(server_name(b"subdomain.example.org"), record_bytes=1),
    ],
)
def test_what_is_not_a_clear_hello_is_refused(data: bytes) -> None:
    with pytest.raises(NotClientHello):
        parse_client_hello(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_hello_or_not_and_never_another_error(data: bytes) -> None:
    for begin in (b"", b"\x16\x03\x01\x00\x40"):
        with suppress(NotClientHello):
            parse_client_hello(begin + data)
