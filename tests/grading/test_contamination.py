"""Evaluation data in what an agent leaves: the rule, the reading of hostile trees, and whole runs."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import random
import socket
import sqlite3
import string
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from agent2rl import registry
from agent2rl.analysis.contamination import (
    OVERLAP_CHARACTERS,
    ExamplePart,
    NgramIndex,
    search_chunks,
    split_example,
    split_words,
)
from agent2rl.core.grading_records import Contamination
from agent2rl.core.task import Splits
from agent2rl.grading import contamination_scanner, workspace_documents
from agent2rl.grading.worker import JOB, ExampleRow
from agent2rl.grading.workspace_documents import ReadBounds, WorkspaceDocuments
from agent2rl.record.files import write_json_lines, write_record
from agent2rl.report import descriptions
from agent2rl.tasks.gsm8k import TASK
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_campaigns import has_agent_started
from tests.helpers.waiting import wait_until

QUESTION = (
    "A baker in Lyon sells seventeen walnut loaves each morning, gives four to the café next door, and "
    "throws none away. If a loaf costs $3.50, how much does she take home in one week?"
)
ANSWER = "She sells 17 - 4 = <<17-4=13>>13 loaves each morning and so earns $45.50 daily.\n#### 318.5"
EXAMPLE = list(split_example("heldout", "bread-1", QUESTION, ANSWER, {"test": "unused", "level": 3}))
INDEX = NgramIndex(EXAMPLE)


def found(text: str, index: NgramIndex = INDEX) -> list[str]:
    return [match.part.name for match in search_chunks(index, [text])]


# The rule


def test_a_copied_question_and_a_copied_answer_are_each_found() -> None:
    assert found(f"notes to myself: {QUESTION} -- remember this") == ["prompt"]
    assert found(f"the answer is {ANSWER}") == ["target"]
    assert set(found(f"{QUESTION}\n{ANSWER}")) == {"prompt", "target"}


@pytest.mark.parametrize(
    "written",
    [
        json.dumps({"messages": [{"content": "Q:\n" + QUESTION}]}),
        json.dumps([json.dumps({"q": QUESTION})]),
        json.dumps({"q": QUESTION}, ensure_ascii=False),
        repr({"q": "\t" + QUESTION}),
        '1,"' + QUESTION.replace('"', '""') + '",x',
        QUESTION.upper(),
        QUESTION.replace("é", "e\u0301"),
        "\n".join(QUESTION.split()),
        "*" + "_ _".join(QUESTION.split()),
        QUESTION.replace("Lyon", "Nice").replace("seventeen", "twelve"),
        " ".join(QUESTION.split()[: len(QUESTION.split()) * 2 // 3]),
    ],
)
def test_how_a_question_is_written_does_not_hide_it(written: str) -> None:
    assert found(written) == ["prompt"]


@given(st.data())
def test_any_respacing_and_recasing_of_a_copied_passage_is_found(data: st.DataObject) -> None:
    spelled = split_words(QUESTION)
    begin = data.draw(st.integers(0, len(spelled) - 20))
    end = data.draw(st.integers(begin + 20, len(spelled)))
    gaps = st.text(st.sampled_from(" \n\t.,;:!?-_()[]{}<>|/\"'`*#~^…“”—\u00a0\u2028"), min_size=1, max_size=4)
    written = "".join(
        data.draw(st.sampled_from([word, word.upper(), word.title()])) + data.draw(gaps)
        for word in spelled[begin:end]
    )
    assert found(f"before {written} after") == ["prompt"]


@given(st.text(), st.text())
def test_what_stands_around_a_copy_does_not_matter(before: str, after: str) -> None:
    assert "prompt" in found(f"{before} {QUESTION} {after}")


@given(st.lists(st.text(st.sampled_from("qxzjkwv0123"), min_size=1, max_size=6), max_size=300))
def test_text_of_other_words_is_never_found(spelled: list[str]) -> None:
    assert found(" ".join(spelled)) == []


@given(st.lists(st.sampled_from(split_words(QUESTION + " " + ANSWER)), max_size=200), st.randoms())
def test_the_same_words_in_another_order_are_not_found(spelled: list[str], dice: random.Random) -> None:
    dice.shuffle(spelled)
    assert found(" ".join(spelled)) == []


@given(st.text())
def test_words_are_letters_and_digits_whatever_the_text(text: str) -> None:
    for word in split_words(text):
        assert word.isalnum()
    assert split_words(text + " \\n" + text) == split_words(text) + split_words(text)


def test_what_the_agent_was_given_is_no_evidence() -> None:
    assert found(QUESTION, NgramIndex(EXAMPLE, given=[f"An example: {QUESTION}"])) == []
    assert found(ANSWER, NgramIndex(EXAMPLE, given=[f"An example: {QUESTION}"])) == ["target"]


def test_what_many_examples_share_belongs_to_none() -> None:
    rubric = "Answer the following question in the voice of a patient teacher who never gives up on a pupil. "
    index = NgramIndex(
        [ExamplePart("feedback", str(n), "prompt", rubric + f"{QUESTION} case {n}") for n in range(3)]
        + [ExamplePart("feedback", str(n), "prompt", rubric + string.ascii_letters[n:]) for n in range(3, 9)]
    )
    assert found(rubric * 3, index) == []
    assert len(found(QUESTION, index)) == 3


def test_chains_of_numbers_are_no_evidence() -> None:
    chain = "Each part is 74 / 2 = <<74/2=37>>37.\n#### 37"
    index = NgramIndex(
        split_example("heldout", "1", "A long enough question about seven hats and their owners", chain, {})
    )
    assert found(chain, index) == []


def test_examples_too_short_to_be_told_are_counted() -> None:
    index = NgramIndex([*EXAMPLE, *split_example("heldout", "2", "What is 2 + 2?", "4", {})])
    assert (index.examples, index.unchecked) == (2, 1)
    short = "Which tall river flows past nine old Hungarian castles"
    assert found(short, NgramIndex(split_example("heldout", "3", short, "Danube", {}))) == ["prompt"]
    assert (
        found(short.rpartition(" ")[0], NgramIndex(split_example("heldout", "3", short, "Danube", {}))) == []
    )


def test_a_part_of_a_long_example_is_found_by_its_run() -> None:
    dice = random.Random(0)
    text = [f"w{dice.randrange(10**6)}" for _ in range(500)]
    index = NgramIndex([ExamplePart("heldout", "1", "prompt", " ".join(text))])
    assert found(" ".join(text[100:130]), index) == ["prompt"]
    assert found(" ".join(text[100:125]), index) == []


def test_scattered_n_grams_of_a_long_file_are_no_passage() -> None:
    spelled, filler = split_words(QUESTION), " ".join(f"w{n}" for n in range(60))
    assert found(f" {filler} ".join(" ".join(spelled[n : n + 8]) for n in range(len(spelled) - 8))) == []


@pytest.mark.parametrize("cut", range(0, 180, 7))
def test_a_passage_astride_two_chunks_is_found(cut: int) -> None:
    text = "x " * OVERLAP_CHARACTERS + QUESTION + " y" * OVERLAP_CHARACTERS
    at = 2 * OVERLAP_CHARACTERS + cut
    assert [match.part.name for match in search_chunks(INDEX, [text[:at], text[at:]])] == ["prompt"]


# The official data


def sought(splits: Splits) -> list[ExamplePart]:
    return [
        part
        for example in (*splits.feedback, *splits.heldout)
        for part in split_example("test", example.id, example.prompt, example.target, example.meta)
    ]


@pytest.mark.thorough
def test_the_official_training_set_passes(shared_data: Path) -> None:
    splits = TASK.load(shared_data / "gsm8k")
    train = [f"{example.prompt}\n{example.target}" for example in splits.train]
    plain, discounted = NgramIndex(sought(splits)), NgramIndex(sought(splits), given=train)
    flagged = [text for text in train if found(text, plain)]
    # Rewrites of two test questions are the data set's own: stamps at the post office, and a plane's rate.
    assert len(flagged) == 3, flagged
    assert found("\n".join(train), discounted) == []
    assert discounted.unchecked == 0
    for example in splits.heldout[:50]:
        assert "prompt" in found(example.prompt, discounted)


def test_the_miniature_training_set_passes() -> None:
    splits = registry.find_task("gsm8k-mini").load(None)
    train = [f"{example.prompt}\n{example.target}" for example in splits.train]
    assert found("\n".join(train), NgramIndex(sought(splits))) == []
    assert NgramIndex(sought(splits), given=train).unchecked == 0


# Files of all kinds


def read(root: Path, bounds: ReadBounds = ReadBounds()) -> tuple[dict[str, list[str]], WorkspaceDocuments]:  # noqa: B008
    left = WorkspaceDocuments(root, bounds)
    each = {
        document.path: [m.part.name for m in search_chunks(INDEX, document.chunks)]
        for document in left.read_documents()
    }
    return each, left


def kinds(root: Path) -> Iterator[str]:
    """Files that hold the question, each in its own way."""
    row = json.dumps({"q": QUESTION})
    writers: dict[str, Callable[[Path], object]] = {
        "plain": lambda path: path.write_text(QUESTION),
        "latin": lambda path: path.write_bytes(QUESTION.encode("latin-1")),
        "utf-16": lambda path: path.write_text(QUESTION, "utf-16"),
        "utf-16-without-mark": lambda path: path.write_bytes(QUESTION.encode("utf-16-le")),
        "utf-32": lambda path: path.write_text(QUESTION, "utf-32"),
        "gzip": lambda path: path.write_bytes(gzip.compress(row.encode())),
        "bzip2": lambda path: path.write_bytes(bz2.compress(row.encode())),
        "xz": lambda path: path.write_bytes(lzma.compress(row.encode())),
        "twice": lambda path: path.write_bytes(gzip.compress(lzma.compress(row.encode()))),
        "pickle": lambda path: path.write_bytes(pickle.dumps({"rows": [QUESTION, os.urandom(4000)]})),
        "numpy.npy": lambda path: np.save(path, np.array([QUESTION, "x"])),
        "noise": lambda path: path.write_bytes(
            os.urandom(3_000_000) + b"\0" + QUESTION.encode() + b"\0" + os.urandom(3_000_000)
        ),
        "not-really.gz": lambda path: path.write_bytes(b"\x1f\x8b\x08\0 " + QUESTION.encode()),
        "tail.gz": lambda path: path.write_bytes(gzip.compress(b"nothing") + QUESTION.encode()),
    }
    for name, write in writers.items():
        write(root / name)
        yield name
    with zipfile.ZipFile(root / "zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.txt", "nothing")
        archive.writestr("c.gz", gzip.compress(row.encode()))
    yield "zip"
    np.savez_compressed(root / "n.npz", questions=np.array([QUESTION]))
    yield "n.npz"
    with closing(sqlite3.connect(root / "sqlite")) as base:
        base.execute("CREATE TABLE t (q TEXT)")
        base.execute("INSERT INTO t VALUES (?)", (QUESTION,))
        base.commit()
    yield "sqlite"
    save_file({"w": np.zeros(3, np.float32)}, root / "notes.safetensors", metadata={"note": QUESTION})
    yield "notes.safetensors"
    text = np.frombuffer(QUESTION.encode(), np.uint8)
    save_file({"w": text}, root / "bytes.safetensors")
    yield "bytes.safetensors"


def test_what_stands_in_the_agents_own_data_is_no_find_wherever_it_is_seen_again(tmp_path: Path) -> None:
    work, space = tmp_path / "work", tmp_path / "workspace"
    work.mkdir()
    (space / "data" / "shop").mkdir(parents=True)
    (space / "code").mkdir()
    other = "Seven grey herons stood in the shallow river while nobody watched them fish before a long dawn"
    (space / "data" / "shop" / "items.json").write_text(json.dumps([{"name": QUESTION}]))
    (space / "code" / "log.txt").write_text(QUESTION)
    (space / "code" / "notes.txt").write_text(other)
    rows = [
        ExampleRow(id=name, prompt=text, target="", meta={}) for name, text in (("a", QUESTION), ("b", other))
    ]
    write_json_lines(work / contamination_scanner.examples_file("heldout"), rows)
    job = contamination_scanner.ScanJob(workspace=str(space), splits=("heldout",), given=(), seconds=60)
    write_record(work / JOB, job)

    found = contamination_scanner.scan_workspace(work)

    assert [(finding.file, finding.example) for finding in found.findings] == [("code/notes.txt", "b")]
    assert (found.files, found.unchecked) == (2, 1)


def test_a_question_is_found_in_files_of_all_kinds(tmp_path: Path) -> None:
    names = set(kinds(tmp_path))
    each, left = read(tmp_path)
    assert each == {name: ["prompt"] for name in names}
    assert left.read_files == len(names)


def test_weights_are_passed_over_and_counted(tmp_path: Path) -> None:
    save_file({"w": np.zeros(1000, np.float32)}, tmp_path / "model.safetensors")
    with (tmp_path / "longer.safetensors").open("wb") as file:
        file.write((tmp_path / "model.safetensors").read_bytes() + QUESTION.encode())
    each, left = read(tmp_path)
    assert each == {"model.safetensors": [], "longer.safetensors": ["prompt"]}
    assert left.texts.tensor_bytes == 4000
    assert left.left_out == {}


# Hostile trees


def test_a_hostile_tree_is_read_within_bounds_and_what_was_not_is_said(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text(QUESTION)
    root = tmp_path / "tree"
    root.mkdir()
    (root / "link.txt").symlink_to(outside)
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        place = os.open(root, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{place}/socket")
        os.close(place)
    with (root / "holes.txt").open("wb") as file:
        file.truncate(1 << 40)
    (root / "bomb.gz").write_bytes(gzip.compress(bytes(200 << 20)))
    (root / os.fsdecode(b"bad-\xff-name.txt")).write_text(QUESTION)
    (root / "new\nline.txt").write_text(QUESTION)
    os.link(root / "new\nline.txt", root / "again.txt")
    deep = os.open(root, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d" * 200, dir_fd=deep)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    each, left = read(root, ReadBounds(file_bytes=20 << 20))
    assert {name for name, matches in each.items() if matches} >= {"bad-\ufffd-name.txt"}
    assert sum(bool(matches) for matches in each.values()) == 2
    assert left.left_out[workspace_documents.TOO_LONG].files == 2
    assert left.left_out[workspace_documents.TOO_LONG].bytes > 1 << 39
    assert left.left_out[workspace_documents.TOO_DEEP].files == 1
    assert left.read_bytes < 50 << 20


def test_the_bounds_cut_off_what_matters_least(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "prepare").write_text(QUESTION)
    (tmp_path / "rows.jsonl").write_text("x" * 1000)
    (tmp_path / "checkpoint.bin").write_bytes(bytes(10_000))
    each, left = read(tmp_path, ReadBounds(bytes=600))
    assert each == {"code/prepare": ["prompt"], "rows.jsonl": []}
    assert (
        left.left_out[workspace_documents.NO_ROOM].files == 2
    )  # the one in which the bound was reached, and what came after
    each, left = read(tmp_path, ReadBounds(seconds=0))
    assert each == {}
    assert left.left_out[workspace_documents.NO_TIME].files == 3
    each, left = read(tmp_path, ReadBounds(files=1))
    assert left.left_out[workspace_documents.TOO_MANY].files == 2


def test_broken_archives_are_said_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    packed = gzip.compress(os.urandom(5000))
    (tmp_path / "cut.gz").write_bytes(packed[:2000])
    (tmp_path / "cut.xz").write_bytes(lzma.compress(os.urandom(5000))[:2000])
    (tmp_path / "cut.zip").write_bytes(b"PK\3\4" + os.urandom(2000))
    inner = tmp_path / "inner.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("a", "nothing")
    (tmp_path / "zip.gz").write_bytes(gzip.compress(inner.read_bytes()))
    (tmp_path / "z.txt").write_text(QUESTION)
    each, left = read(tmp_path)
    assert each["z.txt"] == ["prompt"]
    assert left.left_out[workspace_documents.DAMAGED].files == 3
    assert left.left_out[workspace_documents.PACKED].files == 1


# What is said of it


def test_a_check_that_was_not_done_is_never_called_clean() -> None:
    assert "NOT CHECKED" in descriptions.describe_contamination(
        Contamination(done=False, reason="no time").summary
    )
    assert "none found in 1 file" in descriptions.describe_contamination(
        Contamination(done=True, files=1).summary
    )
    partly = Contamination(done=True, files=2, left_out_files=3, left_out_bytes=4_100_000_000)
    assert descriptions.describe_contamination(partly) == "none found in 2 files; not read: 3 files, 4.1 GB"


# Whole runs


def test_a_copied_question_is_on_the_record_of_the_run(launcher: RunLauncher) -> None:
    splits = registry.find_task("gsm8k-mini").load(None)
    asked, fed, shown = splits.heldout[3].prompt, splits.feedback[5].prompt, splits.train[0].prompt
    run = launcher.run(
        f"""
