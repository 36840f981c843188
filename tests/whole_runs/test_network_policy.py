"""A whole run whose agent has a network: it installs packages from mirrors, and is refused the rest."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent2rl.core.records import RunResult
from agent2rl.record import ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_network_record
from agent2rl.run.package_overlay import can_use_apt
from agent2rl.system.packages import read_debian_codename
from tests.helpers.run_launcher import FinishedRun, RunLauncher
from tests.run.package_registry import serve_npm_registry, write_debian_repository, write_wheel

MIRROR_ADDRESS = "127.0.0.2"
"""A loopback address that is not the sandbox's own."""
AGENT = """
def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
    except OSError as error:
        return str(error)

def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr

def connect(address, port):
    try:
        socket.create_connection((address, port), timeout=5).close()
        return "connected"
    except OSError as error:
        return type(error).__name__

say(pip=run("pip", "install", "tiny-a2rl-wheel"))
if shutil.which("npm"):
    say(npm=run("npm", "install", "-g", "tiny-a2rl-node"), node=run("tiny-a2rl-node"))
if shutil.which("apt-get"):
    say(signature=run("apt-get", "update"))
    unsigned = ["-o", "Acquire::AllowInsecureRepositories=true", "-o", "APT::Get::AllowUnauthenticated=true"]
    say(
        apt=[run("apt-get", *unsigned, "update"), run("apt-get", *unsigned, "download", "tiny-a2rl-debian")],
        unpacked=run("sh", "-c", "dpkg-deb -x tiny-a2rl-debian_*.deb debian && cat debian/usr/share/tiny*"),
    )
say(
    value=run("python", "-c", "import tiny_a2rl_wheel, pydantic, agent2rl; print(tiny_a2rl_wheel.VALUE)"),
    time=call("GET", "/time")["http"],
    refused=fetch("http://exfiltrated-secret.example.org/x"),
    metadata=fetch("http://169.254.169.254/latest/meta-data/"),
    hub=fetch("https://huggingface.co/x"),
    around=connect("127.0.0.2", int(os.environ["PIP_INDEX_URL"].split(":")[2].split("/")[0])),
    instructions=(WORKSPACE / "instructions.md").read_text(),
    environment=dict(os.environ),
)
submit(trained("v1"))
"""


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_folders(folder: Path) -> Iterator[str]:
    """The URL of an index with one wheel, in pip's simple format, beside a repository of Debian packages."""
    pages = folder / "simple" / "tiny-a2rl-wheel"
    write_wheel(pages, "tiny_a2rl_wheel", "1.5", "VALUE = 'installed'\n")
    wheel = next(pages.glob("*.whl")).name
    (pages / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel}">{wheel}</a>')
    write_debian_repository(
        folder / "debian", read_debian_codename(), "tiny-a2rl-debian", "1.7", "unpacked\n"
    )
    handler = partial(_QuietHandler, directory=str(folder))
    try:
        server = ThreadingHTTPServer((MIRROR_ADDRESS, 0), handler)
    except OSError as error:
        pytest.skip(f"no second loopback address here: {error}")
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://{MIRROR_ADDRESS}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def network_run(shared_launcher: RunLauncher, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    with serve_folders(tmp_path_factory.mktemp("index")) as url, serve_npm_registry(MIRROR_ADDRESS) as npm:
        npm.publish("tiny-a2rl-node", "1.6.0", "#!/usr/bin/env node\nconsole.log('started')\n")
        mirrors = {"PYPI": f"{url}/simple", "NPM": npm.url, "DEBIAN": f"{url}/debian"}
        variables = {f"AGENT2RL_{name}_MIRROR": mirror for name, mirror in mirrors.items()}
        return shared_launcher.run(AGENT, "--network", "packages", **variables)


def test_pip_install_works_in_the_sandbox_without_options(network_run: FinishedRun) -> None:
    said = network_run.said
    assert said["pip"][0] == 0, said["pip"][1]
    assert said["value"] == [0, "installed\n"]
    assert said["time"] == 200
    assert network_run.result.scored == 1
    assert "python" not in [path.name for path in network_run.paths.workspace.iterdir()]
    assert not network_run.paths.scratch.exists()


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_installs_programs_into_the_runs_own_environment(network_run: FinishedRun) -> None:
    said = network_run.said
    assert said["npm"][0] == 0, said["npm"][1]
    assert said["node"] == [0, "started\n"]
    assert network_run.result.network is not None
    assert "npm:tiny-a2rl-node==1.6.0" in network_run.result.network.packages


@pytest.mark.skipif(not can_use_apt("bubblewrap"), reason="apt-get or the keys of Debian are not installed")
def test_apt_downloads_packages_and_insists_on_debians_signature(network_run: FinishedRun) -> None:
    said = network_run.said
    assert said["signature"][0] != 0
    assert "is not signed" in said["signature"][1]
    update, download = said["apt"]
    assert update[0] == 0, update[1]
    assert download[0] == 0, download[1]
    assert said["unpacked"] == [0, "unpacked\n"]


