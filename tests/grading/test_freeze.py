"""Freezing: whatever the agent puts in its workspace, and does to it meanwhile, nothing else is ever read."""

import errno
import fcntl
import hashlib
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent2rl.core.errors import MachineError, Refusal
from agent2rl.core.grading_records import Manifest
from agent2rl.grading import freeze
from agent2rl.grading.file_hashes import FICLONE
from agent2rl.grading.freeze import (
    DELETE_HINT,
    LARGE_BYTES,
    FreezeLimits,
    NoDiskSpace,
    compute_manifest,
    freeze_submission,
    select_files,
)

LIMITS = FreezeLimits(entries=20, bytes=1 << 20)
SUBMISSION = PurePosixPath("output/model")
CANARY = b"held-out answers"

Listener = Callable[[str, tuple[object, ...]], None]
_listeners: list[Listener] = []


def _tell(event: str, arguments: tuple[object, ...]) -> None:
    for listener in _listeners:
        listener(event, arguments)


sys.addaudithook(_tell)  # cannot be removed again: without a listener it does nothing


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """The interpreter tells the listener of every open and ioctl just before it happens."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def just_before_opening(path: object, act: Callable[[], object]) -> Iterator[None]:
    """Do something at the one moment when a copy is about to open this path or name."""
    waiting = [act]

    def listener(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]) == str(path) and waiting:
            waiting.pop()()

    with listening(listener):
        yield
    assert not waiting, f"{path} was never opened"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_bytes(CANARY)
    (tmp_path / "workspace" / SUBMISSION).mkdir(parents=True)
    return tmp_path / "workspace"


@pytest.fixture
def model(workspace: Path) -> Path:
    directory = workspace / SUBMISSION
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights" * 1000)
    return directory


def frozen(
    workspace: Path, relative: str | PurePosixPath = SUBMISSION, limits: FreezeLimits = LIMITS
) -> Manifest:
    return freeze_submission(workspace, PurePosixPath(relative), workspace.parent / "frozen", limits).manifest


def refusal(
    workspace: Path, relative: str | PurePosixPath = SUBMISSION, limits: FreezeLimits = LIMITS
) -> str:
    """The refusal's text; whatever the reason, nothing of a refused submission stays."""
    with pytest.raises(Refusal) as caught:
        frozen(workspace, relative, limits)
    assert not (workspace.parent / "frozen").exists()
    assert caught.value.hint
    return str(caught.value)


