"""Which hosts and addresses a policy allows, and what is recorded of requests."""

import pytest

from agent2rl.core.errors import UserError
from agent2rl.core.network import (
    NetworkRequest,
    choose_new_network_policy,
    is_model_hub,
    normalize_network_policy,
    parse_network_policy,
    sum_network_requests,
)
from agent2rl.core.records import Budget, RunSpec
from agent2rl.network_proxy.host_dialing import parse_upstream_proxy
from agent2rl.network_proxy.host_rules import (
    HostRules,
    PackageMirror,
    PolicyRefusal,
    is_public_address,
    parse_mirror,
)


def test_a_policy_has_one_normal_form_and_is_part_of_the_specification() -> None:
    assert normalize_network_policy("allow:B.org, *.a.org,b.org") == "allow:*.a.org,b.org"
    assert [normalize_network_policy(text) for text in ("none", " packages", "open")] == [
        "none",
        "packages",
        "open",
    ]
    about = {"task": "t", "agent": "a", "model": "m", "engine": "e", "budget": Budget(wall_seconds=1)}
    assert RunSpec(**about).network == "none"
    assert RunSpec(**about, network="allow:B.org").network == "allow:b.org"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all",
        "allow",
        "allow:",
        "packages:pypi.org",
        "none:a.org",
        "allow:10.0.0.1",
        "allow:https://a.org",
        "allow:a.org:443",
        "allow:a.org/x",
        "allow:localhost",
        "allow:*.org,a..org",
        "allow:a.org,,b.org",
        "open:packages",
        "allow:[::1]",
        "allow:ä.org",
    ],
)
def test_what_is_not_a_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_network_policy(text)


@pytest.mark.parametrize("text", ["open:example.org", "open:hf.co,*.example.org", "open:*.nvidia.com"])
def test_a_new_policy_names_nothing_but_model_hubs_after_open(text: str) -> None:
    with pytest.raises(ValueError, match="write allow:"):
        choose_new_network_policy(text)
    assert normalize_network_policy(text)  # runs of earlier versions have such policies


def test_model_hubs_and_hosts_below_them_may_be_named_after_open() -> None:
    text = "open:*.hf.co,cdn-lfs.hf.co,huggingface.co"
    assert choose_new_network_policy(text) == text
    assert choose_new_network_policy("allow:example.org") == "allow:example.org"


@pytest.mark.parametrize(
    ("policy", "allowed", "refused"),
    [
        ("packages", ["pypi.org", "deb.debian.org", "registry.npmjs.org"], ["example.org", "huggingface.co"]),
        ("allow:a.org", ["a.org"], ["b.a.org", "xa.org", "a.org.evil.com", "pypi.org"]),
        ("allow:*.a.org,packages", ["b.a.org", "c.b.a.org", "pypi.org"], ["a.org", "xa.org"]),
        (
            "open",
            ["example.org", "pypi.org"],
            ["huggingface.co", "cdn-lfs.hf.co", "x.hf.space", "www.kaggle.com"],
        ),
        (
            "open:huggingface.co",
            ["huggingface.co", "example.org"],
            ["cdn-lfs.huggingface.co", "modelscope.cn"],
        ),
        ("allow:huggingface.co", ["huggingface.co"], ["hf.co"]),
    ],
)
def test_a_policy_allows_its_hosts_and_no_others(policy: str, allowed: list[str], refused: list[str]) -> None:
    rules = HostRules(parse_network_policy(policy))
    for host in allowed:
        rules.require_allowed(host, 443, tunnel=True)
        rules.require_allowed(host, 80, tunnel=False)
    for host in refused:
        with pytest.raises(PolicyRefusal, match="does not allow"):
            rules.require_allowed(host, 443, tunnel=True)


def test_model_hubs_are_known_with_the_hosts_below_them() -> None:
    assert all(map(is_model_hub, ("huggingface.co", "cdn-lfs.hf.co", "cas-bridge.xethub.hf.co")))
    assert not any(map(is_model_hub, ("pypi.org", "nothuggingface.co", "huggingface.co.example.org")))


