"""The shipped script: trains the miniature base model three times, on more data each time.

It runs inside the sandbox and uses only what any agent has: the workspace, the published variables, the
grading API and this Python. Start here to write your own.
"""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from agent2rl.models.abacus import Abacus

STAGES = {"v1": 30, "v2": 120, "v3": 400}
"""Number of training problems of each submission."""


def main() -> None:
    workspace = Path(os.environ["WORKSPACE"])
    seed = json.loads((workspace / "run_meta.json").read_text())["seed"]
    lines = (Path(os.environ["DATA_PATH"]) / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for name, count in STAGES.items():
        model = Abacus.load(Path(os.environ["MODEL_PATH"]))
        problems = rows[:count]
        model.fit([row["question"] for row in problems], [row["answer"] for row in problems], seed=seed)
        output = Path(os.environ["OUTPUT_DIR"]) / name
        output.mkdir()
        model.save(output)
        answer = submit_model(output)
        score = "none" if answer["score"] is None else f"{answer['score']:.2f}"
        print(f"{name}: {len(problems)} problems, {answer['verdict']}, score {score}", flush=True)


def submit_model(model: Path) -> Any:
    request = urllib.request.Request(
        os.environ["GRADING_SERVER_URL"] + "/submit",
        json.dumps({"model_path": str(model)}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