def list_open_files(directory: Path) -> list[Path]:
    """What this process has open in a directory, also what is deleted."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # other threads close theirs meanwhile
            targets.append(link.readlink())
    return [target for target in targets if target.is_relative_to(directory)]


def test_a_submission_is_copied_with_the_hash_of_each_file(workspace: Path, model: Path) -> None:
    manifest = frozen(workspace)
    copy = workspace.parent / "frozen"
    assert [file.path for file in manifest.files] == ["config.json", "model.safetensors"]
    for file in manifest.files:
        data = (copy / file.path).read_bytes()
        assert data == (model / file.path).read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_the_manifest_hash_is_over_its_sorted_lines(workspace: Path, model: Path) -> None:
    manifest = frozen(workspace)
    lines = sorted(f"{file.sha256}  {file.size}  {file.path}\n" for file in manifest.files)
    assert manifest.sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert manifest == compute_manifest(workspace.parent / "frozen") == compute_manifest(model)


def test_the_same_content_has_the_same_manifest_whatever_its_time_stamps(
    workspace: Path, model: Path
) -> None:
    first = frozen(workspace)
    shutil.rmtree(workspace.parent / "frozen")
    os.utime(model / "config.json", (1, 1))
    assert frozen(workspace) == first


def test_an_overwrite_that_keeps_its_time_stamp_has_another_manifest(workspace: Path, model: Path) -> None:
    first = frozen(workspace)
    shutil.rmtree(workspace.parent / "frozen")
    status = (model / "config.json").stat()
    (model / "config.json").write_text("[]")
    os.utime(model / "config.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert frozen(workspace).sha256 != first.sha256


def test_the_agents_permissions_do_not_come_along(workspace: Path, model: Path) -> None:
    (model / "config.json").chmod(0o4777)
    model.chmod(0o777)
    frozen(workspace)
    copy = workspace.parent / "frozen"
    assert not copy.stat().st_mode & 0o7022
    assert not any(file.stat().st_mode & 0o7133 for file in copy.iterdir())


def test_an_existing_destination_is_left_alone(workspace: Path, model: Path) -> None:
    (workspace.parent / "frozen").mkdir()
    (workspace.parent / "frozen" / "earlier").write_text("kept")
    with pytest.raises(MachineError):
        frozen(workspace)
    assert (workspace.parent / "frozen" / "earlier").read_text() == "kept"


@pytest.mark.parametrize(
    "relative",
    [
        *("", ".", "/", "/etc", "..", "../secret", "output/../../secret", "output/model/.."),
        *("output/a\0b", "output/\udcff", "output/a\nb", "o" * 256, "/".join(["o" * 200] * 30)),
        *("output/none", "output/model/config.json"),
    ],
)
def test_a_path_that_is_no_directory_below_the_workspace_is_refused(
    workspace: Path, model: Path, relative: str
) -> None:
    refusal(workspace, relative).encode()


def test_a_symbolic_link_in_the_place_of_any_part_is_refused_unread(workspace: Path) -> None:
    outside = workspace.parent / "secret"
    (workspace / "direct").symlink_to(outside)
    (workspace / "parent").symlink_to(workspace.parent)
    (workspace / "inside").symlink_to(workspace / "output")
    for relative in ("direct", "parent/secret", "inside/model"):
        assert "link" in refusal(workspace, relative)


@pytest.mark.parametrize(
    "target", ["../../../secret/config.json", "config.json", "nowhere", "/dev/zero", "tokenizer.json"]
)
def test_a_symbolic_link_in_a_submission_is_refused_with_its_name(
    workspace: Path, model: Path, target: str
) -> None:
    (model / "tokenizer.json").symlink_to(target)
    text = refusal(workspace)
    assert "output/model/tokenizer.json" in text
    assert "cp -rL" in text


def test_a_symbolic_link_to_a_directory_is_refused(workspace: Path, model: Path) -> None:
    (model / "tokenizer.json").symlink_to(workspace.parent / "secret")
    assert "output/model/tokenizer.json" in refusal(workspace)


def test_a_directory_in_the_place_of_a_model_file_is_refused(workspace: Path, model: Path) -> None:
    (model / "tokenizer.json").mkdir()
    assert "output/model/tokenizer.json is not a plain file" in refusal(workspace)


def test_a_hard_link_is_refused_with_its_name(workspace: Path, model: Path) -> None:
    os.link(workspace.parent / "secret" / "config.json", model / "tokenizer.json")
    assert "output/model/tokenizer.json is a hard link" in refusal(workspace)


def test_a_pipe_is_refused_without_waiting_for_a_writer(workspace: Path, model: Path) -> None:
    os.mkfifo(model / "tokenizer.json")
    assert "output/model/tokenizer.json" in refusal(workspace)


def test_a_pipe_put_in_the_place_of_a_file_at_the_last_moment_is_refused(
    workspace: Path, model: Path
) -> None:
    def swap() -> None:
        (model / "config.json").unlink()
        os.mkfifo(model / "config.json")

    with just_before_opening("config.json", swap):
        assert "config.json changed while it was copied" in refusal(workspace)


def test_a_socket_is_refused(workspace: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("tokenizer.json")
        assert "output/model/tokenizer.json" in refusal(workspace)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_refused(workspace: Path, model: Path) -> None:
    try:
        os.mknod(model / "tokenizer.json", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this root may not make devices")
    assert "output/model/tokenizer.json" in refusal(workspace)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\nb", b"\x1b[2J", "\u202efdp".encode()])
def test_a_name_that_would_spoil_a_log_is_refused(workspace: Path, model: Path, name: bytes) -> None:
    (model / os.fsdecode(name)).write_text("x")
    assert refusal(workspace).isprintable()


@pytest.mark.parametrize(
    ("limits", "figure"),
    [
        (FreezeLimits(entries=1), "more than 1 files"),
        (FreezeLimits(bytes=7001), "7,002 bytes; the limit is 7,001"),
        (FreezeLimits(name_length=11), "17 bytes; the limit is 11"),
    ],
)
def test_a_limit_that_is_exceeded_is_named_with_the_figure(
    workspace: Path, model: Path, limits: FreezeLimits, figure: str
) -> None:
    assert figure in refusal(workspace, limits=limits)


def test_what_is_just_within_the_limits_is_accepted(workspace: Path, model: Path) -> None:
    assert frozen(workspace, limits=FreezeLimits(entries=2, bytes=7002, name_length=17)).files


def test_what_is_no_part_of_a_model_is_left_out_by_name_and_never_opened(
    workspace: Path, model: Path
) -> None:
    """As a Trainer leaves it, and worse."""
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth", "trainer_state.json", "README.md"):
        (model / name).write_bytes(b"anything")
    (model / "checkpoint-100").mkdir()
    (model / "latest").symlink_to(workspace.parent / "secret")
    os.mkfifo(model / "events")
    os.link(workspace.parent / "secret" / "config.json", model / "answers.txt")
    (model / "generation_config.json").write_text("{}")
    opened: list[str] = []
    with listening(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None):
        frozen_copy = freeze_submission(workspace, SUBMISSION, workspace.parent / "frozen", LIMITS)
    assert {file.path for file in frozen_copy.manifest.files} == {"config.json", "model.safetensors"}
    assert set(frozen_copy.left_out) == {
        *("README.md", "answers.txt", "checkpoint-100", "events", "latest", "optimizer.pt"),
        *("rng_state.pth", "trainer_state.json", "training_args.bin"),
    }
    assert not {Path(path).name for path in opened} & {*frozen_copy.left_out, "generation_config.json"}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_a_pickled_model_is_refused_with_the_recipe(workspace: Path, model: Path, name: str) -> None:
    (model / name).write_bytes(b"")
    text = refusal(workspace)
    assert f"never opened: {name}" in text
    assert "model.save_pretrained(path, safe_serialization=True)" in text
    assert f"rm -- {name}" in text


def test_an_adapter_is_taken_alone_and_left_out_beside_a_model(workspace: Path, model: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (model / name).write_text("")
    assert {file.path for file in frozen(workspace).files} == {"config.json", "model.safetensors"}
    shutil.rmtree(workspace.parent / "frozen")
    (model / "model.safetensors").unlink()
    assert {file.path for file in frozen(workspace).files} == {
        *("adapter_config.json", "adapter_model.safetensors", "config.json"),
    }


def test_a_directory_without_weights_says_what_it_holds(workspace: Path, model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "checkpoint-100").mkdir()
    assert "It contains: checkpoint-100, config.json." in refusal(workspace)


def test_a_file_that_is_nothing_but_a_hole_counts_by_its_apparent_size(workspace: Path, model: Path) -> None:
    with (model / "bomb.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    assert "the limit is 1,048,576" in refusal(workspace)


def test_a_file_that_grows_during_the_copy_is_refused(workspace: Path, model: Path) -> None:
    def grow() -> None:
        with (model / "config.json").open("ab") as file:
            file.write(b"\n")

    with just_before_opening(workspace.parent / "frozen" / "config.json", grow):
        text = refusal(workspace)
    assert text.startswith(
        "output/model/config.json changed while it was copied. Wait until the training process"
    )


def test_a_file_that_grows_without_end_is_not_followed(workspace: Path, model: Path) -> None:
    def grow() -> None:
        with (model / "config.json").open("ab") as file:
            file.truncate(1 << 40)

    with just_before_opening(workspace.parent / "frozen" / "config.json", grow):
        assert "changed while it was copied" in refusal(workspace)


def test_a_file_cut_short_during_the_copy_is_refused(workspace: Path, model: Path) -> None:
    with just_before_opening(
        workspace.parent / "frozen" / "model.safetensors", lambda: os.truncate(model / "model.safetensors", 7)
    ):
        assert "model.safetensors changed while it was copied" in refusal(workspace)


def test_a_rewrite_in_place_that_keeps_size_and_time_stamp_is_refused(workspace: Path, model: Path) -> None:
    path = model / "config.json"
    os.utime(path, (1, 1))
    time.sleep(0.05)  # the kernel's clock for time stamps ticks every few milliseconds

    def rewrite() -> None:
        path.write_text("[]")
        os.utime(path, (1, 1))

    with just_before_opening(workspace.parent / "frozen" / "config.json", rewrite):
        assert "config.json changed while it was copied" in refusal(workspace)


def test_a_file_added_or_taken_away_or_changed_after_its_copy_is_noticed(
    workspace: Path, model: Path
) -> None:
    last = workspace.parent / "frozen" / "model.safetensors"
    acts: list[Callable[[], object]] = [
        lambda: (model / "tokenizer.json").write_text("late"),
        lambda: (model / "config.json").write_text("[0]"),
        lambda: (model / "config.json").unlink(),
    ]
    for act in acts:
        with just_before_opening(last, act):
            assert "output/model changed while it was copied" in refusal(workspace)


def test_a_file_that_vanishes_before_it_is_opened_is_refused(workspace: Path, model: Path) -> None:
    with just_before_opening("model.safetensors", (model / "model.safetensors").unlink):
        assert "output/model/model.safetensors does not exist" in refusal(workspace)


@pytest.mark.parametrize("swapped", ["output", "model"])
def test_a_parent_swapped_for_a_link_during_the_walk_leads_nowhere(
    workspace: Path, model: Path, swapped: str
) -> None:
    place = {"output": workspace / "output", "model": model}[swapped]

    def swap() -> None:
        place.rename(workspace / "aside")
        place.symlink_to(workspace.parent / "secret")

    with just_before_opening(swapped, swap):
        assert "link" in refusal(workspace)


def test_a_parent_swapped_after_it_was_opened_does_not_lead_outside(workspace: Path, model: Path) -> None:
    def swap() -> None:
        (workspace / "output").rename(workspace / "aside")
        (workspace / "output").symlink_to(workspace.parent)

    with just_before_opening("model", swap):
        manifest = frozen(workspace)
    assert (workspace.parent / "frozen" / "config.json").read_text() == "{}"
    assert len(manifest.files) == 2


def test_a_process_that_swaps_files_and_links_without_pause_never_gets_anything_read(
    workspace: Path, model: Path
) -> None:
    program = """
