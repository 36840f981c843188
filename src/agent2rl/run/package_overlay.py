"""A writable environment on top of the agent's Python, so that package clients work during a run.

It is a virtual environment in the run's scratch directory, which is deleted when the run ends. It sees all
packages of the agent's Python, and its own packages come first. `npm install -g` installs here too, and
apt keeps its settings, lists and downloads here. The certificates that this computer trusts are here, too.

The harness writes it and starts nothing from it. Later the agent owns it.
"""

import importlib.resources
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from agent2rl.core.sandbox import Mount, SandboxPython
from agent2rl.record.untrusted_files import list_names
from agent2rl.run.agent_python import AgentPython
from agent2rl.run.installed_packages import read_node_packages, read_python_packages
from agent2rl.system.packages import read_debian_codename

SEEN_AT = PurePosixPath("/opt/agent-python")
NODE_MODULES = PurePosixPath("lib/node_modules")
PIP_PROGRAM = """\
#!{python}
import sys
from pip._internal.cli.main import main
sys.exit(main())
"""
DEBIAN_URL = "http://deb.debian.org/debian"
"""Not https, so that the record of requests has the paths. apt checks Debian's signatures."""
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
APT_CONFIG = "etc/apt/apt.conf"
APT_FOLDERS = (
    *("etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d"),
    *("var/lib/apt/lists/partial", "var/lib/dpkg", "var/cache/apt/archives/partial", "var/log/apt"),
)
APT_SETTINGS = """\
Dir::Etc "{prefix}/etc/apt";
Dir::State "{prefix}/var/lib/apt";
Dir::State::status "{prefix}/var/lib/dpkg/status";
Dir::Cache "{prefix}/var/cache/apt";
Dir::Log "{prefix}/var/log/apt";
APT::Architecture "{machine}";
APT::Architectures {{ "{machine}"; }};
Acquire::Languages "none";
Acquire::http::Pipeline-Depth "0";
"""
"""The proxy answers one request per connection, so requests are not sent ahead."""
APT_SOURCES = """\
Types: deb
URIs: {url}
Suites: {release}
Components: main
Signed-By: {keyring}
"""
CERTIFICATE_BUNDLES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),
    Path("/etc/pki/tls/certs/ca-bundle.crt"),
    Path("/etc/ssl/ca-bundle.pem"),
)
"""Files with the certificates that this computer trusts."""
CERTIFICATES = PurePosixPath("etc/ssl/ca-certificates.crt")
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")
"""Clients that bring certificates of their own would not trust a mirror inside an organisation."""


def can_use_apt(sandbox: str, keyring: Path = DEBIAN_KEYRING) -> bool:
    """Return whether a sandbox shows apt and the keys of Debian. One with an image shows the image's."""
    has_image = ":" in sandbox
    return not has_image and shutil.which("apt-get", path=os.defpath) is not None and keyring.is_file()


