"""Describe how a folder's data script is run. `download.py` is the program that runs it, in a sandbox."""

import sys
from collections.abc import Sequence
from pathlib import Path

from agent2rl.core.task import DataScript
from agent2rl.evaluators.published.folder_files import TRAIN, hash_folder_files

DATA_MODULE, DATA_PROGRAM = "data.py", "download_data.py"


def make_data_script(folder: Path, files: Sequence[Path], name: str) -> DataScript | None:
    """Return the folder's data script; None if it has none, or if its data are there already."""
    data = folder / "data"
    filled = (data / TRAIN).is_file() if name == DATA_PROGRAM else data.is_dir() and any(data.iterdir())
    if filled or folder / name not in files:
        return None
    return DataScript(
        argv=(sys.executable, "-m", "agent2rl.evaluators.published.download", folder.name, name),
        folder=folder,
        files=tuple(files),
        sha256=hash_folder_files(folder, files),
        output=f"{folder.name}/data",
        name=name,
    )
