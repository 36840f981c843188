"""The official files, from a directory, and what a judge's preferences in the official format come to."""

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import WinRates
from agent2rl.core.task import ChatEvaluator
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.pairwise import FILE, FOLDER
from agent2rl.record.files import sha256_text
from agent2rl.run import grading_proxy_setup
from agent2rl.run.preflight import check_task
from agent2rl.run.settings import Settings
from agent2rl.tasks.alpacaeval import HUB_REVISION, TASK, TRAIN_PARQUET, TRAIN_REVISION
from tests.helpers.openai_server import serve_engine
from tests.helpers.run_launcher import RunLauncher

REFERENCES = [
    {"dataset": "made up", "instruction": f"Say {n}.", "output": f"It is {n}.", "generator": "gpt4"}
    for n in range(9)
]
TRAIN = [{"instruction": f"Add {n}.", "input": "1" if n % 2 else "", "output": "2"} for n in range(2500)]
DIFFICULTIES = "index,preference,std_delta_len,instruction_difficulty\n" + "".join(
    f"{n},{0.2 + 0.6 * side},{0.5 - side},{n / 9}\n" for side in (0, 1) for n in range(9)
)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "alpaca_eval_gpt4_baseline.json").write_text(json.dumps(REFERENCES), encoding="utf-8")
    (tmp_path / "alpaca_data.json").write_text(json.dumps(TRAIN), encoding="utf-8")
    return tmp_path


def test_a_directory_with_the_official_files_is_read(data_dir: Path) -> None:
    splits = TASK.load(data_dir)
    assert len(splits.train) == 2000
    assert splits.train[1].prompt == "Add 1.\n\n1"
    assert splits.train[2].prompt == "Add 2."
    assert (len(splits.feedback), len(splits.heldout)) == (4, 5)
    together = {one.id: one for one in (*splits.feedback, *splits.heldout)}
    assert set(together) == {f"alpacaeval-{n:04d}" for n in range(9)}
    assert together["alpacaeval-0003"].target == "It is 3."
    assert together["alpacaeval-0003"].meta == {"row": 3, "dataset": "made up"}


def test_the_805_are_divided_once_and_for_all(shared_data: Path, data_dir: Path) -> None:
    (data_dir / "alpaca_eval_gpt4_baseline.json").unlink()
    for name in ("gpt4_1106_preview.outputs.json.xz", "df_gamed.RECONSTRUCTED.csv"):
        (data_dir / name).symlink_to(shared_data / "alpacaeval" / name)
    splits = TASK.load(data_dir)
    assert (len(splits.feedback), len(splits.heldout)) == (402, 403)
    assert [one.meta["row"] for one in splits.feedback[:5]] == [0, 3, 7, 8, 9]


