import json
import os
import runpy
from pathlib import Path

from agent2rl.training import models, prompts
from agent2rl.training.progress import Progress
from agent2rl.training.sampling import right_answers
from agent2rl.training.sampling import SampleSettings
from agent2rl.training.sft import SftSettings, sft

base = Path(os.environ["MODEL_PATH"])
rows = [json.loads(line) for line in open(Path(os.environ["DATA_PATH"]) / "train.jsonl")]
evaluate = runpy.run_path("eval.py")["evaluate"]
model, tokenizer = models.load(base)
asked = [prompts.render(tokenizer, [{"role": "user", "content": row["question"]}]) for row in rows]


def right(index, text):
    row = rows[index]
    return evaluate(question=row["question"], model_answer=text, reference_answer=row["answer"]) > 0.5


pairs = right_answers(model, tokenizer, asked, right, SampleSettings(max_tokens=160, temperature=0.9), times=4)
print(len(pairs), "kept")
sft(model, tokenizer, pairs, SftSettings(epochs=2, learning_rate=1e-4), Progress("rft"))
models.save(model, tokenizer, Path(os.environ["OUTPUT_DIR"]) / "rft")
