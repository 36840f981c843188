"""The network policy of a run, and records of what its agent did with the network.

none                  no network
packages              the registries of PyPI, npm, conda and Debian
allow:HOST,…          these hosts; `*.example.org` is every host below it, `packages` the registries
open                  every public host, except model hubs
open:HOST,…           the same, and these model hubs
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, RootModel

from agent2rl.core.base_record import Record

NetworkKind = Literal["none", "packages", "allow", "open"]
PACKAGES = "packages"
EXPECTED_POLICY = "Write none, packages, allow:HOST,… or open."
LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
HOST_NAME = re.compile(rf"(?:{LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?")
LONGEST_HOST = 253


MODEL_HUBS = (
    "civitai.com",
    "hf-mirror.com",
    "hf.co",
    "hf.space",
    "huggingface.co",
    "kaggle.com",
    "modelscope.ai",
    "modelscope.cn",
    "ngc.nvidia.com",
    "ollama.ai",
    "ollama.com",
    "openxlab.org.cn",
    "tfhub.dev",
    "wisemodel.cn",
)
"""Sites that offer trained models for download. Hosts below these names count, too."""


def is_model_hub(host: str) -> bool:
    return any(host == hub or host.endswith(f".{hub}") for hub in MODEL_HUBS)


def is_host_name(text: str) -> bool:
    """Return whether a lower-case text is a full host name. No form of an IP address is one."""
    return len(text) <= LONGEST_HOST and HOST_NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class NetworkPolicy:
    kind: NetworkKind
    hosts: tuple[str, ...] = ()
    """Named hosts, sorted: lower case, with a leading `*.` for every host below a name."""

    @property
    def includes_packages(self) -> bool:
        """Whether the package registries and the user's mirrors of them can be reached."""
        return self.kind in ("packages", "open") or PACKAGES in self.hosts

    def names_host(self, host: str) -> bool:
        """Return whether the policy names this host."""
        return any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in self.hosts)

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(self.hosts)}" if self.hosts else self.kind


def parse_network_policy(text: str) -> NetworkPolicy:
    """Parse a policy; raise ValueError if it is none."""
    kind, colon, names = text.strip().partition(":")
    if text.strip() in ("none", "packages", "open"):
        return NetworkPolicy(kind)  # type: ignore[arg-type]
    if kind not in ("allow", "open") or not colon:
        raise ValueError(f"{text!r} is not a network policy. {EXPECTED_POLICY}")
    hosts = sorted({name.strip().lower() for name in names.split(",")})
    for host in hosts:
        _require_host(host, kind)
    return NetworkPolicy(kind, tuple(hosts))  # type: ignore[arg-type]


def _require_host(host: str, kind: str) -> None:
    if kind == "allow" and host == PACKAGES:
        return
    if not is_host_name(host.removeprefix("*.")):
        raise ValueError(
            f"{host!r} is not a host name. Write names such as example.org or *.example.org, without a "
            "scheme, a port or a path. IP addresses are not allowed."
        )


def normalize_network_policy(text: str) -> str:
    return str(parse_network_policy(text))


def choose_new_network_policy(text: str) -> str:
    """Return the normal form of a policy for a new run; raise ValueError if it is none.

    Runs of earlier versions may name hosts after `open:` that are no model hubs. Such a name has no meaning:
    whoever wrote it may have meant `allow:`, but got every public host.
    """
    policy = parse_network_policy(text)
    others = [name for name in policy.hosts if not is_model_hub(name.removeprefix("*."))]
    if policy.kind == "open" and others:
        raise ValueError(
            f"{policy} names {', '.join(others)}, which is no known model hub. `open` allows every public "
            "host, and model hubs are named after it. To allow nothing but the hosts that you name, write "
            f"allow:{','.join(policy.hosts)}."
        )
    return str(policy)


NetworkPolicyText = Annotated[str, AfterValidator(normalize_network_policy)]
"""A policy as text, in its normal form."""


