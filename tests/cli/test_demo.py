"""`agent2rl demo`, from an installed wheel: everything that it needs is in the package."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.helpers.run_launcher import RunLauncher

ROOT = Path(__file__).resolve().parents[2]
HIDE_TORCH = "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
"""A sitecustomize.py that makes both packages impossible to import."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(place.glob("*.whl"))


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "agent2rl").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert files - packed == set()
    assert "agent2rl/models/seedling/files/model.safetensors" in packed


def test_the_demo_without_torch_says_how_to_install_it(launcher: RunLauncher) -> None:
    (launcher.home / "sitecustomize.py").write_text(HIDE_TORCH)
    done = subprocess.run(
        launcher.command("demo"),
        env=launcher.environment(PYTHONPATH=str(launcher.home)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: The demo trains a language model, but torch and transformers cannot be imported.\n"
        "       Install what is missing: pip install 'agent2rl[train]'\n"
        "       Without a GPU, get torch's build for CPUs first, which is much smaller:\n"
        "         pip install torch --index-url https://download.pytorch.org/whl/cpu\n"
        "       A run that needs neither: agent2rl run --task gsm8k-mini\n"
    )
    assert not launcher.runs.exists()


@pytest.mark.parametrize("page", ["README.md", "docs/installing.md", "docs/quickstart.md"])
def test_the_documented_line_for_the_demo_installs_what_it_needs(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"pip install (\S+) && agent2rl demo", text)
    assert lines, f"{page} does not say how to run the demo without a clone"
    assert set(lines) == {"'agent2rl[train]'"}


def test_a_wrong_option_of_the_demo_is_named_like_one_of_run(launcher: RunLauncher) -> None:
    done = launcher.cli("demo", "--budget", "soon")
    assert done.returncode == 2
    assert "'soon' is not a duration" in done.stderr


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@pytest.mark.thorough
def test_the_demo_runs_from_an_installed_wheel_without_a_clone(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    # The dependencies of this environment: sandboxes show the files of an environment, not links out of it.
    own = Path(sys.prefix) / packages.relative_to(tmp_path / "venv")
    shutil.copytree(own, packages, copy_function=link_or_copy, dirs_exist_ok=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(wheel)]
    subprocess.run(install, check=True, cwd=tmp_path)
    where = [str(python), "-c", "import agent2rl; print(agent2rl.__file__)"]
    assert str(packages) in subprocess.run(where, cwd=tmp_path, capture_output=True, text=True).stdout
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [str(python.with_name("agent2rl")), "demo", "--budget", "60s"],
        cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (next((home / "runs").glob("*/")) / "report" / "report.html").is_file()
