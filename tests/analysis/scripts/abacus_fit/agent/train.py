import json
import os
from pathlib import Path

from agent2rl.models.abacus import Abacus

rows = [json.loads(line) for line in (Path(os.environ["DATA_PATH"]) / "train.jsonl").read_text().splitlines()]
for count in (50, 200, 800):
    model = Abacus.load(os.environ["MODEL_PATH"])
    some = rows[:count]
    model.fit([row["question"] for row in some], [row["answer"] for row in some], epochs=10)
    target = Path(os.environ["OUTPUT_DIR"]) / f"fit-{count}"
    target.mkdir(parents=True, exist_ok=True)
    model.save(target)
    print("saved", target)