import os, sys
model, secret = sys.argv[1:]
print("ready", flush=True)
while True:
    os.symlink(secret, model + "/new")
    os.rename(model + "/new", model + "/config.json")
    os.rename(model, model + ".aside")
    os.symlink(os.path.dirname(secret), model)
    os.unlink(model)
    os.rename(model + ".aside", model)
    open(model + "/new", "w").write("{}")
    os.rename(model + "/new", model + "/config.json")
"""
    swapper = subprocess.Popen(
        [sys.executable, "-c", program, str(model), str(workspace.parent / "secret" / "config.json")],
        stdout=subprocess.PIPE,
    )
    try:
        assert swapper.stdout
        with swapper.stdout:
            assert swapper.stdout.readline()
        for _ in range(200):
            try:
                frozen(workspace)
            except Refusal:
                continue
            copy = workspace.parent / "frozen"
            assert CANARY not in [file.read_bytes() for file in copy.iterdir()]
            shutil.rmtree(copy)
        assert swapper.poll() is None
    finally:
        swapper.kill()
        swapper.wait()


def test_a_file_that_a_writer_holds_by_a_lease_is_refused_without_waiting(
    workspace: Path, model: Path
) -> None:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with (model / "config.json").open("r+b") as file:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError:
                pytest.skip("this filesystem has no leases")
            assert "config.json changed while it was copied" in refusal(workspace)
    finally:
        signal.signal(signal.SIGIO, before)


@contextmanager
def ordinary_user(directory: Path) -> Iterator[None]:
    """As root nothing is unreadable: give the directory to nobody, and be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_file_or_directory_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name, "workspace")
        model = workspace / SUBMISSION
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_text("")
        with ordinary_user(Path(name)):
            for path in (model / "config.json", model):
                mode = path.stat().st_mode
                path.chmod(0)
                assert "cannot be read" in refusal(workspace)
                path.chmod(mode)