def test_the_agent_reaches_nothing_else(network_run: FinishedRun) -> None:
    said = network_run.said
    assert said["refused"][0] == said["metadata"][0] == 403
    assert "does not allow exfiltrated-secret.example.org" in said["refused"][1]
    assert "403" in said["hub"]
    assert said["around"] in ("ConnectionRefusedError", "OSError")


def test_the_agent_is_told_which_network_it_has_and_sees_no_path_of_this_computer(
    network_run: FinishedRun,
) -> None:
    instructions = " ".join(network_run.said["instructions"].split())
    assert "A proxy lets you download from the package registries of PyPI" in instructions
    variables = network_run.said["environment"]
    assert variables["HTTPS_PROXY"].startswith("http://127.0.0.1:")
    assert not [name for name, value in variables.items() if str(network_run.paths.root) in value]


def test_every_request_is_recorded_and_pinned(shared_launcher: RunLauncher, network_run: FinishedRun) -> None:
    paths, usage = network_run.paths, network_run.result.network
    requests = read_network_record(paths, []).requests
    assert not [each for each in requests if each.outcome == "open"]
    reached = [(each.host, each.outcome) for each in requests]
    assert reached.count((MIRROR_ADDRESS, "done")) >= 2
    assert ("exfiltrated-secret.example.org", "refused") in reached
    assert ("169.254.169.254", "refused") in reached
    assert ("huggingface.co", "refused") in reached
    assert usage is not None
    assert usage.policy == "packages"
    assert usage.record_fault == ""
    assert [name for name in usage.packages if not name.startswith("npm:")] == ["tiny-a2rl-wheel==1.5"]
    assert usage.refused == 3
    assert [each.host for each in usage.hosts] == [MIRROR_ADDRESS]
    assert json.loads(paths.spec.read_text())["network"] == "packages"
    assert "network" in [entry.kind for entry in ledger.read_ledger(paths.ledger, paths.ledger_head).entries]
    assert shared_launcher.cli("verify", network_run.result.run_id).returncode == 0
    recorded = paths.network.read_bytes()
    paths.network.write_bytes(recorded.replace(b"exfiltrated", b"wonderfully"))
    assert "network.jsonl was changed" in shared_launcher.cli("verify", network_run.result.run_id).stdout
    paths.network.write_bytes(recorded)


def test_the_network_is_shown_wherever_the_score_is(
    shared_launcher: RunLauncher, network_run: FinishedRun
) -> None:
    shown = " ".join(shared_launcher.cli("show", network_run.result.run_id).stdout.split())
    assert "packages: the registries of PyPI" in shown
    assert f"from {MIRROR_ADDRESS}" in shown
    report = shared_launcher.report(network_run)
    assert "with the network policy packages" in report
    assert "tiny-a2rl-wheel==1.5" in report
    board = shared_launcher.cli(
        "leaderboard", "--format", "markdown", "--task", "gsm8k-mini (network packages)"
    ).stdout
    assert "gsm8k-mini (network packages)" in board
    assert "reach hosts outside its sandbox" in board


UNFINISHED = """
if "RESUMED" not in os.environ:
    with urllib.request.urlopen(os.environ["PIP_INDEX_URL"] + "/endless", timeout=600) as response:
        response.read()
submit(trained("v1"))
"""


class _EndlessHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)
        self.rfile.read()  # until the connection ends

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.thorough
def test_a_request_that_is_open_when_the_harness_is_killed_is_in_the_record(launcher: RunLauncher) -> None:
    with (
        ThreadingHTTPServer((MIRROR_ADDRESS, 0), _EndlessHandler) as server,
        launcher.start(
            launcher.script(UNFINISHED),
            *("--sandbox", "local", "--network", "packages"),
            AGENT2RL_PYPI_MIRROR=f"http://{MIRROR_ADDRESS}:{server.server_port}/simple",
        ) as harness,
    ):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            deadline = time.monotonic() + 240
            while not (records := list(launcher.runs.glob("*/network.jsonl"))):
                assert harness.poll() is None, harness.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            harness.kill()
            harness.wait()
            server.shutdown()
            thread.join()
    paths = RunPaths(records[0].parent)
    (request,) = read_network_record(paths, []).requests
    assert (request.path, request.outcome) == ("/simple/endless", "open")
    resumed = launcher.cli("resume", paths.run_id, "--json")
    usage = RunResult.model_validate_json(resumed.stdout).network
    assert usage is not None, resumed.stderr
    assert (usage.requests, usage.failed, usage.record_fault) == (1, 1, "")
    (request,) = read_network_record(paths, []).requests
    assert (request.outcome, request.reason) == ("cut", "The harness ended before the request did.")
    assert launcher.cli("verify", paths.run_id).returncode == 0
