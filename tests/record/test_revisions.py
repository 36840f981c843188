"""The agent's code at every point of a run: kept from outside, in git's own format, whatever lies there."""

import json
import os
import random
import socket
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from dulwich.objects import Blob, Commit, Tree
from dulwich.refs import Ref
from dulwich.repo import Repo

from agent2rl.cli.main import cli
from agent2rl.core.errors import UserError
from agent2rl.core.events import TimelineEvent
from agent2rl.core.records import Budget, RunSpec
from agent2rl.record import git_objects, workspace_reader
from agent2rl.record import revisions as revisions_of
from agent2rl.record.paths import RunPaths
from agent2rl.record.recorder import Recorder
from agent2rl.record.revisions import (
    NamedRevision,
    RevisionReader,
    RevisionRecorder,
    check_revisions,
    diff_revisions,
    list_revisions,
    read_revision_files,
)
from agent2rl.record.workspace_reader import WorkspaceReader
from agent2rl.run.agent_observer import CODE_FULL, RevisionWatcher
from tests.helpers.git_packs import make_index, make_pack
from tests.helpers.run_launcher import RunLauncher


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "code").mkdir(parents=True)
    return tmp_path / "workspace"


@pytest.fixture
def revisions(tmp_path: Path, workspace: Path) -> RevisionRecorder:
    return RevisionRecorder(tmp_path / "revisions", WorkspaceReader(workspace, frozenset({"eval.py"})))


