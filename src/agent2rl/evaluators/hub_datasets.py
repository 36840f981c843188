"""Official data sets out of the hub, at pinned revisions. What a row means is for the task."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent2rl.core.errors import UserError, WorldError
from agent2rl.evaluators.examples import Row

HUB_HINT = "Install agent2rl[hub] and check the network, or name a directory that has the files: --data-dir."


def read_parquet_rows(dataset: str, revision: str, file: str, columns: Sequence[str]) -> list[Row]:
    """The rows of one file of a data set, each with where it stands."""
    parquet = _import_module("pyarrow.parquet", dataset)
    path = download_file(dataset, revision, file)
    try:
        table = parquet.read_table(path, columns=list(columns))
    except Exception as error:  # pyarrow has errors of its own
        raise WorldError(f"The hub's {file} of {dataset} cannot be read: {error}", HUB_HINT) from error
    return [(f"{dataset}, {file}, row {number}", row) for number, row in enumerate(table.to_pylist())]


def download_file(dataset: str, revision: str, file: str) -> Path:
    """One file of a data set."""
    hub = _import_module("huggingface_hub", dataset)
    try:
        return Path(hub.hf_hub_download(dataset, file, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub and its HTTP client each have errors of their own
        raise WorldError(f"The hub did not give {dataset}'s {file}: {error}", HUB_HINT) from error


def _import_module(module: str, dataset: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{dataset} comes from the hub, and {error.name} is not installed.", HUB_HINT) from error
