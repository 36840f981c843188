"""Which hosts a run may reach, by name, port and address.

A request is checked twice: its host name before any look-up, and the address that the name resolves to
before the connection. The proxy connects to the address that was checked.
"""

import ipaddress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from agent2rl.core.errors import UserError
from agent2rl.core.network import NetworkPolicy, is_host_name, is_model_hub

PACKAGE_HOSTS = frozenset(
    {
        *("pypi.org", "files.pythonhosted.org"),
        "registry.npmjs.org",
        *("conda.anaconda.org", "repo.anaconda.com"),
        *("deb.debian.org", "security.debian.org"),
    }
)
PORTS = {"http": 80, "https": 443}

IPv4 = ipaddress.IPv4Address
IPv6 = ipaddress.IPv6Address
NOT_PUBLIC_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's metadata service at a public address
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""Everything else is local, multicast, reserved, or holds an IPv4 address: mapped, NAT64."""
NOT_EMBEDDED_V4 = tuple(ipaddress.IPv4Network(text) for text in ("0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"))
"""Numbers at the end of an IPv6 address that look like these are not meant as IPv4 addresses."""
ISATAP = (0x00005EFE, 0x02005EFE)
NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo and other special purposes
        "2001:db8::/32",
        "2002::/16",  # 6to4, which holds an IPv4 address
        "3fff::/20",
    )
)


class PolicyRefusal(Exception):
    """A request that the policy, a limit or the protocol forbids. The agent reads `reason`."""

    def __init__(self, reason: str, status: int = 403, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.detail = detail
        """For the record only."""


def is_public_address(text: str) -> bool:
    """Return whether this is the address of a public host. One with a zone is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4):
        return not any(address in network for network in NOT_PUBLIC_V4)
    if address.scope_id is not None or address not in GLOBAL_V6 or _leads_to_private_v4(address):
        return False
    return not any(address in network for network in NOT_PUBLIC_V6)


def _leads_to_private_v4(address: IPv6) -> bool:
    """Return whether a gateway may turn this into a connection to an IPv4 address that is not public.

    That is NAT64 with a /96 prefix of a network's own, and ISATAP.
    """
    middle, embedded = int(address) >> 32 & 0xFFFFFFFF, IPv4(int(address) & 0xFFFFFFFF)
    if is_public_address(str(embedded)):
        return False
    return middle in ISATAP or (middle == 0 and not any(embedded in each for each in NOT_EMBEDDED_V4))


@dataclass(frozen=True)
class PackageMirror:
    """A package registry that the user configured. It may have a private address and any port."""

    scheme: Literal["http", "https"]
    host: str
    port: int

    @property
    def has_address(self) -> bool:
        """Whether it is given by an IP address instead of a name."""
        return not is_host_name(self.host)


OWN_ADDRESSES = ("localhost", "127.0.0.1", "::1")
"""Clients in the sandbox connect to these without the proxy."""


def parse_mirror(variable: str, url: str) -> PackageMirror:
    """Parse the URL of a mirror; raise UserError if agents could not use it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UserError(f"{variable} is not a URL: {error}.") from error
    if parts.scheme not in PORTS or not host:
        raise UserError(f"{variable} is not an http:// or https:// URL.")
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"{variable} contains a login, which the agent would see.",
            "Use a mirror that needs none, such as a pass-through proxy on this network.",
        )
    if host in OWN_ADDRESSES:
        raise UserError(
            f"{variable}: inside the sandbox, {host} is the sandbox itself.",
            "Let the mirror listen on another address of this computer, such as 127.0.0.2, and name that.",
        )
    return PackageMirror(parts.scheme, host, port or PORTS[parts.scheme])  # type: ignore[arg-type]


@dataclass(frozen=True)
class HostRules:
    policy: NetworkPolicy
    mirrors: tuple[PackageMirror, ...] = ()

    def find_mirror(self, host: str, port: int, tunnel: bool) -> PackageMirror | None:
        """Return the mirror with this address, if the policy includes packages."""
        scheme = "https" if tunnel else "http"
        for mirror in self.mirrors if self.policy.includes_packages else ():
            if (mirror.scheme, mirror.host, mirror.port) == (scheme, host, port):
                return mirror
        return None

    def require_allowed(self, host: str, port: int, tunnel: bool) -> None:
        """Raise PolicyRefusal unless the policy allows this host and port."""
        if host in OWN_ADDRESSES:
            raise PolicyRefusal(
                f"{host} is the sandbox itself. Connect to it without the proxy: NO_PROXY names it."
            )
        if not is_host_name(host):
            raise PolicyRefusal(f"{host!r} is not a host name. Addresses cannot be reached, only names.")
        if port != PORTS["https" if tunnel else "http"]:
            raise PolicyRefusal(
                f"Port {port} cannot be reached. Use http:// on port 80 or https:// on port 443."
            )
        if not self._allows_host(host):
            raise PolicyRefusal(f"The network policy of this run ({self.policy}) does not allow {host}.")

    def _allows_host(self, host: str) -> bool:
        policy = self.policy
        if policy.names_host(host):
            return True
        if policy.includes_packages and host in PACKAGE_HOSTS:
            return True
        return policy.kind == "open" and not is_model_hub(host)