class NetworkRequest(Record):
    """One request of the agent to a host outside: a line of network.jsonl.

    A request that is let out has several lines with the same id: one before anything is sent, others while
    many bytes pass, and one at its end. The last one counts.
    """

    id: int | None = None
    """None in files of earlier versions, where each request has one line."""
    at: float
    """Seconds since the epoch."""
    seconds: float
    method: Annotated[str, Field(max_length=40)]
    """CONNECT for a tunnel, in which the agent's client speaks TLS with the host. Empty if unreadable."""
    host: Annotated[str, Field(max_length=300)]
    port: int | None
    path: Annotated[str, Field(max_length=2000)] | None
    """With the query. None if it is encrypted."""
    status: int | None
    """The host's answer; None for a tunnel, or if there was no answer."""
    outcome: Literal["open", "done", "refused", "failed", "cut"]
    """`open` until it ends; `refused` by the policy or a limit; `failed` at the host; `cut` by a limit or the
    end of the run."""
    reason: str = ""
    sent_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes sent to the host. In a tunnel, this includes TLS."""
    received_bytes: Annotated[int, Field(ge=0)] = 0
    model_hub: bool = False
    """Whether the host is a hub of models."""


class UnrecordedRequests(Record):
    """A line of network.jsonl: how many further requests were refused so far and have no line."""

    at: float
    unrecorded: int


class NetworkLine(RootModel[NetworkRequest | UnrecordedRequests]):
    """A line of network.jsonl."""


@dataclass(frozen=True)
class NetworkRecord:
    """What network.jsonl says."""

    requests: tuple[NetworkRequest, ...] = ()
    unrecorded: int = 0


def join_network_lines(lines: Iterable[NetworkLine]) -> NetworkRecord:
    """Return the last state of each request, in the order in which they began."""
    requests: dict[int | str, NetworkRequest] = {}
    unrecorded = 0
    for number, line in enumerate(lines):
        if isinstance(line.root, UnrecordedRequests):
            unrecorded = line.root.unrecorded
        else:
            requests[f"line {number}" if line.root.id is None else line.root.id] = line.root
    return NetworkRecord(tuple(requests.values()), unrecorded)


class HostTraffic(Record):
    host: str
    requests: int
    sent_bytes: int
    received_bytes: int
    model_hub: bool = False


class NetworkUsage(Record):
    """What an agent did with its network, summed up."""

    policy: str
    requests: int = 0
    refused: int = 0
    failed: int = 0
    """Includes those that were cut."""
    record_fault: str = ""
    """Why the record of requests is not whole."""
    unrecorded: int = 0
    """Requests beyond the limit, which are refused and not recorded."""
    sent_bytes: int = 0
    received_bytes: int = 0
    hosts: tuple[HostTraffic, ...] = ()
    """Hosts that were reached, most received bytes first."""
    other_hosts: int = 0
    """Number of further hosts, which are not listed."""
    refused_hosts: tuple[str, ...] = ()
    """Hosts that were refused, most requests first; not all of them if they are many."""
    packages: tuple[str, ...] = ()
    """What was installed into the run's environment: NAME==VERSION by the names that pip made, and
    npm:NAME==VERSION by what the packages say."""

    @property
    def model_hubs(self) -> tuple[HostTraffic, ...]:
        """Model hubs that something was downloaded from."""
        return tuple(each for each in self.hosts if each.model_hub and each.received_bytes)


MOST_HOSTS, MOST_REFUSED_HOSTS = 50, 20


def sum_network_requests(
    policy: str,
    requests: Iterable[NetworkRequest],
    unrecorded: int = 0,
    packages: tuple[str, ...] = (),
    record_fault: str = "",
) -> NetworkUsage:
    reached: dict[str, HostTraffic] = {}
    refused: dict[str, int] = {}
    counts = {"requests": 0, "refused": 0, "failed": 0}
    for each in requests:
        counts["requests"] += 1
        counts["refused"] += each.outcome == "refused"
        counts["failed"] += each.outcome in ("failed", "cut", "open")
        if each.outcome == "refused":
            refused[each.host] = refused.get(each.host, 0) + 1
        if each.outcome != "refused" or each.sent_bytes or each.received_bytes:
            _add_traffic(reached, each)
    by_bytes = sorted(reached.values(), key=lambda each: (not each.model_hub, -each.received_bytes))
    listed = sorted(by_bytes[:MOST_HOSTS], key=lambda each: -each.received_bytes)
    return NetworkUsage(
        policy=policy,
        **counts,
        unrecorded=unrecorded,
        sent_bytes=sum(each.sent_bytes for each in reached.values()),
        received_bytes=sum(each.received_bytes for each in reached.values()),
        hosts=tuple(listed),
        other_hosts=len(by_bytes) - len(listed),
        refused_hosts=tuple(sorted(refused, key=lambda host: -refused[host])[:MOST_REFUSED_HOSTS]),
        packages=packages,
        record_fault=record_fault,
    )


def _add_traffic(reached: dict[str, HostTraffic], request: NetworkRequest) -> None:
    known = reached.get(request.host) or HostTraffic(
        host=request.host, requests=0, sent_bytes=0, received_bytes=0, model_hub=request.model_hub
    )
    reached[request.host] = known.model_copy(
        update={
            "requests": known.requests + 1,
            "sent_bytes": known.sent_bytes + request.sent_bytes,
            "received_bytes": known.received_bytes + request.received_bytes,
        }
    )
