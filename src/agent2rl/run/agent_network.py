"""The agent's network: the proxy of the run, what its clients are configured with, and its instructions."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

from agent2rl.core.agent import Brief
from agent2rl.core.errors import UserError
from agent2rl.core.network import (
    PACKAGES,
    NetworkPolicy,
    NetworkUsage,
    choose_new_network_policy,
    parse_network_policy,
    sum_network_requests,
)
from agent2rl.core.records import RunSpec
from agent2rl.core.sandbox import ServiceSocket, url_placeholder
from agent2rl.core.task import Task
from agent2rl.network_proxy.host_dialing import parse_upstream_proxy
from agent2rl.network_proxy.host_rules import HostRules, parse_mirror
from agent2rl.network_proxy.request_log import NetworkRequestLog
from agent2rl.network_proxy.server import NetworkProxy, serve_network_proxy
from agent2rl.record.reader import read_network_record
from agent2rl.record.recorder import Recorder
from agent2rl.run.installed_packages import list_workspace_packages, sort_packages
from agent2rl.run.package_overlay import PackageOverlay
from agent2rl.run.settings import Settings

URL_VARIABLE = "NETWORK_PROXY_URL"
# Some clients read the names in capitals, others the small ones.
PROXY_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
    *("npm_config_proxy", "npm_config_https_proxy"),
)
NO_PROXY = "127.0.0.1,localhost,::1"
"""The services of the run are on the sandbox's own loopback."""
CLIENT_SETTINGS: Mapping[str, str] = {
    "NO_PROXY": NO_PROXY,
    "no_proxy": NO_PROXY,
    "npm_config_noproxy": NO_PROXY,
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "npm_config_update_notifier": "false",
}
MIRROR_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "pypi": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
    "npm": ("npm_config_registry",),
    "conda": ("CONDA_CHANNEL_ALIAS",),
    "debian": ("DEBIAN_MIRROR",),
}
"""Registry → the variables that give its clients the URL of a mirror."""


def choose_network_policy(task: Task, chosen: str | None) -> str:
    """Return the chosen policy, or the task's own."""
    try:
        return choose_new_network_policy(task.default_network if chosen is None else chosen)
    except ValueError as error:
        raise UserError(str(error)) from error


