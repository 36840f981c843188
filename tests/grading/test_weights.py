"""Safetensors: what is accepted is sound, what is refused says why, the digest is of the weights alone."""

import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save, save_file

from agent2rl.core.errors import Refusal
from agent2rl.grading import untrusted_model_files
from agent2rl.grading.untrusted_model_files import Tensor, read_tensors, tensor_sha256, weights_sha256

Layers = dict[str, npt.NDArray[Any]]
LAYERS: Layers = {
    "embed.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
    "layer.bias": np.ones(3, dtype=np.float16),
    "scale": np.array(2.0),
}


def encoded(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refusal(directory: Path) -> str:
    with pytest.raises(Refusal) as caught:
        read_tensors(directory)
    assert caught.value.hint
    return str(caught.value)


def refused(directory: Path, data: bytes) -> str:
    (directory / "model.safetensors").write_bytes(data)
    return refusal(directory)


def sharded(directory: Path, shards: dict[str, Layers], weight_map: object = None) -> None:
    for file, layers in shards.items():
        save_file(layers, directory / file)
    placed = weight_map or {name: file for file, layers in shards.items() for name in layers}
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": placed})
    )


def test_tensors_are_read_with_their_kind_shape_and_place(tmp_path: Path) -> None:
    save_file(LAYERS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = read_tensors(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
        "embed.weight": ("F32", (4, 3)),
        "layer.bias": ("F16", (3,)),
        "scale": ("F64", ()),
    }
    for name, tensor in found.items():
        assert data[slice(*tensor.offsets)] == LAYERS[name].tobytes()
        assert tensor.parameters == LAYERS[name].size


def test_shards_read_like_one_file(tmp_path: Path) -> None:
    sharded(
        tmp_path,
        {
            "model-1.safetensors": {"scale": LAYERS["scale"]},
            "model-2.safetensors": {"b": LAYERS["layer.bias"]},
        },
    )
    assert {name: tensor.file.name for name, tensor in read_tensors(tmp_path).items()} == {
        "scale": "model-1.safetensors",
        "b": "model-2.safetensors",
    }


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (b"1234567", "cut off"),
        (struct.pack("<Q", 100) + b"{}", "cut off"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "cut off"),
        (encoded(b""), "not a JSON object"),
        (encoded(b" {}"), "not a JSON object"),
        (encoded(b"[]"), "not a JSON object"),
        (encoded(b"{"), "is not valid JSON"),
        (encoded(b'{"\xff": 1}'), "not UTF-8"),
        (encoded(b'{"\\ud800": 1}'), "not UTF-8"),
        (encoded(b"{}"), "has 0 tensors"),
        (encoded({"__metadata__": {"format": "pt"}}), "has 0 tensors"),
        (encoded({"__metadata__": {"format": 1}, "a": entry()}, bytes(8)), "__metadata__"),
        (encoded({"__metadata__": None, "a": entry()}, bytes(8)), "__metadata__"),
        (encoded(b'{"a": 1, "a": 2}'), "'a' occurs more than once"),
        (encoded({"a": {"dtype": "F32", "shape": [2]}}), "needs dtype, shape and data_offsets"),
        (encoded({"a": {**entry(), "more": 1}}, bytes(8)), "and nothing else"),
        (encoded({"a": []}), "needs dtype"),
        (encoded({"a": entry(dtype="F31")}, bytes(8)), "unknown dtype 'F31'"),
        (encoded({"a": entry(dtype=["F32"])}, bytes(8)), "unknown dtype"),
        (encoded({"a": entry(shape="2")}, bytes(8)), "impossible shape"),
        (encoded({"a": entry(shape=[-2])}, bytes(8)), "impossible shape"),
        (encoded({"a": entry(shape=[2.0])}, bytes(8)), "impossible shape"),
        (encoded({"a": entry(shape=[True, 2])}, bytes(8)), "impossible shape"),
        (encoded({"a": entry(shape=[2] + [1] * 8)}, bytes(8)), "impossible shape"),
        (encoded({"a": entry(shape=[2**62, 2**62, 0], offsets=[0, 0])}), "more than any file"),
        (encoded({"a": entry(shape=[2**63], offsets=[0, 2**63])}), "more than any file"),
        (encoded({"a": entry(offsets=[0])}, bytes(8)), "impossible data_offsets"),
        (encoded({"a": entry(offsets=[0, 8, 8])}, bytes(8)), "impossible data_offsets"),
        (encoded({"a": entry(offsets=[-8, 0])}, bytes(8)), "impossible data_offsets"),
        (encoded({"a": entry(offsets=[False, 8])}, bytes(8)), "impossible data_offsets"),
        (encoded({"a": entry(offsets=[8, 0])}, bytes(8)), "do not fit its shape"),
        (encoded({"a": entry(offsets=[0, 4])}, bytes(8)), "do not fit its shape"),
        (encoded({"a": entry(offsets=[0, 10**60])}, bytes(8)), "out of range"),
        (encoded({"a": entry(offsets=[8, 16])}, bytes(16)), "leaves a hole"),
        (encoded({"a": entry(), "b": entry()}, bytes(8)), "overlaps"),
        (encoded({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)), "overlaps"),
        (encoded({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)), "leaves a hole"),
        (encoded({"a": entry()}, bytes(7)), "end at byte"),
        (encoded({"a": entry()}, bytes(9)), "end at byte"),
        (encoded(b'{"a":' + b"[" * 100_000), "deep"),
        (encoded(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"), "deep"),
        (
            encoded({f"t{number}": entry(shape=[0], offsets=[0, 0]) for number in range(20_001)}),
            "20,001 tensors",
        ),
    ],
    ids=str,
)
def test_an_unsound_file_is_refused_with_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    assert reason in refused(tmp_path, data)


def test_a_header_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2**30))
        file.truncate(2**31)
    assert "the limit is 16,777,216" in refusal(tmp_path)


