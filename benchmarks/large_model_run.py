"""A whole run on random weights of any size, with two submissions: all weights, and an adapter.

    python -m benchmarks.large_model_run [--gigabytes 0.1] [--shards 4] [--directory DIR] [options of the run]

Makes a Llama of that size with the seedling's tokenizer (from 8 GB on with the shape of a 7B model), starts
`agent2rl run` on `gsm8k-mini` with the engine `transformers`, and prints the seconds of each step from the
run's own record beside what the agent waited. Figures: docs/design/submission-overhead.md.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent2rl import registry
from benchmarks.submission_overhead import Shape, choose_shape, make_pool, measure, show, write_model

AGENT = Path(__file__).with_name("large_model_agent.py")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
ONE = 0x3F80
"""In bfloat16."""


def make_base_model(directory: Path, size: int, shards: int) -> None:
    """Write a Llama of about `size` bytes in bfloat16, with the seedling's tokenizer."""
    shape = choose_shape(size / 1e9)
    tensors = shape.list_tensors(size)
    layers = sum(name.endswith("q_proj.weight") for name in tensors)
    write_model(directory, tensors, shards, make_pool(0))
    _add_norms(directory, layers, shape.hidden)
    with tempfile.TemporaryDirectory() as folder:
        seedling = Path(folder)
        registry.find_model("seedling").write(seedling)
        for name in TOKENIZER_FILES:
            shutil.copyfile(seedling / name, directory / name)
        _write_config(directory, shape, layers, json.loads((seedling / "config.json").read_text()))


def _write_config(directory: Path, shape: Shape, layers: int, seedling: dict[str, Any]) -> None:
    key_size = shape.hidden // 7
    head_size = min(128, key_size)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.hidden // head_size,
        "num_key_value_heads": key_size // head_size,
        "head_dim": head_size,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        **{key: seedling[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in seedling},
    }
    (directory / "config.json").write_text(json.dumps(config))


def _add_norms(directory: Path, layers: int, hidden: int) -> None:
    names = ["model.norm.weight"]
    for number in range(layers):
        names += [f"model.layers.{number}.{name}_layernorm.weight" for name in ("input", "post_attention")]
    header = {
        name: {"dtype": "BF16", "shape": [hidden], "data_offsets": [2 * hidden * i, 2 * hidden * (i + 1)]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    values = np.full(hidden * len(names), ONE, np.uint16)
    (directory / "norms.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + values.tobytes())
    index = directory / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] | dict.fromkeys(names, "norms.safetensors")
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def run_on_model(home: Path, options: Sequence[str]) -> Path:
    """Start the run and return its directory."""
    command = [
        sys.executable,
        "-m",
        "agent2rl.cli.main",
        "run",
        "--task",
        "gsm8k-mini",
        "--engine",
        "transformers",
    ]
    command += ["--agent", f"script:{AGENT}", "--model", str(home / "base"), "--runs-dir", str(home / "runs")]
    environment = {**os.environ, "AGENT2RL_CACHE": str(home / "cache")}
    subprocess.run([*command, *options], env=environment, check=False)
    return next((home / "runs").glob("*/"))


def print_steps(run: Path) -> None:
    """Print when each step of the run was recorded, and what each took."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    agent_lines = [json.loads(line) for line in _read_lines(run / "agent.log") if line.startswith("{")]
    shown = [
        event for event in events if event["kind"] not in ("sample", "began", "left", "file", "revision")
    ]
    began = events[0]["time"]
    print("\nsecond  recorded")
    for event in shown:
        data = event["data"]
        names = ("name", "split", "file", "state", "detail", "text", "message", "reason", "trace")
        words = " ".join(str(data[name]) for name in names if data.get(name) is not None)
        if (number := _find_submission(data)) is not None:
            words = f"submission {number} {words}"
        print(f"{event['time'] - began:6.1f}  {event['kind']} {words[:150]}")
    print()
    waits = [line for line in agent_lines if "began_at" in line]
    for number, wait in enumerate(waits, start=1):
        times: dict[str, float] = {}
        for event in events:
            if _find_submission(event["data"]) == number:
                times.setdefault(event["kind"], event["time"])
        print_submission(number, wait, times)
    for line in agent_lines:
        print(json.dumps(line)[:600])


def print_submission(number: int, wait: dict[str, Any], times: dict[str, float]) -> None:
    answer = wait["answer"]
    print(f"submission {number}: {answer['verdict']}, {answer.get('lineage')}, score {answer.get('score')}")
    if {"submitted", "grading"} <= times.keys():
        show("  freeze: copy, hash and sync", times["submitted"] - wait["began_at"])
        show("  checks, and a sample or the merge", times["grading"] - times["submitted"])
        show("  POST /submit to the start of grading", times["grading"] - wait["began_at"])
    if {"results", "grading"} <= times.keys():
        show("  grading", times["results"] - times["grading"])
    if {"results", "lineage"} <= times.keys():
        show("  waiting for the lineage after the grading", max(0.0, times["lineage"] - times["results"]))
    show("  POST /submit to the verdict, as the agent waited", wait["seconds"])


def _find_submission(data: dict[str, Any]) -> int | None:
    """Return the number of the submission that an event is about."""
    submission = data.get("submission")
    if isinstance(submission, dict):
        return int(submission["id"])
    parts = str(data.get("file", "")).split("/")
    if parts[0] == "submissions":
        return int(parts[1])
    return submission


def _read_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.1)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument(
        "--directory", type=Path, help="a folder on the disk to use; what is made there stays"
    )
    options, run_options = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="large-") as folder:
        home: Path = options.directory or Path(folder)
        home.mkdir(exist_ok=True, parents=True)
        home.chmod(0o755)
        size = round(options.gigabytes * 1e9)
        measure("writing the base model", lambda: make_base_model(home / "base", size, options.shards))
        subprocess.run(["chmod", "-R", "go+rX", home / "base"], check=True)
        subprocess.run(["sync", "-f", home], check=True)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the run ends with its record, which is printed
        began = time.perf_counter()
        run = run_on_model(home, run_options)
        show("the whole run", time.perf_counter() - began)
        print_steps(run)


if __name__ == "__main__":
    main()
