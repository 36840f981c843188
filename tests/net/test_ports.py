"""A port to serve on, or words that help."""

from contextlib import closing

import pytest

from agent2rl.core.errors import UserError
from agent2rl.net.ports import open_listening_socket


def test_a_free_port_is_of_this_computer_alone_and_one_that_is_taken_is_named() -> None:
    with closing(open_listening_socket(0)) as line:
        host, port = line.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(UserError, match=rf"Port {port} of this computer cannot be used.*--port"):
            open_listening_socket(port)


@pytest.mark.parametrize("host", ["203.0.113.1", "no such name", "a" * 300, "\ud800"])
def test_an_address_of_others_is_none_to_serve_at(host: str) -> None:
    with pytest.raises(UserError, match=r"is not an address of this computer|cannot be used"):
        open_listening_socket(0, host)
