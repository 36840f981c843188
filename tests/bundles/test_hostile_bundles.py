"""Bundles that somebody made to do harm, or that were damaged: each is refused, and nothing is written."""

import hashlib
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from dulwich.objects import Blob
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.bundles.archive import MAGIC, InvalidBundle
from agent2rl.bundles.bundle_record import MOST_FILES, RECORD_NAME, TOTAL_BYTES, BundleRecord, find_name_fault
from agent2rl.bundles.packing import write_bundle
from agent2rl.bundles.secret_scan import SecretScanner
from agent2rl.bundles.unpacking import check_bundle, open_bundle, verify_bundle
from agent2rl.core.errors import UserError
from agent2rl.record import git_objects
from agent2rl.record.paths import RunPaths
from tests.helpers.bundle_files import (
    BundleParts,
    compress,
    decompress,
    make_any_header,
    make_typed_header,
)
from tests.helpers.git_packs import make_index, make_pack
from tests.helpers.run_launcher import RunLauncher

SCORES = "submissions/3/heldout.jsonl"
PACK = "revisions/objects/pack/pack-" + "0" * 40


@pytest.fixture(scope="module")
def valid(reported_run: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("valid")
    write_bundle(reported_run, place / "bundle", SecretScanner({}))
    bundle = BundleParts.read((place / "bundle").read_bytes())
    files = {path: data for path, data in bundle.files.items() if not path.startswith("report/")}
    return replace(bundle, files=files).list_anew().build()  # without pictures: small, so that tests are fast


@pytest.fixture(scope="module")
def parts(valid: bytes) -> BundleParts:
    return BundleParts.read(valid)


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], str]]:
    """Opens a bundle that must be refused with nothing written, and returns why it is."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    file = tmp_path / "bundle.tar.zst"

    def open_refused(content: bytes) -> str:
        file.write_bytes(content)
        with pytest.raises(UserError) as refused, open_bundle(file):
            pass
        assert "Nothing was written" in refused.value.hint
        assert list(temporary.iterdir()) == []
        return refused.value.message

    yield open_refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle.tar.zst", "temporary"]


def test_what_the_tests_take_apart_opens_when_put_together_again(parts: BundleParts, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(parts.build())
    with open_bundle(tmp_path / "bundle") as opened:
        assert verify_bundle(opened).holds
        names = [path for path in opened.paths.root.rglob("*") if path.is_file()]
        assert names
        assert all(path.stat().st_mode & 0o077 == 0 for path in (opened.paths.root.parent,))
    assert not opened.paths.root.exists()


# Names


BAD_NAMES = (
    "../outside", "/etc/outside", "a/../../outside", "./a", "a/./b", "a//b", "a/", "", ".hidden", "a/.git/x",
    "a\\b", "C:x", "C:/x", "a\x00b", "a\nb", "a b", "ä", "a\u202eb", "trailing.", "con", "aux.txt", "a/NUL",
    "COM1.log",
    "x" * 101, "/".join("abcdefghij"), "lock", "scratch/x", "~root/x", "*", "-",
)  # fmt: skip
CODE_NAMES = (
    "hooks/post-checkout", "objects/info/alternates", "commondir", "worktrees/x/gitdir", "config.worktree",
    "modules/x/config", "objects/pack/multi-pack-index", "refs/heads/main.lock", "index", "gitdir", "shallow",
)  # fmt: skip


@pytest.mark.parametrize("name", [*BAD_NAMES[:-1], *(f"revisions/{name}" for name in CODE_NAMES)])
def test_a_name_that_leads_elsewhere_or_means_something_is_refused(
    parts: BundleParts, refuse: Callable[[bytes], str], name: str
) -> None:
    assert "is not accepted" in refuse(parts.with_file(name, b"x").build())


@given(st.text(max_size=120))
def test_an_accepted_name_is_a_path_below_the_folder_on_every_system(name: str) -> None:
    if find_name_fault(name) is None:
        path = Path("/folder") / name
        assert os.path.normpath(path) == str(path)
        assert path.is_relative_to("/folder")
        assert name.isascii()
        assert not any(part.startswith(".") or part != part.strip(" .") for part in path.parts[1:])


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("Agent.log", "agent.log"), "upper and lower case"),
        (("x/a", "X/b"), "upper and lower case"),
        (("x", "x/y"), "both a file and a folder"),
        (("X", "x/y"), "both a file and a folder"),
    ],
)
def test_names_that_a_system_takes_for_the_same_are_refused(
    parts: BundleParts, refuse: Callable[[bytes], str], names: tuple[str, str], reason: str
) -> None:
    first, second = names
    assert reason in refuse(parts.with_file(first, b"1").with_file(second, b"2").build())


def test_a_name_that_is_there_twice_is_refused(parts: BundleParts, refuse: Callable[[bytes], str]) -> None:
    listed = parts.record["files"]
    twice = parts.with_record(files=[listed[0], *listed])
    assert "twice" in refuse(twice.build())
    archive, first = parts.archive(), next(iter(parts.files))
    member = make_any_header(f"run/{first}", 1) + b"x" + bytes(511)
    assert "something else" in refuse(
        compress(
            archive.replace(
                make_any_header(f"run/{first}", len(parts.files[first])),
                member + make_any_header(f"run/{first}", len(parts.files[first])),
                1,
            )
        )
    )
    assert "not sorted" in refuse(parts.with_record(files=listed[::-1]).build())


def test_huge_counts_and_sizes_are_refused_by_the_list_alone(
    parts: BundleParts, refuse: Callable[[bytes], str]
) -> None:
    empty = {"size": 0, "sha256": hashlib.sha256().hexdigest()}
    many = [{"path": f"x/{number:06}", **empty} for number in range(MOST_FILES + 1)]
    assert "files; 50,000 are accepted" in refuse(parts.with_record(files=many).build())
    large = [
        {**file, "size": TOTAL_BYTES // 4} if file["path"].endswith(".jsonl") else file
        for file in parts.record["files"]
    ]
    assert "bytes; 2,147,483,648 are accepted" in refuse(parts.with_record(files=large).build())
    negative = [{**file, "size": -512} for file in parts.record["files"]]
    assert "-512 bytes" in refuse(parts.with_record(files=negative).build())
    weights = {"path": "submissions/3/model/model.safetensors", "size": 1 << 35, "sha256": "0" * 64}
    listed = sorted([*parts.record["files"], weights], key=lambda file: file["path"])
    claimed = parts.with_record(files=listed, left_out=[])
    assert "cannot come out of" in refuse(claimed.build())


# The archive


@pytest.mark.parametrize(
    "header",
    [
        make_typed_header(tarfile.SYMTYPE, "/etc/passwd"),
        make_typed_header(tarfile.LNKTYPE, "run/spec.json"),
        make_typed_header(tarfile.CHRTYPE),
        make_typed_header(tarfile.BLKTYPE),
        make_typed_header(tarfile.FIFOTYPE),
        make_typed_header(tarfile.DIRTYPE),
        make_typed_header(tarfile.CONTTYPE),
        make_typed_header(tarfile.GNUTYPE_SPARSE),
        make_typed_header(tarfile.GNUTYPE_LONGNAME),
        make_typed_header(tarfile.REGTYPE, form=tarfile.PAX_FORMAT, path="../outside"),
        make_typed_header(tarfile.REGTYPE, form=tarfile.PAX_FORMAT, **{"GNU.sparse.realsize": "9" * 12}),
        make_typed_header(tarfile.XGLTYPE),
        lambda _, size: make_any_header("run/../../outside", size),
        lambda name, size: make_any_header(name, size + 512),
        lambda name, size: make_any_header(name, size)[:-12] + b"x" * 12,
    ],
)  # fmt: skip
def test_anything_but_the_header_of_the_listed_file_is_refused(
    parts: BundleParts, refuse: Callable[[bytes], str], header: Callable[[str, int], bytes]
) -> None:
    for path in ("agent.log", "submissions/3/submission.json"):
        assert "found something else" in refuse(parts.with_header(path, header).build())


def test_data_behind_the_end_or_between_files_is_refused(
    valid: bytes, parts: BundleParts, refuse: Callable[[bytes], str]
) -> None:
    assert "data after the end of the file" in refuse(valid + b"x")
    assert "data after the end of the file" in refuse(valid + valid)
    assert "data after the end of the file" in refuse(valid + b"\x50\x2a\x4d\x18\x04\x00\x00\x00oops")
    refuse(b"\x50\x2a\x4d\x18\x04\x00\x00\x00oops" + valid)
    assert "after the end" in refuse(replace(parts, end=bytes(1536)).build())
    assert "after the last" in refuse(
        replace(parts, end=parts.with_file("x", b"x").archive()[-1024:-512] + b"x" * 512).build()
    )
    assert "after the last listed file" in refuse(
        replace(parts, end=make_any_header("run/more", 0) + bytes(1024)).build()
    )
    archive = parts.archive()
    first = archive.index(b"}", 512) + archive[archive.index(b"}", 512) :].index(b"\0")
    assert "between two files" in refuse(compress(archive[:first] + b"x" + archive[first + 1 :]))


def test_a_file_that_was_cut_off_is_refused_wherever_that_was(
    valid: bytes, refuse: Callable[[bytes], str]
) -> None:
    for length in (4, 5, 20, len(valid) // 2, len(valid) - 5, len(valid) - 1):
        assert "too early" in refuse(valid[:length]) or length < 20


@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_bundle_is_refused_or_is_the_same(
    data: st.DataObject, valid: bytes, parts: BundleParts
) -> None:
    place = data.draw(st.integers(0, len(valid) - 1))
    changed = bytearray(valid)
    changed[place] ^= data.draw(st.integers(1, 255))
    try:
        record = check_bytes(bytes(changed))
    except InvalidBundle:
        return
    assert record.model_dump(mode="json") == parts.record


@settings(max_examples=40)
@given(data=st.data())
def test_an_archive_with_any_other_byte_after_its_record_is_refused(
    data: st.DataObject, valid: bytes
) -> None:
    archive = bytearray(decompress(valid))
    place = data.draw(st.integers(archive.index(b"bundle.json.sig"), len(archive) - 1))
    archive[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidBundle):
        check_bytes(compress(bytes(archive)))


@settings(max_examples=40)
@given(st.binary(max_size=2000))
def test_any_bytes_are_refused(content: bytes) -> None:
    for file in (content, MAGIC + content, compress(content)):
        with pytest.raises(InvalidBundle):
            check_bytes(file)


def check_bytes(content: bytes) -> BundleRecord:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        return check_bundle(cast(BinaryIO, file))[0]


def test_a_bomb_is_not_inflated(valid: bytes, parts: BundleParts, refuse: Callable[[bytes], str]) -> None:
    header = make_any_header(RECORD_NAME, 17 << 20)
    assert "too large" in refuse(compress(header + bytes(17 << 20)))
    bomb = compress(parts.archive()[:-1024] + bytes(256 << 20))
    assert len(bomb) < 1 << 20
    assert "after the end" in refuse(bomb)
    window_of_a_gigabyte = MAGIC + b"\x00\xa0" + valid[-100:]
    assert "damaged" in refuse(window_of_a_gigabyte)


# The record


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5, [1], True])
def test_a_bundle_of_another_version_is_refused_as_such(
    parts: BundleParts, refuse: Callable[[bytes], str], version: object
) -> None:
    reason = refuse(parts.with_record(format=version, new_field=1).build())
    assert "has the format" in reason
    assert "this version reads 1" in reason


def test_a_record_that_is_none_is_refused(parts: BundleParts, refuse: Callable[[bytes], str]) -> None:
    for text in (b"", b"[]", b"{", b"[" * 100_000, b"null", b"\xff\xfe"):
        refuse(compress(make_any_header(RECORD_NAME, len(text)) + text + bytes(4096)))
    assert "Extra inputs" in refuse(parts.with_record(more=1).build())
    assert "run id" in refuse(parts.with_record(run_id="../x").build())
    for path in ("spec.json", "ledger.jsonl", "result.json"):
        files = {name: data for name, data in parts.files.items() if name != path}
        assert f"{path} is missing" in refuse(replace(parts, files=files).list_anew().build())


def test_a_bundle_cannot_put_lines_of_its_own_into_what_verify_says(
    parts: BundleParts, tmp_path: Path, launcher: RunLauncher
) -> None:
    reason = "\x1b[2J\nthe record holds\nsignature: signed by alice"
    left_out = [{**each, "reason": reason} for each in parts.record["left_out"]]
    (tmp_path / "bundle.tar.zst").write_bytes(parts.with_record(left_out=left_out).build())
    lines = launcher.cli("verify", str(tmp_path / "bundle.tar.zst")).stdout.splitlines()
    assert any("[2J the record holds signature: signed by alice" in line for line in lines)
    assert lines.count("the record holds") == 1
    assert lines[-1] == "signature: unsigned"


def test_scores_cannot_be_excused_from_the_check(parts: BundleParts, refuse: Callable[[bytes], str]) -> None:
    for path in (
        SCORES,
        "ledger.jsonl",
        "result.json",
        "contamination.json",
        "submissions/3/submission.json",
    ):
        scrubbed = [{"path": path, "secrets": 1, "original_sha256": "0" * 64}]
        assert "nothing may be replaced" in refuse(parts.with_record(scrubbed=scrubbed).build())
    for path in ("submissions/", "submissions/3/", "baseline/", "submissions/3/model", ""):
        left_out = [{"path": path, "reason": "why not"}]
        assert "may not be left out" in refuse(parts.with_record(left_out=left_out).build())


def test_a_file_with_another_hash_than_listed_is_refused(
    parts: BundleParts, refuse: Callable[[bytes], str]
) -> None:
    content = parts.files[SCORES].replace(b'"score":0.0', b'"score":1.0', 1)
    assert len(content) == len(parts.files[SCORES])
    assert "another hash" in refuse(replace(parts, files={**parts.files, SCORES: content}).build())


def test_a_record_that_was_changed_and_listed_anew_does_not_hold(parts: BundleParts, tmp_path: Path) -> None:
    better = parts.files[SCORES].replace(b'"score":0.0', b'"score":1.0')
    result = json.loads(parts.files["result.json"])
    changes = {
        f"{SCORES} was changed": parts.with_file(SCORES, better),
        "result.json was changed": parts.with_file(
            "result.json", json.dumps(result | {"score": 99}).encode()
        ),
        "names another run": parts.with_record(run_id="another-run"),
        "another last ledger record": parts.with_record(ledger_head="0" * 64),
        "other fingerprints": parts.with_record(fingerprints=parts.record["fingerprints"][1:]),
        "submissions/4 is not in the ledger": parts.with_file("submissions/4/submission.json", b"{}"),
    }
    for reason, changed in changes.items():
        (tmp_path / "bundle").write_bytes(changed.build())
        with open_bundle(tmp_path / "bundle") as opened:
            verification = verify_bundle(opened)
        assert not verification.accepted
        assert verification.fault is not None
        assert reason in verification.fault


JUNK = (b"null", b"[]", b"{}", b"-1", b"1e400", b"NaN", b"9" * 400, b'"\\ud800"', b"[" * 200)


@settings(max_examples=25)
@given(data=st.data())
def test_no_content_of_a_file_crashes_verify(
    data: st.DataObject, parts: BundleParts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = data.draw(st.sampled_from(sorted(parts.files)))
    content = parts.files[path]
    begin, end = sorted(data.draw(st.integers(0, len(content))) for _ in range(2))
    middle = data.draw(st.sampled_from([*JUNK, b"", content[begin:end][::-1]]))
    bundle = tmp_path_factory.mktemp("changed") / "bundle"
    bundle.write_bytes(parts.with_file(path, content[:begin] + middle + content[end:]).build())
    with suppress(UserError), open_bundle(bundle) as opened:
        assert verify_bundle(opened).model_dump_json()


# The record of code


def with_pack(parts: BundleParts, pack: bytes, index: bytes) -> bytes:
    return parts.with_file(f"{PACK}.pack", pack).with_file(f"{PACK}.idx", index).build()


def test_code_that_would_inflate_without_end_is_refused(
    parts: BundleParts, refuse: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(3 << 20)
    monkeypatch.setattr(git_objects, "OBJECT_BYTES", 1 << 20)
    pack, places = make_pack((3, 100, content))
    assert "inflate without end" in refuse(with_pack(parts, pack, make_index(places)))
    pack, places = make_pack((3, 1 << 40, b"x"))
    assert "has 1,099,511,627,776 bytes" in refuse(with_pack(parts, pack, make_index(places)))
    loose = zlib.compress(b"blob 5\0" + content)
    assert "inflate without end" in refuse(parts.with_file("revisions/objects/00/" + "0" * 38, loose).build())
    monkeypatch.setattr(git_objects, "OBJECTS_BYTES", 3 << 19)
    half = bytes(1 << 20)
    pack, places = make_pack((3, 1 << 20, half), (3, 1 << 20, half))
    assert "inflate without end" in refuse(with_pack(parts, pack, make_index(places)))


def test_code_that_git_does_not_write_so_is_refused(
    parts: BundleParts, refuse: Callable[[bytes], str]
) -> None:
    config = parts.files["revisions/config"] + b"[core]\n\tfsmonitor = touch /tmp/owned\n"
    assert "configuration" in refuse(parts.with_file("revisions/config", config).build())
    config = b"[core]\n\tbare = true\n[include]\n\tpath = ../x\n"
    assert "configuration" in refuse(parts.with_file("revisions/config", config).build())
    pack, places = make_pack((6, 1, b"x"))
    assert "never recorded" in refuse(with_pack(parts, pack, make_index(places)))
    pack, places = make_pack((3, 1, b"x"))
    assert "does not fit" in refuse(with_pack(parts, pack, make_index([places[0] + 1])))
    assert "another size" in refuse(with_pack(parts, *(make_pack((3, 2, b"x"))[0], make_index(places))))
    assert "damaged" in refuse(with_pack(parts, pack[:13] + b"junk" + pack[17:], make_index(places)))
    assert "not a git pack" in refuse(with_pack(parts, b"KCAP" + pack[4:], make_index(places)))
    assert "index" in refuse(with_pack(parts, pack, b"junk"))


@given(st.lists(st.binary(max_size=3000), max_size=6), st.integers(1, 700))
def test_the_objects_of_a_pack_are_found_however_their_bytes_come(contents: list[bytes], chunk: int) -> None:
    pack, places = make_pack(*((Blob.type_num, len(content), content) for content in contents))
    scanner = git_objects.ObjectScanner.for_pack()
    for begin in range(0, len(pack), chunk):
        scanner.feed(pack[begin : begin + chunk])
    assert scanner.offsets == {*places}
    assert git_objects.read_index_offsets(make_index(places)) == {*places}
