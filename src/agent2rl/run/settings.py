"""Settings from environment variables. The process environment is read only here.

There are two exceptions: programs in a sandbox read the variables that they get there, and
`engines/openai_api` reads its own key, so that no record contains it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECRET_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.I)
URL_PASSWORD = re.compile(r"://[^\s/:@]+:([^\s/@]+)@")
REGISTRIES = ("pypi", "npm", "conda", "debian")


@dataclass(frozen=True)
class Settings:
    runs: Path
    """AGENT2RL_RUNS: where runs are kept (./runs)."""
    cache: Path
    """AGENT2RL_CACHE: prepared models, data and baselines (~/.cache/agent2rl)."""
    tasks: tuple[Path, ...] = ()
    """AGENT2RL_TASKS: directories of task folders, separated by colons."""
    agents: tuple[Path, ...] = ()
    """AGENT2RL_AGENTS: directories of agent folders, separated by colons."""
    downloads: tuple[Path, ...] = ()
    """XDG_CACHE_HOME, HF_HOME, HF_HUB_CACHE, HF_DATASETS_CACHE: where official files are downloaded to, like
    ~/.cache. No sandbox shows them."""
    gpus: str | None = None
    """CUDA_VISIBLE_DEVICES: the GPUs of the agent and of grading, if not all are to be used."""
    python_path: tuple[Path, ...] = ()
    """PYTHONPATH: where plugins named package.module:NAME are found, in the grading child too."""
    prices: Path | None = None
    """AGENT2RL_PRICES: a price table of driver LLMs that takes precedence over the shipped one."""
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """AGENT2RL_PYPI_MIRROR, AGENT2RL_NPM_MIRROR, AGENT2RL_CONDA_MIRROR, AGENT2RL_DEBIAN_MIRROR: URLs of
    package registries that agents use in place of the public ones, with `--network packages` or more. They
    may have private addresses. URLs of further hosts that the first one links to may follow, after spaces."""
    network_proxy: str | None = None
    """AGENT2RL_NETWORK_PROXY: the HTTP proxy that agents' requests to public hosts must go through, if this
    machine has no other way out: http://[user:password@]host:port."""
    no_proxy: str = ""
    """NO_PROXY: hosts that are reached without that proxy."""
    display: bool = False
    """DISPLAY or WAYLAND_DISPLAY: whether a browser can be opened."""


def read_settings() -> Settings:
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Settings(
        runs=Path(os.environ.get("AGENT2RL_RUNS") or "runs").absolute(),
        cache=Path(os.environ.get("AGENT2RL_CACHE") or Path(cache_home) / "agent2rl").absolute(),
        tasks=_read_path_list("AGENT2RL_TASKS"),
        agents=_read_path_list("AGENT2RL_AGENTS"),
        downloads=(*_find_download_caches(), Path(cache_home).absolute()),
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        python_path=tuple(path for path in _read_path_list("PYTHONPATH") if path.exists()),
        prices=Path(prices).absolute() if (prices := os.environ.get("AGENT2RL_PRICES")) else None,
        mirrors=_read_mirrors(),
        network_proxy=os.environ.get("AGENT2RL_NETWORK_PROXY") or None,
        no_proxy=os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "",
        display=bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")),
    )


def read_secrets(names: Iterable[str]) -> dict[str, str]:
    """Return the named variables that are set; an agent gets no others."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def read_user_secrets() -> dict[str, str]:
    """Return every variable whose name says that it is secret, and the passwords of URLs in variables.

    Only for finding them in what is about to be published.
    """
    secrets = {
        name: value
        for name, value in os.environ.items()
        # A path to a file with a secret is no secret itself.
        if SECRET_NAME.search(name) and not value.startswith(("/", "~", "."))
    }
    for name, value in os.environ.items():
        if match := URL_PASSWORD.search(value):
            secrets[f"the password in {name}"] = match[1]
    return secrets


def _read_mirrors() -> dict[str, tuple[str, ...]]:
    named = {name: os.environ.get(f"AGENT2RL_{name.upper()}_MIRROR", "") for name in REGISTRIES}
    return {name: tuple(urls.split()) for name, urls in named.items() if urls.split()}


def _find_download_caches() -> tuple[Path, ...]:
    named = (os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"))
    return (*(Path(name).expanduser().absolute() for name in named if name), Path.home() / ".cache")


def _read_path_list(variable: str) -> tuple[Path, ...]:
    return tuple(Path(part).absolute() for part in os.environ.get(variable, "").split(os.pathsep) if part)