def test_difficulties_go_to_gradings_where_there_are_any(data_dir: Path, tmp_path: Path) -> None:
    def beside(name: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        folder = TASK.load(data_dir).evaluator_folders[FOLDER]
        assert not isinstance(folder, Path)
        folder(place)
        return place / FILE

    assert not beside("without").exists()
    (data_dir / "df_gamed.MINE.csv").write_text(DIFFICULTIES, encoding="utf-8")
    assert beside("with").read_text(encoding="utf-8") == DIFFICULTIES


def test_only_the_official_file_has_its_name(data_dir: Path) -> None:
    (data_dir / "df_gamed.csv").write_text(DIFFICULTIES, encoding="utf-8")
    with pytest.raises(UserError, match="not the official file"):
        TASK.load(data_dir)
    (data_dir / "df_gamed.csv").rename(data_dir / "df_gamed.MINE.csv")
    TASK.load(data_dir)
    (data_dir / "df_gamed.YOURS.csv").write_text(DIFFICULTIES, encoding="utf-8")
    with pytest.raises(UserError, match="several difficulties"):
        TASK.load(data_dir)


@pytest.mark.parametrize("name", ["alpaca_eval_gpt4_baseline.json", "alpaca_data.json"])
def test_a_missing_or_broken_file_is_named(data_dir: Path, name: str) -> None:
    (data_dir / name).write_text('[{"instruction": 3}]', encoding="utf-8")
    with pytest.raises(UserError, match=rf"{name}, entry 0"):
        TASK.load(data_dir)
    (data_dir / name).unlink()
    with pytest.raises(UserError, match=f"no {name}"):
        TASK.load(data_dir)


def test_the_agent_is_shown_what_the_model_is_asked(data_dir: Path) -> None:
    example = TASK.load(data_dir).train[0]
    assert isinstance(TASK.evaluator, ChatEvaluator)
    assert TASK.evaluator.chat(example, templated=True)[0].content == "Add 0."
    plain = TASK.evaluator.chat(example, templated=False)[0].content
    assert plain.endswith("\nInstruction: Add 0.\nAnswer:")
    assert plain.count("Instruction:") == 3


def test_a_run_has_to_name_a_judge_and_a_check_says_so(data_dir: Path, tmp_path: Path) -> None:
    where = Settings(runs=tmp_path / "runs", cache=tmp_path / "cache")
    with (
        pytest.raises(UserError, match="--judge"),
        grading_proxy_setup.open_grading_proxy(grading_proxy_setup.GradingProxyOptions(), TASK, where),
    ):
        pass
    found = {one.name: one for one in check_task("alpacaeval", data_dir, where, "local")}
    assert found["judge"].state == "missing"
    assert found["overlap of train and test"].state == "ok"


def test_a_check_tries_the_judge(data_dir: Path, tmp_path: Path) -> None:
    where = Settings(runs=tmp_path / "runs", cache=tmp_path / "cache")

    def better(chat: Chat) -> str:
        first = next(line for line in chat[-1].content.splitlines() if line.startswith('"'))
        return "B" if "I do not know" in first else "A"

    for answer, state in ((better, "ok"), (lambda chat: "BA"[better(chat) == "B"], "broken")):
        with serve_engine(ScriptedEngine(answer)) as server:
            wanted = grading_proxy_setup.GradingProxyOptions(judge=f"openai-api:{server.url}")
            found = {one.name: one for one in check_task("alpacaeval", data_dir, where, "local", wanted)}
        assert found["judge"].state == state, found["judge"]
        assert "of 4 comparisons" in found["judge"].detail


def test_preferences_in_the_official_format_are_scored_by_the_command(
    launcher: RunLauncher, data_dir: Path
) -> None:
    pytest.importorskip("sklearn")
    references = [*REFERENCES, {**REFERENCES[0], "instruction": "Say more."}]
    (data_dir / "alpaca_eval_gpt4_baseline.json").write_text(json.dumps(references), encoding="utf-8")
    (data_dir / "df_gamed.MINE.csv").write_text(DIFFICULTIES + "9,0.5,0.1,0.3\n", encoding="utf-8")
    rows = [
        {
            "instruction": row["instruction"],
            "output_2": "x" * n,
            "preference": 1 + n / 10,
            "generator_2": "mine",
        }
        for n, row in enumerate(references)
    ]
    file = data_dir / "annotations.json.xz"
    file.write_bytes(lzma.compress(json.dumps(rows).encode()))
    done = launcher.cli("score", "alpacaeval", str(file), "--data-dir", str(data_dir), "--json")
    assert done.returncode == 0, done.stderr
    found = WinRates.model_validate_json(done.stdout)
    # The first one is 1.0, which is a loss, and no tie: that is 0.
    assert (found.model, found.n) == ("mine", 10)
    assert found.win_rate == pytest.approx(45)
    assert found.length_controlled is not None
    assert found.difficulties == "not the official ones"


def test_the_registry_knows_the_task() -> None:
    assert registry.find_task("alpacaeval") is TASK


LOAD = """
import sys
from agent2rl.core.errors import UserError
from agent2rl.evaluators import win_rates
from agent2rl.tasks.alpacaeval import TASK
try:
    TASK.load(None)
except UserError as error:
    print(error.message.rpartition(" ")[2])
win_rates.OFFICIAL_SHA256 = sys.argv[1]
splits = TASK.load(None)
print(len(splits.train), len(splits.feedback), len(splits.heldout), splits.train[1].prompt.split())
"""


def test_the_hubs_cache_is_read_at_the_pinned_revisions(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("sklearn")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    official = tmp_path / "datasets--tatsu-lab--alpaca_eval" / "snapshots" / HUB_REVISION
    official.mkdir(parents=True)
    (official / "alpaca_eval_gpt4_baseline.json").write_text(json.dumps(REFERENCES), encoding="utf-8")
    (official / "df_gamed.csv").write_text(DIFFICULTIES, encoding="utf-8")
    train = tmp_path / "datasets--tatsu-lab--alpaca" / "snapshots" / TRAIN_REVISION / TRAIN_PARQUET
    train.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(TRAIN), train)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, sha256_text(DIFFICULTIES)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refused, loaded = done.stdout.splitlines()
    assert refused == f"{sha256_text(DIFFICULTIES)}.", "what has the official name is the official file"
    assert loaded == "2000 4 5 ['Add', '1.', '1']", done.stderr
