"""Names to plugins."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import UserError

PACKAGE = Path(registry.__file__).parent


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


def defines_plugin(tree: ast.Module, kind: registry.PluginKind) -> bool:
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    targets = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    targets += [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return bool(names & {registry.CONSTANT[kind], "parse"})


@pytest.mark.parametrize("kind", registry.CONSTANT)
def test_every_plugin_is_listed_with_a_summary(kind: registry.PluginKind) -> None:
    """Here their modules are parsed; the registry, which must be fast, searches their text."""
    root = PACKAGE / kind
    files = [*root.glob("*.py"), *root.glob("*/__init__.py"), *root.glob("*/mini.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    summaries = [ast.get_docstring(tree) or "" for tree in trees if defines_plugin(tree, kind)]
    entries = registry.list_entries(kind)
    assert entries
    assert all(entry.summary for entry in entries)
    assert sorted(entry.summary for entry in entries) == sorted(text.split("\n")[0] for text in summaries)


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
