"""Official data sets out of the hub, at pinned revisions. What a row means is for the task."""

import importlib
from collections.abc import Sequence

from agent2rl.core.errors import UserError, WorldError
from agent2rl.evaluators.examples import Row

MEND = "Install agent2rl[hub] and check the network, or name a directory that has the files: --data-dir."


def parquet_rows(dataset: str, revision: str, file: str, columns: Sequence[str]) -> list[Row]:
    """The rows of one file of a data set, each with where it stands."""
    try:
        hub = importlib.import_module("huggingface_hub")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(f"{dataset} comes from the hub, and {error.name} is not installed.", MEND) from error
    try:
        path = hub.hf_hub_download(dataset, file, repo_type="dataset", revision=revision)
        table = parquet.read_table(path, columns=list(columns))
    except Exception as error:  # the hub, its HTTP client and pyarrow each have errors of their own
        raise WorldError(f"The hub did not give {dataset}'s {file}: {error}", MEND) from error
    return [(f"{dataset}, {file}, row {number}", row) for number, row in enumerate(table.to_pylist())]
