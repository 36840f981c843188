"""Worlds as packages for verifiers. tests/interop/test_with_verifiers.py plays one with verifiers itself."""

import json
import tomllib
from pathlib import Path

import pytest

from agent2rl.core.errors import UserError
from agent2rl.environments.adapters import open_world
from agent2rl.interop.verifiers_export import export_verifiers_package
from agent2rl.run.settings import Settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    target = tmp_path_factory.mktemp("packages") / "alfworld-mini"
    name = export_verifiers_package("alfworld-mini", None, target, Settings(target.parent / "runs", cache))
    assert name == "agent2rl-alfworld-mini"
    return target


def test_a_package_has_the_training_games_and_no_expert(folder: Path) -> None:
    world = open_world(folder / "agent2rl_alfworld_mini" / "data")
    assert world.games
    assert world.expert is None
    rows = (folder / "agent2rl_alfworld_mini" / "data" / "train.jsonl").read_text().splitlines()
    assert {json.loads(row)["id"] for row in rows} == {game.id for game in world.games}


def test_a_package_can_be_installed_and_names_the_environment(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "agent2rl-alfworld-mini"
    assert "verifiers>=0.4,<0.5" in project["dependencies"]
    assert "WorldEnv" in (folder / "agent2rl_alfworld_mini" / "__init__.py").read_text()
    assert "EVALUATOR" in (folder / "agent2rl_alfworld_mini" / "eval.py").read_text()


def test_a_task_without_a_world_is_refused_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UserError, match="has no world to play in"):
        export_verifiers_package("gsm8k-mini", None, tmp_path / "new", Settings(tmp_path / "runs", cache))
    assert list(tmp_path.iterdir()) == []