def test_a_copy_that_does_not_fit_is_the_machines_fault_and_leaves_nothing(
    workspace: Path, model: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(MachineError, match="Cannot copy the submission"):
            frozen(workspace)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (workspace.parent / "frozen").exists()


def test_a_missing_workspace_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        frozen(tmp_path / "workspace")


def test_blocks_are_shared_first_and_copied_only_where_the_filesystem_cannot(
    workspace: Path, model: Path
) -> None:
    requests: list[object] = []

    def listener(event: str, arguments: tuple[object, ...]) -> None:
        if event == "fcntl.ioctl":
            requests.append(arguments[1])

    with listening(listener):
        manifest = frozen(workspace)
    assert requests == [FICLONE] * 2
    assert manifest == compute_manifest(model)


SHARDS = ("a.safetensors", "b.safetensors", "c.safetensors")
ROOMY = FreezeLimits(entries=20, bytes=1 << 30)


@pytest.fixture
def sharded(model: Path) -> Path:
    """A model with three files that are large enough to be copied side by side."""
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text("{}")
    for number, name in enumerate(SHARDS):
        (model / name).write_bytes(bytes([number]) * (LARGE_BYTES + 1000 * number))
    return model


def test_large_files_are_copied_side_by_side_and_whole(workspace: Path, sharded: Path) -> None:
    manifest = frozen(workspace, limits=ROOMY)
    copy = workspace.parent / "frozen"
    assert manifest == compute_manifest(copy) == compute_manifest(sharded)
    assert all((copy / name).read_bytes() == (sharded / name).read_bytes() for name in SHARDS)


@pytest.mark.parametrize("name", SHARDS)
def test_a_large_file_that_changes_while_others_are_copied_is_refused_by_name(
    workspace: Path, sharded: Path, name: str
) -> None:
    with just_before_opening(workspace.parent / "frozen" / name, lambda: os.truncate(sharded / name, 7)):
        assert f"{name} changed while it was copied" in refusal(workspace, limits=ROOMY)
    assert list_open_files(workspace.parent) == []


def test_a_submission_that_does_not_fit_on_the_disk_is_refused_with_the_figures(
    workspace: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "share_blocks", lambda *_: False)
    with pytest.raises(NoDiskSpace) as caught:
        frozen(workspace, limits=FreezeLimits(spare_bytes=10**18))
    assert "The submission has 0.0 MB and does not fit on the disk: " in caught.value.message
    assert "1000000000.0 GB are needed to copy it." in caught.value.message
    assert caught.value.hint == DELETE_HINT
    assert not (workspace.parent / "frozen").exists()


def test_a_copy_that_shares_blocks_needs_no_free_space(
    workspace: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "share_blocks", lambda *_: True)
    frozen(workspace, limits=FreezeLimits(spare_bytes=10**18))
    assert not list((workspace.parent / "frozen").glob("tmp*"))


def test_a_disk_that_becomes_full_during_the_copy_is_told_to_the_agent(
    workspace: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(freeze, "copy_and_hash", fail)
    assert "The disk became full while the submission was copied. Delete files" in refusal(workspace)


def test_no_descriptor_is_left_open(workspace: Path, model: Path) -> None:
    frozen(workspace)
    shutil.rmtree(workspace.parent / "frozen")
    (model / "tokenizer.json").symlink_to("nowhere")
    refusal(workspace)
    refusal(workspace, "output/none")
    assert list_open_files(workspace.parent) == []


def test_the_manifest_of_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        compute_manifest(tmp_path / "none")


NAMES = st.one_of(
    st.sampled_from(["a", "b", "config.json", "model.safetensors", "model.safetensors", "..."]),
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40),
    st.binary(min_size=1, max_size=300).map(os.fsdecode),
)
ENTRIES = st.lists(
    st.tuples(
        st.lists(NAMES, min_size=1, max_size=6),
        st.sampled_from(["file", "folder", "link", "hard link", "pipe", "hole"]),
        st.binary(max_size=300),
    ),
    max_size=12,
)


def plant(root: Path, entries: list[tuple[list[str], str, bytes]]) -> None:
    """Make what can be made of a drawn tree; impossible and clashing entries are left out."""
    for parts, kind, data in entries:
        path = root.joinpath(*parts)
        try:
            if ".." in parts or os.path.lexists(path):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            match kind:
                case "file":
                    path.write_bytes(data)
                case "folder":
                    path.mkdir()
                case "link":
                    path.symlink_to(root.parent.parent / "secret" / "config.json")
                case "hard link":
                    os.link(root.parent.parent / "secret" / "config.json", path)
                case "pipe":
                    os.mkfifo(path)
                case "hole":
                    path.touch()
                    os.truncate(path, 1 << 30)
        except (OSError, ValueError):
            continue


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=ENTRIES, relative=st.one_of(st.just("model"), st.lists(NAMES, max_size=4).map("/".join)))
def test_of_any_tree_either_the_models_files_are_copied_whole_or_it_is_refused(
    entries: list[tuple[list[str], str, bytes]], relative: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name, "workspace")
        (workspace / "model").mkdir(parents=True)
        Path(name, "secret").mkdir()
        Path(name, "secret", "config.json").write_bytes(CANARY)
        plant(workspace / "model", entries)
        opened: list[str] = []

        def listener(event: str, arguments: tuple[object, ...]) -> None:
            if event == "open":
                opened.append(str(arguments[0]))

        with listening(listener):
            try:
                manifest = freeze_submission(
                    workspace, PurePosixPath(relative), Path(name, "frozen"), LIMITS
                ).manifest
            except Refusal as refused:
                str(refused).encode()
                assert not Path(name, "frozen").exists()
                return
        assert not any("secret" in path for path in opened)
        assert manifest == compute_manifest(Path(name, "frozen"))
        source = workspace / relative
        taken = select_files([entry.name for entry in source.iterdir()]).taken
        assert {file.path: file.sha256 for file in manifest.files} == {
            path: hashlib.sha256((source / path).read_bytes()).hexdigest() for path in taken
        }
        assert all(
            CANARY not in path.read_bytes() for path in Path(name, "frozen").rglob("*") if path.is_file()
        )
