"""A language model of three million weights that reads its context well and knows no task.

How it was made and what it can do: docs/models/seedling.md.
"""

import shutil
from pathlib import Path

from agent2rl.core.model import ShippedModel

FILES = Path(__file__).with_name("files")


def write(model_dir: Path) -> None:
    for file in sorted(FILES.iterdir()):
        shutil.copyfile(file, model_dir / file.name)


MODEL: ShippedModel = ShippedModel(id="seedling", engine="transformers", write=write)
