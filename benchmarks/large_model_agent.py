"""The agent of `benchmarks.large_model_run`: submits all weights, slightly changed, and then an adapter.

It trains nothing. It prints what an agent sees: how long it waits for each verdict.
"""

import json
import os
import shutil
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

PIECE_VALUES = 1 << 24
RANK = 16
SCALE = 0.01
"""Of the adapter's matrices; their product moves the base model's values by about a hundredth."""


def main() -> None:
    base, output = Path(os.environ["MODEL_PATH"]), Path(os.environ["OUTPUT_DIR"])
    began = time.time()
    write_moved_weights(base, output / "full")
    report("wrote full weights", began)
    submit_model(output / "full")
    shutil.rmtree(output / "full")
    began = time.time()
    write_adapter(base, output / "adapter")
    report("wrote an adapter", began)
    submit_model(output / "adapter")


def write_moved_weights(base: Path, target: Path) -> None:
    """Copy the base model with the last bit of every value flipped."""
    target.mkdir(parents=True)
    shards = sorted(base.glob("*.safetensors"))
    for path in set(base.iterdir()).difference(shards):
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    with ThreadPoolExecutor(len(shards)) as writers:
        list(writers.map(lambda shard: _move_shard(shard, target / shard.name), shards))


def _move_shard(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("wb") as writing:
        length = reading.read(8)
        writing.write(length + reading.read(int.from_bytes(length, "little")))
        while piece := reading.read(2 * PIECE_VALUES):
            writing.write((np.frombuffer(piece, np.uint16) ^ 1).data)


def write_adapter(base: Path, target: Path) -> None:
    """Write a LoRA of the query and value projections as peft saves it, in float32."""
    target.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "base",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (target / "adapter_config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    tensors = {}
    for name, (rows, columns) in read_matrices(base).items():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            place = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{place}.lora_A.weight"] = SCALE * random.standard_normal((RANK, columns), np.float32)
            tensors[f"{place}.lora_B.weight"] = SCALE * random.standard_normal((rows, RANK), np.float32)
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (target / "adapter_model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(tensor.tobytes() for tensor in tensors.values())


def read_matrices(model: Path) -> dict[str, tuple[int, int]]:
    shapes = {}
    for shard in sorted(model.glob("*.safetensors")):
        with shard.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    return {name: (shape[0], shape[1]) for name, shape in shapes.items() if len(shape) == 2}


def submit_model(model: Path) -> Any:
    request = urllib.request.Request(
        os.environ["GRADING_SERVER_URL"] + "/submit",
        json.dumps({"model_path": str(model)}).encode(),
        {"Content-Type": "application/json"},
    )
    began = time.time()
    try:
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        answer = {"verdict": f"HTTP {error.code}", "message": error.read().decode()}
    report(f"waited for the verdict on {model.name}", began, began_at=began, answer=answer)
    return answer


def report(step: str, began: float, **more: object) -> None:
    print(json.dumps({"step": step, "seconds": round(time.time() - began, 2), **more}), flush=True)


if __name__ == "__main__":
    main()
