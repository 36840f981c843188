"""A program that prepares a base model by its name and prints what it was told."""

import json
from pathlib import Path
from typing import Any

from agent2rl.core.errors import Agent2RLError
from agent2rl.run.assets import pin_model_name, prepare_model_directory
from tests.helpers.forked_cli import become_program


def prepare_named_model(
    arguments: tuple[str, ...], directory: Path, environment: dict[str, str], output: Path, errors: Path
) -> None:
    become_program(directory, environment, output, errors)
    name, cache = arguments
    told: list[str] = []
    said: dict[str, Any] = {"told": told}
    try:
        said["name"] = pin_model_name(name)
        said["directory"] = str(prepare_model_directory(name, Path(cache), told.append))
    except Agent2RLError as error:
        said |= {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(said), flush=True)
