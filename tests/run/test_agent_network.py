"""What a run's clients are configured with, and what the agent is told about its network."""

import json
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.core.network import parse_network_policy
from agent2rl.core.records import Budget, RunSpec
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_network_record
from agent2rl.run.agent_network import (
    NetworkSetup,
    choose_network_policy,
    make_client_variables,
    render_network_instructions,
)
from agent2rl.run.settings import Settings, read_settings


def make_spec(network: str) -> RunSpec:
    return RunSpec(task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=1), network=network)


def test_clients_use_the_proxy_for_everything_but_the_services_of_the_run() -> None:
    variables = make_client_variables({})
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "npm_config_https_proxy"):
        assert variables[name] == "{{NETWORK_PROXY_URL}}"
    assert variables["NO_PROXY"] == variables["no_proxy"] == "127.0.0.1,localhost,::1"
    assert "PIP_INDEX_URL" not in variables


def test_mirrors_replace_the_registries_of_their_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT2RL_PYPI_MIRROR", "http://10.0.0.1:81/simple http://10.0.0.2:82/")
    monkeypatch.setenv("AGENT2RL_NPM_MIRROR", "https://npm.example.org")
    monkeypatch.setenv("AGENT2RL_CONDA_MIRROR", "https://conda.example.org/all/")
    monkeypatch.setenv("AGENT2RL_DEBIAN_MIRROR", " ")
    mirrors = read_settings().mirrors
    variables = make_client_variables(mirrors)
    assert variables["PIP_INDEX_URL"] == variables["UV_DEFAULT_INDEX"] == "http://10.0.0.1:81/simple"
    assert variables["PIP_TRUSTED_HOST"] == "10.0.0.1:81 10.0.0.2:82"
    assert variables["npm_config_registry"] == "https://npm.example.org"
    assert variables["CONDA_CHANNEL_ALIAS"] == "https://conda.example.org/all/"
    channels = "https://conda.example.org/all/pkgs/main,https://conda.example.org/all/pkgs/r"
    assert variables["CONDA_DEFAULT_CHANNELS"] == channels
    assert set(mirrors) == {"pypi", "npm", "conda"}


def test_hosts_that_need_no_proxy_are_read_from_the_usual_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "mirror.example.org")
    assert read_settings().no_proxy == "mirror.example.org"


def test_the_default_channels_of_conda_may_be_named_after_the_mirror() -> None:
    urls = ("https://a.org/cloud", "https://files.a.org", "https://a.org/pkgs/main", "https://a.org/pkgs/r")
    variables = make_client_variables({"conda": urls})
    assert variables["CONDA_DEFAULT_CHANNELS"] == "https://a.org/pkgs/main,https://a.org/pkgs/r"


def test_wrong_settings_are_an_error_before_the_run_begins_unless_the_policy_needs_none() -> None:
    here = Path()
    mirrors = {"pypi": ("http://127.0.0.1:3141/simple",)}
    with pytest.raises(UserError, match="AGENT2RL_PYPI_MIRROR: inside the sandbox"):
        NetworkSetup(make_spec("packages"), Settings(runs=here, cache=here, mirrors=mirrors))
    NetworkSetup(make_spec("none"), Settings(runs=here, cache=here, mirrors=mirrors))
    with pytest.raises(UserError, match="AGENT2RL_NETWORK_PROXY"):
        NetworkSetup(make_spec("open"), Settings(runs=here, cache=here, network_proxy="socks5://a.org"))


def test_the_default_is_the_tasks() -> None:
    task = registry.find_task("gsm8k-mini")
    assert choose_network_policy(task, None) == "none"
    assert choose_network_policy(task, "packages") == "packages"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("none", "There is no network access except to the services that these pages name."),
        ("packages", "download from the package registries of PyPI, npm, conda and Debian. Programs find"),
        ("allow:a.org,b.org", "reach `a.org`, `b.org` by HTTP and HTTPS."),
        (
            "allow:a.org,packages",
            "reach `a.org` and the package registries of PyPI, npm, conda and Debian by",
        ),
        ("open", "reach public hosts by HTTP and HTTPS, except hubs of trained models. Programs"),
        ("open:hf.co", "except hubs of trained models; of those you may use `hf.co`."),
    ],
)
def test_the_agent_is_told_what_it_can_reach(policy: str, words: str) -> None:
    told = " ".join(render_network_instructions(parse_network_policy(policy)).split())
    assert words in told
    assert "these pages name." in told


def test_what_a_killed_harness_recorded_of_its_requests_is_read_with_the_old_form_of_the_file(
    tmp_path: Path,
) -> None:
    """Files of earlier versions have one line for each request."""
    paths = RunPaths(tmp_path)
    old = {"at": 1.0, "seconds": 1, "method": "GET", "host": "a.org", "port": 80, "path": "/", "status": 200}
    lines = [
        old | {"outcome": "done", "received_bytes": 7},
        old | {"outcome": "refused", "host": "b.org"},
        old | {"id": 3, "outcome": "open"},
        old | {"id": 4, "outcome": "open"},
        {"at": 2.0, "unrecorded": 5},
        old | {"id": 3, "outcome": "open", "received_bytes": 10},
        old | {"id": 4, "outcome": "done", "received_bytes": 20},
    ]
    torn = '{"at": 1.0, "seco'
    paths.network.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    notes: list[str] = []
    record = read_network_record(paths, notes)
    assert [(each.outcome, each.received_bytes) for each in record.requests] == [
        *(("done", 7), ("refused", 0)),
        *(("open", 10), ("done", 20)),
    ]
    assert (record.unrecorded, notes) == (5, [])


def test_the_agent_is_not_told_to_use_apt_where_there_is_none() -> None:
    policy = parse_network_policy("packages")
    assert "apt-get" in render_network_instructions(policy, has_apt=True)
    assert "apt-get" not in render_network_instructions(policy, has_apt=False)


def test_a_default_of_a_task_that_names_hosts_after_open_is_an_error() -> None:
    with pytest.raises(UserError, match=r"write allow:example\.org"):
        choose_network_policy(registry.find_task("gsm8k-mini"), "open:example.org")