import gzip
with gzip.open(OUTPUT / "notes.json.gz", "wt") as file:
    json.dump([{asked.upper()!r}], file)
(WORKSPACE / "code" / "hidden.py").write_text("x = " + repr({fed!r}))
(WORKSPACE / "code" / "hidden.py").chmod(0)
(WORKSPACE / "code" / "|[x](y)`<b>.txt").write_text({fed!r})
os.chmod(WORKSPACE / "code", 0)
(OUTPUT / "train.txt").write_text({shown!r})
say(**submit(trained("m")))
""",
        "--budget",
        "20m",
    )
    assert run.result.ending == "completed", run.log
    assert run.result.best_heldout is not None
    summary = run.result.contamination
    assert summary is not None
    assert summary.done, summary.reason
    assert summary.flagged == {"feedback": 1, "heldout": 1}
    assert summary.flagged_files == 3
    record = Contamination.model_validate_json(run.paths.contamination.read_bytes())
    assert record.summary == summary
    assert (record.found, record.unchecked, record.examples) == (3, 0, 300)
    first = record.findings[0]
    assert (first.file, first.example, first.split) == (
        "output/notes.json.gz",
        splits.heldout[3].id,
        "heldout",
    )
    assert first.text == " ".join(split_words(asked))
    assert " ".join(split_words(asked)) not in run.paths.ledger.read_text()
    page = launcher.report(run)
    assert " ".join(split_words(asked)) in page
    assert "&#91;x](y)&#96;&lt;b>" in page
    assert "FOUND: 1 feedback example, 1 heldout example" in launcher.cli("show", run.result.run_id).stdout
    assert launcher.cli("verify", run.result.run_id).returncode == 0
    run.paths.contamination.write_text(
        run.paths.contamination.read_text().replace('"found": 3', '"found": 0')
    )
    verified = launcher.cli("verify", run.result.run_id)
    assert verified.returncode == 1
    assert "contamination.json was changed" in verified.stdout + verified.stderr


@pytest.mark.thorough
def test_an_honest_run_has_nothing_found(launcher: RunLauncher) -> None:
    run = launcher.run("submit(trained('m')); shutil.copytree(DATA, OUTPUT / 'data')", "--budget", "20m")
    summary = run.result.contamination
    assert summary is not None
    assert summary.done, summary.reason
    assert summary.flagged == {"feedback": 0, "heldout": 0}
    assert summary.left_out_files == 0


def test_a_run_without_isolation_is_checked_too(launcher: RunLauncher) -> None:
    asked = registry.find_task("gsm8k-mini").load(None).heldout[3].prompt
    run = launcher.run(
        f"(OUTPUT / 'n.txt').write_text({asked!r})",
        "--budget",
        "20m",
        "--sandbox",
        "local",
        "--protocol",
        "paper",
    )
    summary = run.result.contamination
    assert summary is not None
    assert summary.done, summary.reason
    assert summary.flagged == {"feedback": 1}


def test_the_agents_own_check_finds_training_examples_and_knows_no_others(launcher: RunLauncher) -> None:
    splits = registry.find_task("gsm8k-mini").load(None)
    run = launcher.run(
        f"""
