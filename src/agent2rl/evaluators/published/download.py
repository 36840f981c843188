"""Run a folder's data script, in a sandbox, in a copy of the folder.

python -m agent2rl.evaluators.published.download FOLDER data.py            calls download_train_data
python -m agent2rl.evaluators.published.download FOLDER download_data.py   runs the script itself
"""

import importlib
import os
import runpy
import sys
from pathlib import Path

from agent2rl.evaluators.published.contract import BENCHMARKS, BenchmarkConfig, install_contract
from agent2rl.evaluators.published.folder_files import DATA_PROGRAM


def main(name: str, script: str) -> None:
    folder = Path.cwd() / name
    os.chdir(folder)
    (folder / "data").mkdir(exist_ok=True)
    install_contract(BenchmarkConfig(id=name, bench_dir=str(folder)), folder)
    if script == DATA_PROGRAM:
        sys.path.insert(0, str(folder))
        sys.argv = [DATA_PROGRAM]
        runpy.run_path(str(folder / DATA_PROGRAM), run_name="__main__")
    else:
        importlib.import_module(f"{BENCHMARKS}.{name}.data").download_train_data(folder / "data")


if __name__ == "__main__":
    main(*sys.argv[1:])