def test_a_very_long_name_does_not_make_a_very_long_message(tmp_path: Path) -> None:
    assert len(refused(tmp_path, encoded({"a" * 1_000_000: entry(dtype="none")}, bytes(8)))) < 500


@pytest.mark.parametrize("dtype", sorted(untrusted_model_files.DTYPE_BYTES))
def test_every_known_dtype_is_accepted_here_and_by_the_library(tmp_path: Path, dtype: str) -> None:
    size = untrusted_model_files.DTYPE_BYTES[dtype]
    data = encoded({"a": entry(dtype, [3], [0, 3 * size])}, bytes(3 * size))
    (tmp_path / "model.safetensors").write_bytes(data)
    assert read_tensors(tmp_path)["a"].dtype == dtype
    with safe_open(tmp_path / "model.safetensors", "numpy") as library:
        assert library.get_slice("a").get_dtype() == dtype


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    assert "neither model.safetensors nor" in refusal(tmp_path)


def test_one_file_and_an_index_together_are_refused(tmp_path: Path) -> None:
    sharded(tmp_path, {"model-1.safetensors": LAYERS})
    save_file(LAYERS, tmp_path / "model.safetensors")
    assert "both" in refusal(tmp_path)


ONE, TWO = {"a": np.zeros(2)}, {"b": np.zeros(2)}


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        ([], "needs a weight_map"),
        ("text", "needs a weight_map"),
        ({"a": "1.safetensors", "b": 2}, "places 'b' in 2"),
        ({"a": "1.safetensors", "b": "../2.safetensors"}, "not a shard's name"),
        ({"a": "1.safetensors", "b": "/etc/passwd"}, "not a shard's name"),
        ({"a": "1.safetensors", "b": "2.safetensors\n"}, "not a shard's name"),
        ({"a": "1.safetensors", "b": "3.safetensors"}, "missing files: '3.safetensors'"),
        ({"a": "1.safetensors", "b": "1.safetensors"}, "disagree about 'b'"),
        ({"a": "2.safetensors", "b": "1.safetensors"}, "disagree about 'a', 'b'"),
        ({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}, "disagree about 'c'"),
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_its_shards_is_refused(
    tmp_path: Path, weight_map: object, reason: str
) -> None:
    sharded(tmp_path, {"1.safetensors": ONE, "2.safetensors": TWO})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert reason in refusal(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    placed = {"a": "1.safetensors", "b": "2.safetensors"}
    sharded(tmp_path, {"1.safetensors": ONE, "2.safetensors": {**ONE, **TWO}}, placed)
    assert "disagree about 'a'" in refusal(tmp_path)


@settings(max_examples=30, deadline=None)
@given(homes=st.lists(st.integers(0, 2), min_size=3, max_size=3), order=st.permutations(sorted(LAYERS)))
def test_sharding_and_order_do_not_change_the_digest(homes: list[int], order: list[str]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        save_file(LAYERS, Path(one, "model.safetensors"), metadata={"format": "pt"})
        shards: dict[str, Layers] = {}
        for name, home in zip(order, homes, strict=True):
            shards.setdefault(f"model-{home}.safetensors", {})[name] = LAYERS[name]
        sharded(Path(many), shards)
        assert weights_sha256(Path(one)) == weights_sha256(Path(many))


@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers | {"scale": np.array(2.5)},
        lambda layers: layers | {"scale": np.array(2.0, dtype=np.float32)},
        lambda layers: layers | {"embed.weight": layers["embed.weight"].reshape(3, 4)},
        lambda layers: layers | {"extra": np.zeros(0)},
        lambda layers: {name.replace("scale", "shift"): layer for name, layer in layers.items()},
    ],
    ids=["value", "dtype", "shape", "another tensor", "name"],
)
def test_any_change_of_the_weights_changes_the_digest(
    tmp_path: Path, change: Callable[[Layers], Layers]
) -> None:
    for name, layers in (("before", LAYERS), ("after", change(LAYERS))):
        (tmp_path / name).mkdir()
        save_file(layers, tmp_path / name / "model.safetensors")
    assert weights_sha256(tmp_path / "before") != weights_sha256(tmp_path / "after")


