"""Digests of large files are kept while nothing about the files changes, and not trusted otherwise."""

import os
import time
from pathlib import Path

import pytest

from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.file_hashes import SMALL_BYTES, FileHashCache
from agent2rl.models.abacus import Abacus
from agent2rl.record.files import sha256_file


@pytest.fixture
def cache(tmp_path: Path) -> FileHashCache:
    return FileHashCache(tmp_path / "hashes", settled_seconds=0)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(SMALL_BYTES))
    time.sleep(0.05)  # the kernel's clock for time stamps ticks every few milliseconds
    return path


def forge_digest(cache: FileHashCache, digest: str) -> Path:
    """Put another digest into the only entry, so that it shows whether the entry is used."""
    (entry,) = cache.folder.iterdir()
    text = entry.read_text()
    begin = text.index('"digest": "') + len('"digest": "')
    entry.write_text(text[:begin] + digest + text[begin + 64 :])
    return entry


def test_a_file_is_hashed_once(cache: FileHashCache, large: Path) -> None:
    assert cache.hash_file(large) == sha256_file(large)
    forge_digest(cache, "f" * 64)
    assert cache.hash_file(large) == "f" * 64


def test_a_small_file_is_hashed_each_time(cache: FileHashCache, tmp_path: Path) -> None:
    (tmp_path / "small").write_text("small")
    assert cache.hash_file(tmp_path / "small") == sha256_file(tmp_path / "small")
    assert not cache.folder.exists()


def test_a_rewrite_that_keeps_size_and_time_stamp_is_noticed(cache: FileHashCache, large: Path) -> None:
    before, status = cache.hash_file(large), large.stat()
    large.write_bytes(os.urandom(SMALL_BYTES))
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.hash_file(large) == sha256_file(large) != before


def test_a_file_in_the_place_of_another_is_hashed(cache: FileHashCache, large: Path) -> None:
    before = cache.hash_file(large)
    other = large.with_name("other")
    other.write_bytes(os.urandom(SMALL_BYTES))
    other.replace(large)
    assert cache.hash_file(large) == sha256_file(large) != before


def test_a_file_with_other_content_under_the_same_identity_is_hashed_again(
    cache: FileHashCache, large: Path
) -> None:
    cache.hash_file(large)
    entry = forge_digest(cache, "f" * 64)
    text = entry.read_text()
    begin = text.index('"blocks_sha256": "') + len('"blocks_sha256": "')
    entry.write_text(text[:begin] + "0" * 64 + text[begin + 64 :])
    assert cache.hash_file(large) == sha256_file(large)


def test_an_entry_that_others_can_write_is_not_used(cache: FileHashCache, large: Path) -> None:
    cache.hash_file(large)
    forge_digest(cache, "f" * 64).chmod(0o666)
    assert cache.hash_file(large) == sha256_file(large)


def test_a_file_that_has_just_changed_is_not_cached(tmp_path: Path, large: Path) -> None:
    cache = FileHashCache(tmp_path / "hashes", settled_seconds=3600)
    assert cache.hash_file(large) == sha256_file(large)
    assert not cache.folder.exists()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, large: Path) -> None:
    (tmp_path / "file").write_text("")
    assert FileHashCache(tmp_path / "file" / "hashes", 0).hash_file(large) == sha256_file(large)


def test_a_base_model_has_the_same_hashes_with_and_without_the_cache(
    cache: FileHashCache, tmp_path: Path
) -> None:
    Abacus.base().save(tmp_path / "base")
    time.sleep(0.05)
    fresh = read_base_model(tmp_path / "base")
    for _ in range(2):
        cached = read_base_model(tmp_path / "base", cache)
        assert (cached.manifest, cached.weights_sha256) == (fresh.manifest, fresh.weights_sha256)
    assert len(list(cache.folder.iterdir())) == 1
