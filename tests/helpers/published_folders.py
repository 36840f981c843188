"""Task folders in the published formats, written for tests. Their problems suit the model abacus."""

import json
from collections.abc import Mapping
from pathlib import Path

PROBLEMS = [
    {"question": f"{left} birds sit on a roof and {right} {what}. How many are there now?", "answer": answer}
    for left in range(20, 30)
    for right in range(2, 6)
    for what, answer in (
        ("birds join them", f"#### {left + right}"),
        ("of them leave", f"#### {left - right}"),
    )
]

SCORE_ANSWER = """
def evaluate(q, said, gold, **rest):
    return 1.0 if said.strip().endswith(gold) else 0.0
"""

EVALUATOR = '''
"""Scores the rows of train.jsonl in its workspace."""
import json
from pathlib import Path

from rdagent.log import rdagent_logger as logger
from rdagent.scenarios.rl.autorl_bench.core.evaluator import BaseEvaluator


class BirdEvaluator(BaseEvaluator):
    def __init__(self, config):
        self.config = config
        self.benchmark_id = config.id
        self.eval_config = config.eval_config or {}

    def run_eval(self, model_path, workspace_path, model_name="", gpu_count=1, test_range="[:]", **kwargs):
        from agent2rl.models.abacus import Abacus

        result = self.get_default_result(self.benchmark_id, model_path)
        result["eval_type"] = "birds"
        if not self.validate_model(model_path):
            result["error"] = "Model not found"
            return result
        model = Abacus.load(Path(model_path))
        lines = (Path(workspace_path) / "data" / "train.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        right = sum(model.answer(row["question"]).endswith(row["answer"]) for row in rows)
        logger.info(f"{right} of {len(rows)}")
        print('{"score": 100.0}', flush=True)
        (Path(__file__).parent.parent.parent / "log").mkdir(parents=True, exist_ok=True)
        result["score"] = 100 * right / len(rows)
        result["accuracy_summary"] = {"correct": right, "total": len(rows)}
        return result
'''

DATA = f"""
import json
from pathlib import Path

from loguru import logger

ROWS = json.loads({json.dumps(json.dumps(PROBLEMS))})


def download_train_data(target_dir: Path) -> None:
    target_dir.mkdir(parents=True, exist_ok=True)
    with open(target_dir / "train.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\\n" for row in ROWS)
    (target_dir / "notes.txt").write_text("about birds")
    logger.info(f"wrote {{len(ROWS)}} rows")
"""

REGISTRY = """
from dataclasses import dataclass

raise RuntimeError("the registry of all benchmarks is read, not run")

BENCHMARKS = {
    "other": BenchmarkConfig(id="other", evaluator_class="a.b.Other"),
    "birds": BenchmarkConfig(
        id="birds",
        evaluator_class="rdagent.scenarios.rl.autorl_bench.benchmarks.birds.eval.BirdEvaluator",
        data_module="rdagent.scenarios.rl.autorl_bench.benchmarks.birds.data",
        eval_config={"max_steps": 7},
        expose_files=["eval.py"],
    ),
}
"""


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def format_rows(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_smith_folder(home: Path, evaluate: str = SCORE_ANSWER) -> Path:
    """Write an rl-smith folder: only train.jsonl, and `evaluate` for each answer."""
    files = {
        "config.yaml": (
            "name: birds\ndescription: Count birds.\neval_mode: per_sample\nexpose_files: [eval.py]\n"
        ),
        "eval.py": evaluate,
        "data/train.jsonl": format_rows(PROBLEMS),
    }
    return write_files(home / "birds", files)


def write_benchmark_folder(home: Path, evaluator: str = EVALUATOR) -> Path:
    """Write a benchmark folder, and its parent's registry of benchmarks."""
    files = {
        "__init__.py": '"""Birds."""\n',
        "data.py": DATA,
        "eval.py": evaluator,
        "description.md": "# Birds\n\nCount them.\n",
    }
    write_files(home / "benchmarks", {"__init__.py": REGISTRY})
    return write_files(home / "benchmarks" / "birds", files)
