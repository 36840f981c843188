"""Fingerprints: small, exact, the same everywhere, and refused where they are not what they should be."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from agent2rl.core.errors import UserError
from agent2rl.grading.fingerprint import (
    LENGTH_BYTES,
    MAGIC,
    MOST_BYTES,
    Fingerprint,
    FingerprintHeader,
    MatrixEntry,
    choose_sketch_length,
    encode_fingerprint,
    estimate_bytes,
    make_fingerprint,
    read_fingerprint,
    write_fingerprint,
)
from agent2rl.grading.weight_sketch import NORMS, MatrixSketch, SortedNorms


def write_model(directory: Path, seed: int = 0, shape: tuple[int, int] = (48, 64)) -> Path:
    dice = np.random.default_rng(seed)
    directory.mkdir(exist_ok=True)
    matrices = {name: dice.normal(size=shape).astype("float32") for name in ("a", "b")}
    save_file({**matrices, "norm": np.ones(shape[1], "float32")}, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Fingerprint:
    return make_fingerprint(write_model(tmp_path_factory.mktemp("model")), "a model")


def test_a_fingerprint_that_is_written_and_read_is_the_same(made: Fingerprint, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.fingerprint"
    size = write_fingerprint(made, path)
    read = read_fingerprint(path)
    assert size == path.stat().st_size < estimate_bytes(["a", "b"], made.header.sketch_length)
    assert read.header == made.header
    assert [entry.name for entry in read.header.matrices] == ["a", "b"]
    for name, matrix in made.matrices.items():
        assert np.allclose(read.matrices[name].sketch, matrix.sketch, rtol=1e-6)
        assert np.allclose(read.matrices[name].norms.columns, matrix.norms.columns, rtol=1e-6)


def test_the_cosine_of_two_sketches_is_that_of_the_matrices(tmp_path: Path) -> None:
    first = make_fingerprint(write_model(tmp_path / "one", 1), "one").matrices["a"].sketch
    second = make_fingerprint(write_model(tmp_path / "two", 2), "two").matrices["a"].sketch
    both = first + second
    cosine = (both @ first) / np.linalg.norm(both) / np.linalg.norm(first)
    assert cosine == pytest.approx(0.5**0.5, abs=0.06)
    assert np.linalg.norm(first) == pytest.approx((48 * 64) ** 0.5, rel=0.1)


def test_a_sketch_is_the_same_on_every_machine_and_with_every_version_of_numpy(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    numbers = (np.arange(48 * 64, dtype="float32").reshape(48, 64) % 7) - 3
    save_file({"a": numbers}, tmp_path / "model.safetensors")
    sketch = make_fingerprint(tmp_path, "numbers").matrices["a"].sketch
    assert sketch[:8].tolist() == EXPECTED


EXPECTED = [4.0, 2.0, 0.0, -2.0, -2.0, 5.0, 1.0, -4.0]


def shapes_of_llama(
    layers: int, hidden: int, inner: int, keys: int, vocabulary: int
) -> dict[str, tuple[int, ...]]:
    parts = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    matrices: dict[str, tuple[int, ...]] = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(layers)
        for name, shape in parts.items()
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        matrices[name] = (vocabulary, hidden)
    return matrices


@pytest.mark.parametrize(
    ("name", "shapes", "length"),
    [
        ("Llama-2-7B", shapes_of_llama(32, 4096, 11008, 4096, 32000), 2039),
        ("Qwen2.5-7B", shapes_of_llama(28, 3584, 18944, 512, 152064), 2039),
        ("Llama-3.1-8B", shapes_of_llama(32, 4096, 14336, 1024, 128256), 2039),
        ("Qwen3-32B", shapes_of_llama(64, 5120, 25600, 1024, 151936), 2039),
        ("Llama-3.1-70B", shapes_of_llama(80, 8192, 28672, 1024, 128256), 2039),
        ("Llama-3.1-405B", shapes_of_llama(126, 16384, 53248, 1024, 128256), 1021),
    ],
)
def test_the_fingerprint_of_a_large_model_has_less_than_5_mb(
    name: str, shapes: dict[str, tuple[int, ...]], length: int
) -> None:
    """Encoded as it is, from its real shapes; only the numbers are zeros."""
    assert choose_sketch_length(list(shapes)) == length, name
    entries = tuple(MatrixEntry(name=each, dtype="BF16", shape=shape) for each, shape in shapes.items())
    header = FingerprintHeader(name=name, weights_sha256="0" * 64, sketch_length=length, matrices=entries)
    empty = MatrixSketch(np.zeros(length), SortedNorms(np.zeros(NORMS), np.zeros(NORMS)))
    data = encode_fingerprint(Fingerprint(header, dict.fromkeys(shapes, empty)))
    assert len(data) <= estimate_bytes(list(shapes), length) <= MOST_BYTES


def test_a_model_of_too_many_matrices_is_refused_before_any_work() -> None:
    with pytest.raises(UserError, match="too many for a fingerprint"):
        choose_sketch_length(
            [f"model.layers.{number}.mlp.experts.7.up_proj.weight" for number in range(20_000)]
        )


def test_weights_that_are_not_numbers_and_odd_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be the name"):
        make_fingerprint(write_model(tmp_path), "a\nname")
    save_file({"a": np.full((48, 64), np.nan, "float32")}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="NaN"):
        make_fingerprint(tmp_path, "nan")
    save_file({"a": np.ones(64, "float32")}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="no matrix that is large enough"):
        make_fingerprint(tmp_path, "vector")
    with pytest.raises(UserError, match="cannot be read"):
        make_fingerprint(tmp_path / "none", "none")


# Hostile files


def edit_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    begin = len(MAGIC) + LENGTH_BYTES
    end = begin + int.from_bytes(data[len(MAGIC) : begin], "little")
    header = json.loads(data[begin:end])
    change(header)
    text = json.dumps(header).encode()
    return MAGIC + len(text).to_bytes(LENGTH_BYTES, "little") + text + data[end:]


def list_hostile_files(data: bytes) -> Iterator[tuple[str, bytes]]:
    begin = len(MAGIC) + LENGTH_BYTES
    first = {"name": "a", "dtype": "F32", "shape": [48, 64]}
    yield "does not begin", b""
    yield "does not begin", b"\x80\x04\x95pickle"
    yield "does not begin", b"PK\x03\x04" + data
    yield "header is said to have", MAGIC + (1 << 62).to_bytes(LENGTH_BYTES, "little") + data[begin:]
    yield "header is said to have", MAGIC
    yield "not valid JSON", MAGIC + (4).to_bytes(LENGTH_BYTES, "little") + b"[[[["
    yield "not valid JSON", MAGIC + (30_000).to_bytes(LENGTH_BYTES, "little") + b"[" * 30_000
    yield "bytes of numbers", data[:-4]
    yield "bytes of numbers", data + b"\0" * 4
    yield "more than 5,000,000 bytes", data + b"\0" * MOST_BYTES
    yield "not finite", data[:-4] + np.float32(np.nan).tobytes()
    yield "not finite, or too large", data[:-4] + np.float32(3e38).tobytes()
    yield "negative lengths", data[:-4] + np.float32(-1).tobytes()
    yield "impossible name", edit_header(data, lambda header: header.update(name="<script>\u202e"))
    yield "of its header", edit_header(data, lambda header: header.update(code="import os"))
    yield "of its header", edit_header(data, lambda header: header.update(matrices=[]))
    yield "of its header", edit_header(data, lambda header: header.update(weights_sha256="x"))
    yield "sketches have 1000000000", edit_header(data, lambda header: header.update(sketch_length=10**9))
    yield "two matrices", edit_header(data, lambda header: header.update(matrices=[first, first]))
    for shape, dtype in (([1 << 62, 8], "F32"), ([1, 2], "F32"), ([48, 64], "I8"), ([48, 64], "object")):
        entry = {"name": "a", "dtype": dtype, "shape": shape}
        change = partial(dict.update, matrices=[entry])
        yield "impossible dtype or shape", edit_header(data, change)


def test_a_hostile_fingerprint_is_refused_with_the_reason(made: Fingerprint, tmp_path: Path) -> None:
    data = encode_fingerprint(made)
    for reason, content in list_hostile_files(data):
        path = tmp_path / "hostile.fingerprint"
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a usable fingerprint") as refused:
            read_fingerprint(path)
        assert reason in refused.value.message, (reason, refused.value.message)
    for path in (tmp_path, tmp_path / "none.fingerprint"):
        with pytest.raises(UserError, match="no such file"):
            read_fingerprint(path)


@given(place=st.integers(0, 20_000), byte=st.integers(0, 255))
def test_a_damaged_fingerprint_is_read_or_refused_and_nothing_else(
    made: Fingerprint, tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    data = bytearray(encode_fingerprint(made))
    data[place % len(data)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.fingerprint"
    path.write_bytes(bytes(data))
    try:
        read = read_fingerprint(path)
    except UserError:
        return
    assert all(np.isfinite(matrix.sketch).all() for matrix in read.matrices.values())


def test_two_models_with_the_same_values_have_the_same_fingerprint(made: Fingerprint, tmp_path: Path) -> None:
    again = make_fingerprint(write_model(tmp_path / "again"), "a model")
    assert encode_fingerprint(again) == encode_fingerprint(replace(made, sha256=""))
