"""Names to plugins."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import UserError


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        registry.find_task("gsm8k-mimi")
    assert "Did you mean 'gsm8k-mini'?" in caught.value.hint
    assert "gsm8k" in caught.value.hint


def test_a_miniature_is_found_in_its_tasks_package() -> None:
    assert registry.find_task("gsm8k-mini").id == "gsm8k-mini"


def test_a_plugin_without_argument_refuses_one() -> None:
    with pytest.raises(UserError, match="takes no argument"):
        registry.find_agent("nop:now")


def test_a_plugin_that_needs_an_argument_says_so() -> None:
    with pytest.raises(UserError, match="needs an argument"):
        registry.find_task("folder")


def test_any_importable_attribute_is_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "plugin.py").write_text("from agent2rl.agents.nop import Nop\nLAZY = Nop()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.find_agent("mine.plugin:LAZY").secrets == ()
    with pytest.raises(UserError, match="has no 'BUSY'"):
        registry.find_agent("mine.plugin:BUSY")
    with pytest.raises(UserError, match="Cannot import"):
        registry.find_agent("mine.other:LAZY")


def test_a_folder_of_the_users_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("name: mine\n")
    assert registry.resolve_folder_name("mine", (tmp_path,)) == f"folder:{tmp_path / 'mine'}"
    assert registry.resolve_folder_name("other", (tmp_path,)) == "other"


@pytest.mark.parametrize("kind", ["tasks", "agents", "models", "engines", "sandboxes"])
def test_every_listed_plugin_has_a_summary(kind: registry.PluginKind) -> None:
    entries = registry.list_entries(kind)
    assert entries
    assert all(entry.summary for entry in entries)


def test_helpers_beside_plugins_are_not_listed() -> None:
    assert {"seccomp", "selftest", "supervise"}.isdisjoint(registry.list_names("sandboxes"))


def test_listing_and_help_import_nothing_heavy() -> None:
    code = (
        "import sys; from agent2rl import registry;"
        "registry.list_entries('tasks'); registry.list_entries('engines');"
        "import agent2rl.cli.main; heavy = {'torch', 'transformers', 'vllm', 'trl', 'datasets'};"
        "heavy |= {'numpy', 'scipy', 'fastapi', 'pyarrow'};"
        "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
