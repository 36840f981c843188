"""Which engine runs a model where the user names none."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from agent2rl.run.assets import choose_default_engine
from agent2rl.run.machine import list_visible_gpus

GPU = ("0",)


@pytest.fixture
def vllm_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is there and must not be imported."""
    (tmp_path / "packages" / "vllm").mkdir(parents=True)
    (tmp_path / "packages" / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))


def test_a_directory_and_a_shipped_language_model_run_with_transformers(tmp_path: Path) -> None:
    assert choose_default_engine(str(tmp_path), ()) == "transformers"
    assert choose_default_engine("seedling", ()) == "transformers"


@pytest.mark.usefixtures("vllm_installed")
def test_they_run_with_vllm_where_it_is_installed_and_a_gpu_is_visible(tmp_path: Path) -> None:
    assert choose_default_engine(str(tmp_path), GPU) == "vllm"
    assert choose_default_engine("seedling", GPU) == "vllm"


@pytest.mark.usefixtures("vllm_installed")
def test_vllm_is_not_taken_without_a_gpu(tmp_path: Path) -> None:
    assert choose_default_engine(str(tmp_path), list_visible_gpus("")) == "transformers"
    assert choose_default_engine(str(tmp_path), list_visible_gpus("-1")) == "transformers"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_gpu_alone_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()  # a directory of that name is no package
    monkeypatch.syspath_prepend(str(tmp_path))
    assert choose_default_engine(str(tmp_path), GPU) == "transformers"


@pytest.mark.usefixtures("vllm_installed")
def test_a_model_that_asks_for_another_engine_gets_it() -> None:
    assert choose_default_engine("abacus", GPU) == "scripted:agent2rl.models.abacus:solver"


def test_choosing_loads_no_heavy_library() -> None:
    program = (
        "import sys; from agent2rl.run.assets import choose_default_engine\n"
        "choose_default_engine('seedling', ('0',))\n"
        "sys.exit(bool({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("visible", "found"),
    [("", ()), ("0", ("0",)), ("1, 3", ("1", "3")), ("-1", ()), ("2,-1,3", ("2",)), ("GPU-ab,", ("GPU-ab",))],
)
def test_the_users_variable_says_which_gpus_there_are(visible: str, found: tuple[str, ...]) -> None:
    assert list_visible_gpus(visible) == found
