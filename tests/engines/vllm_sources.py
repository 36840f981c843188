"""The sources of vLLM at the version that we pin, read and never imported: what is defined in them.

A few files of the source distribution are fetched once from the registry that pip is configured with, and
kept under build/. Where the registry is out of reach, the tests that need them are skipped.
"""

import ast
import functools
import hashlib
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

BUILD = Path(__file__).resolve().parents[2] / "build"
KEPT_FILES = re.compile(
    r"[^/]+/(vllm/([^/]+|inputs/[^/]+|config/(__init__|model)|engine/arg_utils|entrypoints/llm)\.py)"
)
FETCH_SECONDS = 50
PYPI = "https://pypi.org/simple"


@dataclass(frozen=True)
class VllmSources:
    root: Path

    @functools.cache  # noqa: B019, there is one of these
    def module(self, name: str) -> tuple[ast.Module, bool]:
        """A module's tree, and whether it is a package."""
        base = self.root / name.replace(".", "/")
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        assert path.exists(), f"{name} is not in vLLM, or not among the files that are KEPT"
        return ast.parse(path.read_text(encoding="utf-8")), base.is_dir()

    def find(self, module: str, name: str) -> ast.ClassDef:
        """The class that `from module import name` gives."""
        tree, package = self.module(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name and node in tree.body:
                return node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(_resolve_import(module, package, node), alias.name)
        raise AssertionError(f"{module} has no class {name}")

    def parameters(self, module: str, name: str) -> set[str]:
        """The keyword arguments that calling the class takes."""
        found = self.find(module, name)
        init = list_methods(found).get("__init__")
        if init is None:
            return {field for field in list_fields(found) if not field.startswith("_")}
        names = list_keyword_parameters(init)
        if init.args.kwarg:
            assert name == "LLM", f"{name} passes keyword arguments on; to whom?"
            assert _forwards_kwargs(init, "EngineArgs"), (
                "LLM no longer passes its keyword arguments to EngineArgs"
            )
            names |= self.parameters("vllm.engine.arg_utils", "EngineArgs")
        return names

    def members(self, module: str, name: str) -> set[str]:
        """What an instance has: fields, methods and what its methods assign."""
        found = self.find(module, name)
        assigned = {
            node.attr
            for node in ast.walk(found)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
        return list_fields(found) | set(list_methods(found)) | assigned


def list_fields(found: ast.ClassDef) -> set[str]:
    return {
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def list_methods(found: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def list_keyword_parameters(function: ast.FunctionDef) -> set[str]:
    """The parameters of a method that can be given by name."""
    arguments = [*function.args.args, *function.args.kwonlyargs]
    return {argument.arg for argument in arguments} - {"self"}


def _forwards_kwargs(init: ast.FunctionDef, name: str) -> bool:
    """Whether `init` calls `name(…, **kwargs)`."""
    assert init.args.kwarg is not None
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and any(
            keyword.arg is None
            and isinstance(keyword.value, ast.Name)
            and keyword.value.id == init.args.kwarg.arg
            for keyword in node.keywords
        )
        for node in ast.walk(init)
    )


def _resolve_import(module: str, package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        assert node.module
        return node.module
    parents = module.split(".")
    parents = parents[: len(parents) - node.level + (1 if package else 0)]
    return ".".join([*parents, *(node.module or "").split(".")]).rstrip(".")


def load_sources(version: str) -> VllmSources:
    """Fetched the first time."""
    target = BUILD / f"vllm-{version}"
    if not target.is_dir():
        BUILD.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="vllm-", dir=BUILD))
        try:
            _fetch_sources(version, partial)
            partial.rename(target)
        except httpx.HTTPError as error:
            pytest.skip(f"the package registry is out of reach: {type(error).__name__}")
        except OSError:
            assert target.is_dir()  # another process was faster
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return VllmSources(target)


def _fetch_sources(version: str, target: Path) -> None:
    options = dict(_read_pip_options())
    verify = ssl.create_default_context(cafile=options.get("cert"))
    index = options.get("index-url", PYPI).rstrip("/") + "/vllm/"
    with httpx.Client(verify=verify, follow_redirects=True, timeout=20) as client:
        page = client.get(index).raise_for_status()
        link = re.search(rf'href="([^"]*/vllm-{re.escape(version)}\.tar\.gz)#sha256=(\w+)"', page.text)
        if not link:
            pytest.skip(f"the package registry has no source of vLLM {version}")
        with tempfile.TemporaryFile() as archive:
            digest, deadline = hashlib.sha256(), time.monotonic() + FETCH_SECONDS
            with client.stream("GET", urljoin(str(page.url), link[1])) as response:
                for piece in response.raise_for_status().iter_bytes():
                    archive.write(piece)
                    digest.update(piece)
                    if time.monotonic() > deadline:
                        pytest.skip("the package registry is too slow")
            assert digest.hexdigest() == link[2]
            archive.seek(0)
            with tarfile.open(fileobj=archive, mode="r:gz") as files:
                for member in files:
                    if (match := KEPT_FILES.fullmatch(member.name)) and (file := files.extractfile(member)):
                        path = target / match[1]
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(file.read())


def _read_pip_options() -> Iterator[tuple[str, str]]:
    """pip's configuration, the more particular after the more general: files, then the environment."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        yield name.rpartition(".")[2], "".join(shlex.split(value))