def test_tensors_of_many_chunks_are_hashed_to_their_end(tmp_path: Path) -> None:
    large = np.zeros(untrusted_model_files.CHUNK + 1, dtype=np.uint8)
    digests = []
    for value in (0, 1):
        large[-1] = value
        save_file({"a": large, "b": large[:7]}, tmp_path / "model.safetensors")
        digests.append((weights_sha256(tmp_path), tensor_sha256(read_tensors(tmp_path)["a"])))
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] != digests[1][1]


def accepted(directory: Path) -> dict[str, Tensor] | None:
    try:
        return read_tensors(directory)
    except Refusal as error:
        str(error).encode()
        return None


def check_against_the_library(data: bytes) -> None:
    """Either refused, or the library reads the same names, kinds and shapes."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.safetensors")
        path.write_bytes(data)
        found = accepted(Path(name))
        if found is None:
            return
        with safe_open(path, "numpy") as library:
            assert set(library.keys()) == set(found)
            for key, tensor in found.items():
                piece = library.get_slice(key)
                assert (piece.get_dtype(), tuple(piece.get_shape())) == (tensor.dtype, tensor.shape)


SOUND = save(LAYERS)
HEADER_END = 8 + int.from_bytes(SOUND[:8], "little")


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_or_read_as_the_library_reads_them(data: bytes) -> None:
    check_against_the_library(data)


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, HEADER_END + 20), st.binary(min_size=1, max_size=3)), max_size=4
    ),
    end=st.integers(0, len(SOUND) + 8),
)
def test_mutated_files_are_refused_or_read_as_the_library_reads_them(
    changes: list[tuple[int, bytes]], end: int
) -> None:
    data = bytearray(SOUND)
    for place, replacement in changes:
        data[place : place + len(replacement)] = replacement
    check_against_the_library(bytes(data[:end]) + bytes(max(0, end - len(data))))


NUMBERS = st.one_of(st.integers(0, 16), st.integers(-(2**65), 2**65), st.booleans(), st.floats(), st.none())
HEADERS = st.dictionaries(
    st.one_of(st.sampled_from(["a", "b", "__metadata__"]), st.text(max_size=5)),
    st.one_of(
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from([*untrusted_model_files.DTYPE_BYTES, "F4", "", None]),
                "shape": st.lists(NUMBERS, max_size=10),
                "data_offsets": st.lists(NUMBERS, max_size=3),
            }
        ),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3)),
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(header=HEADERS, data=st.binary(max_size=64))
def test_arbitrary_headers_are_refused_or_read_as_the_library_reads_them(
    header: dict[str, object], data: bytes
) -> None:
    check_against_the_library(encoded(header, data))


@settings(max_examples=200, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(
            st.sampled_from(sorted(untrusted_model_files.DTYPE_BYTES)),
            st.lists(st.integers(0, 4), max_size=8),
        ),
        min_size=1,
        max_size=5,
    ),
    data=st.data(),
)
def test_every_sound_file_is_accepted(shapes: list[tuple[str, list[int]]], data: st.DataObject) -> None:
    header, end = {}, 0
    for number, (dtype, shape) in enumerate(shapes):
        size = int(np.prod(shape, dtype=int)) * untrusted_model_files.DTYPE_BYTES[dtype]
        header[f"t{number}"] = entry(dtype, shape, [end, end + size])
        end += size
    shuffled = dict(data.draw(st.permutations(list(header.items()))))
    with tempfile.TemporaryDirectory() as name:
        Path(name, "model.safetensors").write_bytes(encoded(shuffled, bytes(end)))
        assert read_tensors(Path(name)).keys() == header.keys()
    check_against_the_library(encoded(shuffled, bytes(end)))