@pytest.mark.parametrize(
    "address",
    [
        *("93.184.215.14", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::8a", "2a00:1450:4001:80b::200e"),
        *("2606:4700:10::6816:4a5", "2a04:4e42:600::223", "2001:4860:4860::8888", "2a00:1::face:b00c"),
        *("2a00:1::5efe:5db8:d70e", "2a00:1::a:1", "2a00:1::1:7f00:1"),
    ],
)
def test_public_addresses_can_be_reached(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.10", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "203.0.113.7"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1"),
        *("::ffff:127.0.0.1", "::ffff:93.184.215.14", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1"),
        *("2002:7f00:1::1", "2002:a9fe:a9fe::", "2001:0:7f00:1::", "2001:db8::1", "3fff::1", "5f00::1"),
        *("2001:67c:2960:6464::a9fe:a9fe", "2001:67c:2960:6464::7f00:1", "2a00:1::c0a8:101", "2a00:1::a00:1"),
        *("2a00:1::5efe:a01:203", "2a00:1::200:5efe:127.0.0.1", "2a00:1::5efe:0.0.0.0"),
        *("2606:4700::1111%eth0", "2130706433", "0177.0.0.1", "0x7f.1", "", "example.org"),
    ],
)
def test_private_and_special_addresses_cannot_be_reached(address: str) -> None:
    assert not is_public_address(address)


def test_a_mirror_is_allowed_at_its_own_address_and_port_where_packages_are() -> None:
    mirror = parse_mirror("AGENT2RL_PYPI_MIRROR", "http://10.1.2.3:8081/simple")
    assert mirror == PackageMirror("http", "10.1.2.3", 8081)
    packages = HostRules(parse_network_policy("packages"), (mirror,))
    assert packages.find_mirror("10.1.2.3", 8081, tunnel=False) == mirror
    assert packages.find_mirror("10.1.2.3", 8082, tunnel=False) is None
    assert packages.find_mirror("10.1.2.3", 8081, tunnel=True) is None
    other = HostRules(parse_network_policy("allow:a.org"), (mirror,))
    assert other.find_mirror("10.1.2.3", 8081, tunnel=False) is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://a.org", "not an http"),
        ("a.org/simple", "not an http"),
        ("https://user:secret@a.org/simple", "contains a login"),
        ("http://127.0.0.1:3141/simple", "is the sandbox itself"),
        ("http://localhost/simple", "is the sandbox itself"),
        ("http://a.org:x/", "not a URL"),
    ],
)
def test_a_mirror_that_agents_cannot_use_is_refused(url: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as refused:
        parse_mirror("AGENT2RL_PYPI_MIRROR", url)
    assert "secret" not in str(refused.value)


def test_the_users_own_proxy_has_a_url_with_an_optional_login() -> None:
    proxy = parse_upstream_proxy("V", "http://user:p%40ss@proxy.example.org:3128")
    assert (proxy.host, proxy.port, proxy.authorization) == ("proxy.example.org", 3128, "Basic dXNlcjpwQHNz")
    for url in ("socks5://a.org", "proxy:3128", "http://"):
        with pytest.raises(UserError):
            parse_upstream_proxy("V", url)


def test_requests_are_summed_up_by_host_and_model_hubs_are_found() -> None:
    def make(host: str, received: int, outcome: str = "done", hub: bool = False) -> NetworkRequest:
        return NetworkRequest(
            at=0,
            seconds=1,
            method="GET",
            host=host,
            port=80,
            path="/",
            status=200,
            outcome=outcome,
            sent_bytes=10,
            received_bytes=received,
            model_hub=hub,
        )

    refused = make("b.org", 0, "refused").model_copy(update={"sent_bytes": 0})
    requests = [
        make("a.org", 5),
        make("a.org", 6),
        make("hf.co", 100, hub=True),
        refused,
        make("c.org", 1, "cut"),
    ]
    usage = sum_network_requests("open:hf.co", requests, packages=("x==1",))
    assert (usage.requests, usage.refused, usage.failed) == (5, 1, 1)
    assert (usage.received_bytes, usage.sent_bytes) == (112, 40)
    assert [(each.host, each.requests, each.received_bytes) for each in usage.hosts] == [
        ("hf.co", 1, 100),
        ("a.org", 2, 11),
        ("c.org", 1, 1),
    ]
    assert [each.host for each in usage.model_hubs] == ["hf.co"]
    assert usage.refused_hosts == ("b.org",)
