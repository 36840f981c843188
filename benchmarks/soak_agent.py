"""The agent of `benchmarks.soak`: it does what an agent does in many hours, so many times faster.

    python soak_agent.py HOURS SPEED SUBMISSIONS

It runs in the sandbox. One thread submits, evenly over the time, with two submissions at a time under way:
new weights that get better, the same weights again, an adapter, and a directory without weights. The other
thread works: each simulated minute it prints, asks the driver, starts a process and writes metrics, and now
and then it changes code and writes a checkpoint. If the machine is too slow for the pace, the work stops with
its hours, and the submissions that are left follow without a pause.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from agent2rl.models.abacus import FEATURES, Abacus

WORKSPACE = Path(os.environ["WORKSPACE"])
OUTPUT = Path(os.environ["OUTPUT_DIR"])
GRADING_URL = os.environ["GRADING_SERVER_URL"]
DRIVER_URL = os.environ["OPENAI_BASE_URL"]
LINES_PER_MINUTE = 20
CODE_EVERY_MINUTES, CHECKPOINT_EVERY_MINUTES = 5, 10
CHECKPOINTS_KEPT = 3
PROBLEMS = 400
RANK = 4
WAIT_SECONDS = 600


class SubmittedModels:
    """Writes models that get better: each has the trained weights of more words than the one before."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._order = np.random.default_rng(0).random(FEATURES)
        self._base = Abacus.load(os.environ["MODEL_PATH"])
        self._trained = Abacus.load(os.environ["MODEL_PATH"])
        lines = Path(os.environ["DATA_PATH"], "train.jsonl").read_text().splitlines()[:PROBLEMS]
        rows = [json.loads(line) for line in lines]
        self._trained.fit([row["question"] for row in rows], [row["answer"] for row in rows])

    def write(self, number: int) -> Path:
        """Write a submission. Of ten, one repeats another, one is an adapter, and one has no weights."""
        target = OUTPUT / f"model-{number}"
        kind = number % 10
        if kind == 3:
            shutil.copytree(OUTPUT / f"model-{number - 1}", target)
        elif kind == 6:
            target.mkdir(parents=True)
            (target / "config.json").write_text("{}")
        elif kind == 8:
            self._write_adapter(target, number)
        else:
            self._write_whole(target, number)
        (target / "training_args.bin").write_bytes(b"left out")
        return target

    def _write_whole(self, target: Path, number: int) -> None:
        is_trained = self._order < number / self._count
        weight = np.where(is_trained, self._trained.weight, self._base.weight)
        bias = self._base.bias + np.float32(number / self._count) * (self._trained.bias - self._base.bias)
        Abacus(weight, bias).save(target)

    def _write_adapter(self, target: Path, number: int) -> None:
        target.mkdir(parents=True)
        left, lengths, right = np.linalg.svd(self._trained.weight - self._base.weight, full_matrices=False)
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["head"]}
        (target / "adapter_config.json").write_text(json.dumps(config))
        parts: dict[str, npt.NDArray[np.float32]] = {
            "base_model.model.head.lora_A.weight": right[:RANK],
            "base_model.model.head.lora_B.weight": (left * lengths * number / self._count)[:, :RANK],
        }
        tensors = {name: np.ascontiguousarray(part, dtype=np.float32) for name, part in parts.items()}
        save_file(tensors, target / "adapter_model.safetensors")


def call_json(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def submit_models(submissions: int, seconds: float) -> dict[str, int]:
    """Submit evenly over the time; wait for a verdict before the next but one. Return the verdicts."""
    models, begin = SubmittedModels(submissions), time.monotonic()
    verdicts: dict[str, int] = {}
    waiting: list[tuple[int, Path]] = []

    def take_verdict() -> None:
        number, _ = waiting.pop(0)
        answer = call_json(f"{GRADING_URL}/submissions/{number}?wait={WAIT_SECONDS}")
        verdict = str(answer["verdict"])
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        shutil.rmtree(OUTPUT / f"model-{number - 2}", ignore_errors=True)

    for number in range(1, submissions + 1):
        time.sleep(max(0.0, begin + seconds * (number - 1) / submissions - time.monotonic()))
        path = models.write(number)
        answer = call_json(f"{GRADING_URL}/submissions", {"model_path": str(path)})
        waiting.append((answer["submission_id"], path))
        if len(waiting) == 2:
            take_verdict()
    while waiting:
        take_verdict()
    return verdicts


def work_minutes(minutes: int, seconds_per_minute: float) -> None:
    begin = time.monotonic()
    for minute in range(minutes):
        time.sleep(max(0.0, begin + minute * seconds_per_minute - time.monotonic()))
        loss = np.exp(-minute / minutes)
        for line in range(LINES_PER_MINUTE):
            step = minute * LINES_PER_MINUTE + line
            print(f"step {step} loss {loss:.4f} grad_norm 1.25 lr 1e-05 tokens 81920")
        sys.stdout.flush()
        with (OUTPUT / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps({"step": minute, "reward": minute / minutes}) + "\n")
        body = {"model": os.environ["LLM_MODEL"], "messages": [{"role": "user", "content": "What next?"}]}
        call_json(f"{DRIVER_URL}/chat/completions", body)
        subprocess.run(
            ["bash", "-c", f"sleep {min(1.0, seconds_per_minute / 2)} # minute {minute}"], check=True
        )
        if minute % CODE_EVERY_MINUTES == 0:
            (WORKSPACE / "code" / f"train_{minute % 4}.py").write_text(
                f"LEARNING_RATE = {1 / (minute + 1)}\n"
            )
        if minute % CHECKPOINT_EVERY_MINUTES == 0:
            write_checkpoint(minute // CHECKPOINT_EVERY_MINUTES)


def write_checkpoint(number: int) -> None:
    Abacus.base().save(OUTPUT / "training" / f"checkpoint-{number}")
    shutil.rmtree(OUTPUT / "training" / f"checkpoint-{number - CHECKPOINTS_KEPT}", ignore_errors=True)


def main(hours: float, speed: float, submissions: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(work_minutes, round(60 * hours), 60 / speed)
        verdicts = submit_models(submissions, 3600 * hours / speed)
        work.result()
    print("VERDICTS " + json.dumps(verdicts), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