@dataclass(frozen=True)
class AgentNetwork:
    """The service socket of the proxy and the variables that lead to it; empty without a network."""

    sockets: tuple[ServiceSocket, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    package_overlay: PackageOverlay | None = None

    def add_to_brief(self, brief: Brief) -> Brief:
        """Add the variables, and the Python of the run's own environment."""
        python = str(self.package_overlay.interpreter) if self.package_overlay else brief.python
        return replace(brief, environment={**brief.environment, **self.environment}, python=python)


class NetworkSetup:
    """Check a run's network settings before the run begins, and open its network later."""

    def __init__(self, spec: RunSpec, settings: Settings) -> None:
        self.policy = parse_network_policy(spec.network)
        self._mirrors = settings.mirrors if self.policy.includes_packages else {}
        mirrors = tuple(
            parse_mirror(_name_variable(name), url) for name, urls in self._mirrors.items() for url in urls
        )
        self._rules = HostRules(self.policy, mirrors)
        proxy = settings.network_proxy
        self.usage: NetworkUsage | None = None
        """What the agent did with it; None until it is closed, or without a network."""
        self._upstream = (
            parse_upstream_proxy("AGENT2RL_NETWORK_PROXY", proxy, settings.no_proxy) if proxy else None
        )

    @contextmanager
    def open_network(
        self, package_overlay: PackageOverlay | None, recorder: Recorder
    ) -> Iterator[AgentNetwork]:
        """Serve the proxy. Afterwards nothing is connected any more, and the usage is recorded."""
        if self.policy.kind == "none":
            yield AgentNetwork()
            return
        log = NetworkRequestLog(
            recorder.record_network_line,
            earlier=read_network_record(recorder.paths, []),
            report_fault=partial(_report_fault, recorder),
        )
        proxy = NetworkProxy(self._rules, log, self._upstream)
        try:
            with serve_network_proxy(proxy) as socket:
                sockets = (ServiceSocket(URL_VARIABLE, socket),)
                yield AgentNetwork(
                    sockets, make_client_variables(self._mirrors, package_overlay), package_overlay
                )
        finally:
            installed = package_overlay.list_installed_packages() if package_overlay else set()
            packages = sort_packages(installed | list_workspace_packages(recorder.paths.workspace))
            self.usage = sum_network_requests(
                str(self.policy), log.requests, log.unrecorded, packages, log.fault
            )
            recorder.record_network_usage(self.usage)


def _report_fault(recorder: Recorder, fault: str) -> None:
    with suppress(OSError):  # the timeline may be on the same full disk
        recorder.record_event("warning", text=f"{fault} Further requests of the agent are refused.")


def _name_variable(registry: str) -> str:
    return f"AGENT2RL_{registry.upper()}_MIRROR"


def make_client_variables(
    mirrors: Mapping[str, Sequence[str]], package_overlay: PackageOverlay | None = None
) -> dict[str, str]:
    """Return the environment variables with which ordinary clients use the proxy, the mirrors and the
    overlay."""
    variables = {name: url_placeholder(URL_VARIABLE) for name in PROXY_VARIABLES} | dict(CLIENT_SETTINGS)
    if package_overlay:
        variables |= package_overlay.make_client_variables()
    for registry, urls in mirrors.items():
        variables |= dict.fromkeys(MIRROR_VARIABLES[registry], urls[0])
    if "conda" in mirrors:
        variables["CONDA_DEFAULT_CHANNELS"] = ",".join(_list_default_channels(*mirrors["conda"]))
    trusted = [urlsplit(url).netloc for url in mirrors.get("pypi", ()) if url.startswith("http://")]
    return variables | ({"PIP_TRUSTED_HOST": " ".join(trusted)} if trusted else {})


def _list_default_channels(mirror: str, *others: str) -> list[str]:
    """Return what conda's `defaults` means: the channels named after the mirror, or those below it."""
    named = [url for url in others if urlsplit(url).path.strip("/")]
    return named or [f"{mirror.rstrip('/')}/pkgs/{name}" for name in ("main", "r")]


# What the agent is told.

NO_NETWORK = "There is no network access except to the services that these pages name."
REGISTRIES = "the package registries of PyPI, npm, conda and Debian"
RECORDED = (
    "Programs find the proxy in `HTTP_PROXY` and `HTTPS_PROXY`. Every request is recorded. `pip install "
    "NAME` and `npm install -g NAME` install into an environment that is deleted after the run."
)
DEBIAN = (
    "After `apt-get update`, `apt-get download NAME` fetches a Debian package, and `dpkg-deb -x` unpacks it."
)
NO_MORE = "There is no other network access except to the services that these pages name."


def render_network_instructions(policy: NetworkPolicy, has_apt: bool = True) -> str:
    """Return the paragraph that says which network the agent has."""
    if policy.kind == "none":
        return textwrap.fill(NO_NETWORK, 100)
    debian = [DEBIAN] if policy.includes_packages and has_apt else []
    sentences = [_describe_reach(policy), RECORDED, *debian, NO_MORE]
    return textwrap.fill(" ".join(sentences), 100, break_long_words=False, break_on_hyphens=False)


def _describe_reach(policy: NetworkPolicy) -> str:
    names = ", ".join(f"`{host}`" for host in policy.hosts if host != PACKAGES)
    if policy.kind == "packages":
        return f"A proxy lets you download from {REGISTRIES}."
    if policy.kind == "allow":
        also = f"{' and ' if names else ''}{REGISTRIES}" if policy.includes_packages else ""
        return f"A proxy lets you reach {names}{also} by HTTP and HTTPS."
    hubs = f"; of those you may use {names}" if names else ""
    return f"A proxy lets you reach public hosts by HTTP and HTTPS, except hubs of trained models{hubs}."