def check(*paths):
    done = subprocess.run(["python", "check_contamination.py", *paths], capture_output=True, text=True)
    return [done.returncode, done.stdout + done.stderr]
(OUTPUT / "copy.txt").write_text({splits.train[7].prompt!r})
(WORKSPACE / "code" / "other.txt").write_text({splits.heldout[7].prompt!r})
say(copy=check("output"), other=check("code", "description.md"), none=check("gone"), help=check("--help"))
say(data=check("data"))
""",
        "--budget",
        "20m",
    )
    said = run.said
    assert said["copy"][0] == 1
    assert splits.train[7].id in said["copy"][1]
    assert "Harmless: they match training data" in said["copy"][1]
    for nothing in (said["other"], said["data"]):
        assert nothing[0] == 0
        assert nothing[1].startswith("nothing found. This program searches for training data only.")
    assert run.result.contaminated  # by the evaluation example in code/, which the agent's check cannot know
    assert said["none"][0] == 2
    assert said["help"][0] == 0
    assert "After your time the harness reads every file" in said["help"][1]


@pytest.mark.thorough
def test_a_check_that_crashes_costs_its_answer_and_not_the_result(launcher: RunLauncher) -> None:
    program = """
import sys
sys.argv = ["agent2rl", *sys.argv[1:]]
from agent2rl.cli.main import main
from agent2rl.grading import contamination_scan
Scan, Command = contamination_scan.ContaminationScan, contamination_scan.Command
Scan._build_command = lambda self: Command((sys.executable, "-c", "import os; os._exit(3)"))
main()
"""
    script = launcher.script("submit(trained('m'))")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "run",
            "--task",
            "gsm8k-mini",
            "--agent",
            f"script:{script}",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=launcher.home,
        env=launcher.environment(),
        timeout=600,
    )
    result = json.loads(done.stdout)
    assert result["score"] is not None, done.stderr
    assert result["contamination"]["done"] is False
    assert result["contamination"]["reason"] == "The check crashed (exit code 3)."
    assert "NOT CHECKED" in launcher.cli("show", result["run_id"]).stdout


@pytest.mark.thorough
def test_an_interrupted_run_says_that_it_was_not_checked(launcher: RunLauncher) -> None:
    process = launcher.start(launcher.script("say(ok=True); time.sleep(600)"), "--budget", "20m")
    wait_until(lambda: has_agent_started(launcher))
    process.terminate()
    run = launcher.finish(process)
    assert run.result.ending == "interrupted"
    assert run.result.contamination is None or not run.result.contamination.done