@dataclass(frozen=True)
class PackageOverlay:
    prefix: Path
    """Directory of the environment on this computer."""
    seen_at: PurePosixPath
    """Its path inside the sandbox."""
    base: AgentPython

    @property
    def interpreter(self) -> Path:
        """The interpreter, as the agent sees it."""
        return Path(self.seen_at / "bin" / "python")

    @property
    def _site_packages(self) -> PurePosixPath:
        short = ".".join(self.base.lock.version.split(".")[:2])
        return PurePosixPath("lib") / f"python{short}" / "site-packages"

    @classmethod
    def place_in(cls, scratch: Path, base: AgentPython, same_paths: bool) -> Self:
        """Return the overlay of a run. `same_paths`: the sandbox has the paths of this computer."""
        prefix = scratch / "python"
        return cls(prefix, PurePosixPath(prefix) if same_paths else SEEN_AT, base)

    def list_mounts(self) -> tuple[Mount, ...]:
        return (*self.base.list_mounts(), Mount(self.prefix, str(self.seen_at), writable=True))

    def make_sandbox_python(self) -> SandboxPython:
        below = self.base.make_sandbox_python() or SandboxPython(Path(sys.executable).parent)
        variables = {**below.variables, "VIRTUAL_ENV": str(self.seen_at)}
        return SandboxPython(self.interpreter.parent, variables, more_bins=(below.bin,))

    def make_client_variables(self) -> Mapping[str, str]:
        """Return the variables with which clients find their files here."""
        variables = {"npm_config_prefix": str(self.seen_at)}
        if (self.prefix / APT_CONFIG).is_file():
            variables["APT_CONFIG"] = str(self.seen_at / APT_CONFIG)
        if (self.prefix / CERTIFICATES).is_file():
            variables |= dict.fromkeys(CERTIFICATE_VARIABLES, str(self.seen_at / CERTIFICATES))
        return variables

    def build(
        self, debian_url: str | None = DEBIAN_URL, bundles: Sequence[Path] = CERTIFICATE_BUNDLES
    ) -> None:
        """Create the environment, unless an earlier start of the run did. Without a URL, apt is left out."""
        if self.prefix.exists():
            return
        packages = self.prefix / self._site_packages
        programs = self.prefix / "bin"
        for directory in (packages, programs):
            directory.mkdir(parents=True)
        # The Python that a virtual environment was made from has packages that it does not show.
        shared = "false" if self.base.lock.kind == "venv" else "true"
        settings = (
            f"home = {self.base.find_home()}\ninclude-system-site-packages = {shared}\n"
            f"version = {self.base.lock.version}\n"
        )
        (self.prefix / "pyvenv.cfg").write_text(settings, encoding="utf-8")
        # Unlike a plain path, `addsitedir` also reads the .pth files there, such as editable
        # installs.
        lines = [f"import site; site.addsitedir({str(path)!r})\n" for path in self.base.packages]
        (packages / "_agent2rl_base.pth").write_text("".join(lines), encoding="utf-8")
        for name in ("python", "python3", f"python{packages.parent.name.removeprefix('python')}"):
            (programs / name).symlink_to(self.base.interpreter)
        if not any((directory / "pip").is_dir() for directory in self.base.packages):
            _unpack_bundled_pip(packages)
        for name in ("pip", "pip3"):
            (programs / name).write_text(PIP_PROGRAM.format(python=self.interpreter), encoding="utf-8")
            (programs / name).chmod(0o755)
        self._copy_certificates(bundles)
        if debian_url:
            self._configure_apt(debian_url)
        # Whatever the umask is: the sandbox's user may be another one.
        for path, *_ in os.walk(self.prefix):
            Path(path).chmod(0o755)

    def _copy_certificates(self, bundles: Sequence[Path]) -> None:
        """Copy the certificates that this computer trusts: a sandbox with an image does not show the file."""
        bundle = next((path for path in bundles if path.is_file()), None)
        if bundle:
            (self.prefix / CERTIFICATES).parent.mkdir(parents=True)
            shutil.copyfile(bundle, self.prefix / CERTIFICATES)
            (self.prefix / CERTIFICATES).chmod(0o644)

    def _configure_apt(self, url: str) -> None:
        """Let apt use directories of its own and one source. No sandbox shows the settings in /etc/apt."""
        for name in APT_FOLDERS:
            (self.prefix / name).mkdir(parents=True)
        machine = DEBIAN_MACHINES.get(platform.machine(), platform.machine())
        files = {
            APT_CONFIG: APT_SETTINGS.format(prefix=self.seen_at, machine=machine),
            "etc/apt/sources.list.d/debian.sources": APT_SOURCES.format(
                url=url, release=read_debian_codename(), keyring=DEBIAN_KEYRING
            ),
            "var/lib/dpkg/status": "",
        }
        for name, text in files.items():
            (self.prefix / name).write_text(text, encoding="utf-8")
            (self.prefix / name).chmod(0o644)

    def list_installed_packages(self) -> set[str]:
        """Return what pip and npm installed here: NAME==VERSION, and for npm npm:NAME==VERSION."""
        names = list_names(self.prefix, self._site_packages)
        return {*read_python_packages(names), *read_node_packages(self.prefix, NODE_MODULES)}


def _unpack_bundled_pip(target: Path) -> None:
    """Unpack the pip that this Python ships, if it ships one."""
    try:
        bundled = importlib.resources.files("ensurepip") / "_bundled"
        wheels = [each for each in bundled.iterdir() if each.name.startswith("pip-")]
    except (ModuleNotFoundError, OSError):
        return
    for wheel in wheels[:1]:
        with wheel.open("rb") as file, zipfile.ZipFile(file) as archive:
            archive.extractall(target)