def git(path: Path, *arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", f"--git-dir={path}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def held(path: Path, number: int) -> dict[str, bytes]:
    return {b"/".join(found.path).decode(): found.content for found in read_revision_files(path, number)}


def test_a_change_is_a_revision_and_no_change_is_none(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder
) -> None:
    assert revisions.take_revision("given").number == 1
    (workspace / "code" / "train.py").write_text("lr = 1\n")
    assert revisions.take_revision("changed").number == 2
    (workspace / "code" / "train.py").touch()
    assert revisions.take_revision("again").number == 2
    (workspace / "code" / "deep" / "er").mkdir(parents=True)
    (workspace / "code" / "deep" / "er" / "x.txt").write_text("x")
    (workspace / "code" / "train.py").write_text("lr = 2\n")
    third = revisions.take_revision("submission 1")
    assert (third.number, third.files, third.changed, third.reason) == (3, 2, 2, "submission 1")
    path = tmp_path / "revisions"
    assert [one.reason for one in list_revisions(path)] == ["given", "changed", "submission 1"]
    assert "-lr = 1\n+lr = 2" in diff_revisions(path, 2, 3)
    assert "+lr = 1" in diff_revisions(path, 0, 2)
    with pytest.raises(UserError, match=r"no revision 4\. The run has 3"):
        diff_revisions(path, 1, 4)


def test_git_itself_finds_nothing_wrong_and_shows_log_and_diff(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder
) -> None:
    for number in range(5):
        (workspace / "code" / f"a{number}.py").write_text(f"print({number})\n" * 10)
        (workspace / "code" / "a").mkdir(exist_ok=True)
        (workspace / "code" / "a" / "b").write_text(str(number))
        revisions.take_revision(f"change {number}")
    path = tmp_path / "revisions"
    git(path, "fsck", "--strict", "--full")
    assert git(path, "log", "--format=%s", "main").split("\n")[:2] == ["change 4", "change 3"]
    assert "+print(4)" in git(path, "diff", "main~1", "main")


def test_scripts_are_kept_wherever_they_lie_and_what_was_given_is_not(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder
) -> None:
    for name in (
        "train.py",
        "eval.py",
        "notes.txt",
        "output/v1/run.sh",
        "output/v1/model.safetensors",
        "data/x.py",
    ):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("x")
    (workspace / "code" / "any.thing").write_text("x")
    (workspace / "code" / "train.log").write_text("loss 1")
    revisions.take_revision("all")
    assert set(held(tmp_path / "revisions", 1)) == {"train.py", "output/v1/run.sh", "code/any.thing"}


def test_large_files_and_binaries_are_told_by_their_hash(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_reader, "HASHED_BYTES", 3 << 20)
    (workspace / "code" / "large").write_bytes(b"a" * (2 << 20))
    (workspace / "code" / "larger").write_bytes(b"a" * (5 << 20))
    (workspace / "code" / "binary").write_bytes(b"\x7fELF\0")
    revisions.take_revision("all")
    found = held(tmp_path / "revisions", 1)
    assert b"not kept: sha256" in found["code/large"]
    assert b"5 bytes" in found["code/binary"]
    assert b"too large to be hashed, 5242880 bytes" in found["code/larger"]


def test_nothing_in_a_workspace_leads_or_holds_the_reader(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("the harness's own")
    code = workspace / "code"
    (code / "link.py").symlink_to(secret)
    (code / "folder").symlink_to(tmp_path)
    (code / "loop").symlink_to(code)
    os.mkfifo(code / "pipe.py")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(code / "s"))
    (code / ".git").mkdir()
    (code / ".git" / "config").write_text("[core]\nfsmonitor = touch /tmp/owned\n")
    (code / os.fsdecode(b"\xff\n")).write_text("odd")
    deep = code
    for _ in range(60):
        deep = deep / "d"
        deep.mkdir()
    (deep / "x.py").write_text("deep")
    revisions.take_revision("all\nof it")
    path = tmp_path / "revisions"
    found = {b"/".join(one.path): (one.mode, one.content) for one in read_revision_files(path, 1)}
    assert found == {
        b"code/link.py": (0o120000, str(secret).encode()),
        b"code/folder": (0o120000, str(tmp_path).encode()),
        b"code/loop": (0o120000, str(code).encode()),
        b"code/\xff\n": (0o100644, b"odd"),
    }
    assert "Not whole" in git(path, "log", "--format=%B", "main")
    git(path, "fsck", "--strict")
    monkeypatch.setattr(workspace_reader, "MOST_FILES", 10)
    for number in range(100):
        (code / f"many{number}").write_text("x")
    assert revisions.take_revision("many").files == 10


def test_a_linked_code_folder_is_a_link_and_no_folder(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder
) -> None:
    (workspace / "code").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.py").write_text("x")
    (workspace / "code").symlink_to(tmp_path / "elsewhere")
    revisions.take_revision("all")
    assert held(tmp_path / "revisions", 1) == {}


def test_a_run_that_writes_without_end_fills_no_disk(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions_of, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(revisions_of, "MORE_BYTES", 1 << 18)
    spec = RunSpec(task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=60))
    with Recorder.create(tmp_path, spec, lambda _: None) as recorder:
        recorder.paths.workspace.mkdir()
        code = recorder.paths.workspace / "code"
        code.mkdir()
        recording = RevisionWatcher(recorder, frozenset())
        for turn in range(12):
            (code / "large.txt").write_bytes(random.Random(turn).randbytes(100_000).hex().encode())
            (code / "small.py").write_text(f"turn = {turn}\n")
            recording.take_revision("changed")
        path = recorder.paths.revisions
        last = held(path, 12)
        assert last["code/small.py"] == b"turn = 11\n", "what is small is kept for longer"
        assert last["code/large.txt"].startswith(b"agent2rl: not kept: sha256 ")
        assert len(held(path, 2)["code/large.txt"]) == 200_000
        for turn in range(30):
            for number in range(10):
                (code / f"{number}.py").write_text(f"turn = {turn}\n")
            recording.take_revision("changed")
        assert sum(each.stat().st_blocks * 512 for each in path.rglob("*")) < 4 << 20
        recording.close()
        events = [
            TimelineEvent.model_validate_json(line) for line in recorder.paths.events.read_text().splitlines()
        ]
    assert [event.data["text"] for event in events if event.kind == "warning"] == [CODE_FULL]


def test_many_large_files_cost_no_more_memory_than_is_allowed(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_reader, "MOST_BYTES", 100_000)
    for number in range(10):
        (workspace / "code" / f"{number}.txt").write_text(f"{number}" * 30_000)
    (workspace / "code" / "zz.py").write_text("tiny = True\n")
    assert revisions.take_revision("all").number == revisions.take_revision("again").number == 1
    found = held(tmp_path / "revisions", 1)
    assert [name for name, text in sorted(found.items()) if len(text) == 30_000] == [
        *("code/0.txt", "code/1.txt", "code/2.txt"),
    ]
    assert found["code/zz.py"] == b"tiny = True\n"
    assert "Not whole" in git(tmp_path / "revisions", "log", "main")


def test_a_long_file_that_is_quite_another_one_is_shown_without_comparing_its_lines(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(2):
        numbers = random.Random(turn)
        lines = "".join(f"{numbers.randrange(130)}\n" for _ in range(100_000))
        (workspace / "code" / "data.txt").write_text(f"# head\n{lines}# tail\n")
        revisions.take_revision("changed")
    compared: list[object] = []
    monkeypatch.setattr("agent2rl.record.code_diff.difflib.SequenceMatcher", compared.append)
    shown = diff_revisions(tmp_path / "revisions", 1, 2)
    assert compared == []
    assert "@@ -2,100000 +2,100000 @@" in shown
    assert shown.count("\n-") == shown.count("\n+") == 100_001, "and it is all there"


# Repositories of others


OBJECT = "objects/00/" + "0" * 38
HUGE = 65 << 20


def make_bomb_in_pack(folder: Path) -> None:
    pack, places = make_pack((Blob.type_num, HUGE, bytes(HUGE)))
    (folder / f"objects/pack/pack-{'0' * 40}.pack").write_bytes(pack)
    (folder / f"objects/pack/pack-{'0' * 40}.idx").write_bytes(make_index(places))


def make_bomb_beside_the_index(folder: Path) -> None:
    """The pack is fine, and its index names a place inside an object."""
    pack, places = make_pack((Blob.type_num, 3, b"abc"))
    (folder / f"objects/pack/pack-{'0' * 40}.pack").write_bytes(pack)
    (folder / f"objects/pack/pack-{'0' * 40}.idx").write_bytes(make_index([places[0] + 1]))


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def write_file(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return write_file


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (write(OBJECT, zlib.compress(b"blob 5\0" + bytes(HUGE))), "inflate without end"),
        (make_bomb_in_pack, "68,157,440 bytes"),
        (make_bomb_beside_the_index, "does not fit"),
        (write("objects/info/alternates", b"/elsewhere\n"), "may lead elsewhere"),
        (write("commondir", b"/elsewhere\n"), "may lead elsewhere"),
        (write(".git", b"gitdir: /elsewhere\n"), "may lead elsewhere"),
        (write("config", b"[core]\n\tbare = true\n[include]\n\tpath = /elsewhere\n"), "not git's own"),
    ],
    ids=["bomb", "bomb-in-pack", "index", "alternates", "commondir", "git-file", "config"],
)
def test_a_repository_that_could_do_harm_is_not_read(
    tmp_path: Path,
    workspace: Path,
    revisions: RevisionRecorder,
    damage: Callable[[Path], None],
    why: str,
) -> None:
    (workspace / "code" / "train.py").write_text("lr = 1\n")
    taken = revisions.take_revision("given")
    revisions.close()
    path = tmp_path / "revisions"
    assert len(list_revisions(path)) == 1
    damage(path)
    for read in (list_revisions, RevisionReader):
        with pytest.raises(UserError, match=f"not read: .*{why}"):
            read(path)
    named = [NamedRevision(1, taken.commit, "ledger record 1")]
    (fault,) = check_revisions(path, named)
    assert fault is not None
    assert why in fault


LINKED = 0o120000


@pytest.mark.parametrize(
    "entries",
    [
        [((b"..", b"planted"), 0o100644)],
        [((b"a", b"..", b"..", b"planted"), 0o100644)],
        [((b".git", b"config"), 0o100644)],
        [((b"../planted",), 0o100644)],
        [((b"out",), LINKED), ((b"out/planted",), 0o100644)],
        [((b"out",), LINKED), ((b"out", b"planted"), 0o100644)],
    ],
    ids=["up", "further-up", "git", "slash", "through-a-link", "link-and-folder"],
)
def test_a_checkout_writes_into_its_folder_alone(
    tmp_path: Path, entries: list[tuple[tuple[bytes, ...], int]]
) -> None:
    """Git refuses such names, but the objects of somebody else's run may have them."""
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    paths.spec.write_text("{}")
    outside, content = tmp_path / "outside", Blob.from_string(b"owned")
    outside.mkdir()
    link = Blob.from_string(str(outside).encode())
    with Repo.init_bare(str(paths.revisions), mkdir=True) as repo:
        root = Tree()
        for path, mode in entries:
            name = link.id if mode == LINKED else content.id
            for part in reversed(path[1:]):
                tree = Tree()
                tree.add(part, mode, name)
                repo.object_store.add_object(tree)
                name, mode = tree.id, 0o040000
            root.add(path[0], mode, name)
        commit = Commit()
        commit.tree, commit.message, commit.encoding = root.id, b"made", b"UTF-8"
        commit.author = commit.committer = b"me <me>"
        commit.author_time = commit.commit_time = commit.author_timezone = commit.commit_timezone = 0
        for each in (content, link, root, commit):
            repo.object_store.add_object(each)
        repo.refs[Ref(b"refs/heads/main")] = commit.id
    before = {path for path in tmp_path.rglob("*") if paths.root not in path.parents}
    target = tmp_path / "target"
    result = CliRunner().invoke(cli, ["checkout", str(paths.root), "1", str(target)])
    made = {path for path in tmp_path.rglob("*") if paths.root not in path.parents} - before
    assert {path for path in made if path != target and target not in path.parents} == set(), result.output
    assert isinstance(result.exception, UserError) or list(target.rglob("planted"))


def test_objects_that_are_fine_one_by_one_may_not_inflate_without_end_together(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (workspace / "code" / f"{number}.txt").write_text(str(number) * 1000)
    revisions.take_revision("given")
    monkeypatch.setattr(git_objects, "OBJECTS_BYTES", 2500)
    with pytest.raises(UserError, match="inflate without end"):
        list_revisions(tmp_path / "revisions")


def test_a_file_is_named_so_that_its_name_looks_like_no_line_of_a_diff(
    tmp_path: Path, workspace: Path, revisions: RevisionRecorder
) -> None:
    revisions.take_revision("given")
    for name in (b"a\n+forged = 1\n", b"b\xff.py", b"b\\xff.py"):
        (workspace / "code" / os.fsdecode(name)).write_text("real = 1\n")
    taken = revisions.take_revision("changed")
    assert "\n+forged" not in diff_revisions(tmp_path / "revisions", 1, 2)
    code = RevisionReader(tmp_path / "revisions")
    assert sorted(code.read_texts(taken.commit)) == [
        r"code/a\x0a+forged = 1\x0a",
        r"code/b\\xff.py",
        r"code/b\xff.py",
    ]
    code.close()


def test_a_diff_can_be_applied(tmp_path: Path, workspace: Path, revisions: RevisionRecorder) -> None:
    train = workspace / "code" / "train.py"
    train.write_text("".join(f"line {number}\n" for number in range(60)))
    revisions.take_revision("one")
    lines = train.read_text().splitlines()
    lines[3:3], lines[20:25], lines[50] = ["new"], [], "other"
    train.write_text("\n".join(lines))
    (workspace / "code" / "more.py").write_text("more = 1\n")
    revisions.take_revision("two")
    out = tmp_path / "out"
    (out / "code").mkdir(parents=True)
    (out / "code" / "train.py").write_bytes(held(tmp_path / "revisions", 1)["code/train.py"])
    shown = diff_revisions(tmp_path / "revisions", 1, 2)
    subprocess.run(["git", "apply", "-"], input=shown, text=True, check=True, cwd=out)
    assert {"code/train.py", "code/more.py"} == {str(each.relative_to(out)) for each in out.rglob("*.py")}
    for name, text in held(tmp_path / "revisions", 2).items():
        assert (out / name).read_bytes() == text


WORKING = """
events, code = WORKSPACE.parent / "events.jsonl", WORKSPACE / "code"

def count_revisions():
    return events.read_text().count('"kind":"revision"')

for number in range(3):
    before, deadline = count_revisions(), time.monotonic() + 120
    (code / "train.py").write_text(f"step = {number}\\n")
    while count_revisions() == before and time.monotonic() < deadline:
        time.sleep(0.05)
trained("v1")
(code / "train.py").write_text("at the submission\\n")
submit("output/v1")
(code / "train.py").write_text("afterwards\\n")
"""


def test_a_run_keeps_what_its_agent_wrote_and_pins_the_code_of_each_submission(launcher: RunLauncher) -> None:
    run = launcher.run(WORKING, "--sandbox", "local")  # there the agent can read what is recorded
    name = run.result.run_id
    found = list_revisions(run.paths.revisions)
    wrote = [held(run.paths.revisions, one.number).get("code/train.py", b"").decode() for one in found]
    assert wrote[0] == ""
    assert wrote[-1] == "afterwards\n"
    assert {"step = 0\n", "step = 1\n"} <= {*wrote}
    # Where the watcher saw the change first, the submission pins the revision that is there already.
    entries = map(json.loads, run.paths.ledger.read_text().splitlines())
    pinned = next(entry["data"]["number"] for entry in entries if entry["kind"] == "revision_of")
    assert held(run.paths.revisions, pinned)["code/train.py"] == b"at the submission\n"
    assert "changed" in launcher.cli("revisions", name).stdout
    assert "+afterwards" in launcher.cli("revisions", name, "--diff", "1", str(len(found))).stdout
    launcher.cli("checkout", name, str(pinned), str(launcher.home / "out"))
    assert (launcher.home / "out" / "code" / "train.py").read_text() == "at the submission\n"
    assert "already exists" in launcher.cli("checkout", name, "1", str(launcher.home / "out")).stderr
    assert launcher.cli("verify", name).returncode == 0
