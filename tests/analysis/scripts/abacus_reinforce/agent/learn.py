import json
import os
import urllib.request
from pathlib import Path

from agent2rl.models.abacus import Abacus


def number(text):
    return text.rpartition("####")[2].strip()


def submit(path):
    body = json.dumps({"model_path": str(path)}).encode()
    request = urllib.request.Request(
        os.environ["GRADING_SERVER_URL"] + "/submit", body, {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


rows = [json.loads(line) for line in open(os.environ["DATA_PATH"] + "/train.jsonl")]
right = {row["question"]: number(row["answer"]) for row in rows}


def reward(question, answer):
    return float(number(answer) == right[question])


model = Abacus.load(os.environ["MODEL_PATH"])
output = Path(os.environ["OUTPUT_DIR"])
for part in range(2):
    model.reinforce(list(right), reward, steps=150, seed=part, learning_rate=2.0)
    folder = output / f"part{part}"
    model.save(folder)
    print(submit(folder)["score"])
