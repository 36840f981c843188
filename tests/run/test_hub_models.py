"""Base models by their name on the hub: from a hub that runs here, and from the hub's cache without one."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent2rl.grading.freeze import compute_manifest
from tests.helpers.forked_cli import run_forked
from tests.helpers.run_launcher import RUN_SECONDS, RunLauncher
from tests.helpers.tiny_models import write_tiny_llama
from tests.run.hub_server import HubRepository, HubServer, serve_hub
from tests.run.named_model import prepare_named_model

pytest.importorskip("huggingface_hub")

ROOT = Path(__file__).resolve().parents[2]
COMMIT, OTHER = "1" * 40, "2" * 40
NAME = "acme/tiny"
STRANGERS = {
    "pytorch_model.bin": b"pickle",
    "modeling_tiny.py": b"raise SystemExit",
    "tiny.gguf": b"GGUF",
    "README.md": b"# tiny",
    "pytorch_model.bin.index.json": b"{}",
    "consolidated.safetensors": b"again",
    "original/params.json": b"{}",
    "onnx/model.safetensors": b"once more",
}
"""What repositories hold beside a model."""


@dataclass(frozen=True)
class Place:
    """A machine's caches, and the hub it knows."""

    root: Path
    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_HOME": str(self.root / "hf"), "HF_ENDPOINT": self.endpoint}

    def prepare(self, name: str, **more: str) -> dict[str, Any]:
        """In a process of its own: the hub's library reads its environment when it is imported."""
        environment = {**os.environ, **self.environment, **more}
        arguments = (name, str(self.root / "cache"))
        done = run_forked(prepare_named_model, arguments, self.root, environment, self.root, RUN_SECONDS)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def hub(tiny: Path) -> Iterator[HubServer]:
    with serve_hub() as server:
        server.repositories[NAME] = HubRepository.of(tiny, commit=COMMIT)
        server.repositories[NAME].files |= STRANGERS
        yield server


@pytest.fixture
def place(tmp_path: Path, hub: HubServer) -> Place:
    return Place(tmp_path, hub.url)


def without_network(place: Place) -> Place:
    return Place(place.root, "http://127.0.0.1:9")


def test_a_name_is_pinned_to_its_commit_and_only_the_model_is_fetched(
    place: Place, hub: HubServer, tiny: Path
) -> None:
    said = place.prepare(NAME)
    assert said["name"] == f"{NAME}@{COMMIT}"
    assert compute_manifest(Path(said["directory"])) == compute_manifest(tiny)
    assert {name for name, _ in hub.sent}.isdisjoint(STRANGERS)
    assert [line.partition(" (")[0] for line in said["told"]] == [f"downloading {NAME}"]


def test_what_is_prepared_are_plain_files_that_others_can_read_and_take_no_disk_twice(place: Place) -> None:
    directory = Path(place.prepare(NAME)["directory"])
    for file in directory.iterdir():
        assert not file.is_symlink()
        assert file.stat().st_mode & 0o777 == 0o644
        assert file.stat().st_nlink == 2


def test_a_second_run_fetches_nothing_and_needs_no_network(place: Place, hub: HubServer) -> None:
    first = place.prepare(NAME)
    hub.sent.clear()
    again = without_network(place).prepare(NAME)
    assert (again["name"], again["directory"]) == (first["name"], first["directory"])
    assert (again["told"], hub.sent) == ([], [])


@pytest.mark.thorough
def test_a_commit_stays_what_it_is_while_the_branch_moves_on(place: Place, hub: HubServer) -> None:
    first = place.prepare(NAME)["name"]
    hub.repositories[NAME].commit = OTHER
    assert place.prepare(NAME)["name"] == f"{NAME}@{OTHER}"
    assert place.prepare(first)["name"] == first


def test_a_broken_transfer_goes_on_where_it_broke(place: Place, hub: HubServer) -> None:
    weights = os.urandom(25 << 20)
    repository = HubRepository({"config.json": b"{}", "model.safetensors": weights}, cut=[21 << 20])
    hub.repositories["acme/large"] = repository
    said = place.prepare("acme/large")
    assert (Path(said["directory"]) / "model.safetensors").read_bytes() == weights
    asked = [start for name, start in hub.sent if name == "model.safetensors"]
    assert len(asked) == 2
    assert asked[0] is None
    assert asked[1] is not None
    assert int(asked[1].removeprefix("bytes=").rstrip("-")) >= 20 << 20  # the library writes 10 MiB at a time


@pytest.mark.thorough
def test_files_that_arrived_whole_are_not_fetched_again(place: Place, hub: HubServer) -> None:
    hub.repositories[NAME].cut = [0] * 6
    said = place.prepare(NAME)
    assert said["error"] == "ExternalServiceError"
    assert "not complete in its cache" in said["message"]
    before = {name for name, _ in hub.sent if not name.endswith(".safetensors")}
    hub.sent.clear()
    assert "error" not in place.prepare(NAME)
    assert before
    assert {name for name, _ in hub.sent}.isdisjoint(before)


def test_a_damaged_cache_is_mended(place: Place, hub: HubServer, tiny: Path) -> None:
    directory = Path(place.prepare(NAME)["directory"])
    with (directory / "model.safetensors").open("r+b") as file:  # the hub's own cache has the same file
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    hub.sent.clear()
    said = place.prepare(NAME)
    assert compute_manifest(Path(said["directory"])) == compute_manifest(tiny)
    assert hub.sent == [("model.safetensors", None)]


@pytest.mark.thorough
def test_a_damaged_cache_without_a_network_is_not_believed(place: Place) -> None:
    directory = Path(place.prepare(NAME)["directory"])
    with (directory / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    said = without_network(place).prepare(NAME)
    assert said["error"] == "ExternalServiceError"
    assert "model.safetensors" in said["message"]
    assert "damaged" in said["message"]


@pytest.mark.thorough
def test_a_model_that_lies_in_the_hubs_cache_needs_no_network(tmp_path: Path, tiny: Path) -> None:
    repository = tmp_path / "hf" / "hub" / "models--acme--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for file in tiny.iterdir():
        (repository / "blobs" / f"blob-{file.name}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"blob-{file.name}")
    place = Place(tmp_path, "http://127.0.0.1:9")
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        said = place.prepare(NAME, **more)
        assert said["name"] == f"{NAME}@{COMMIT}"
        assert compute_manifest(Path(said["directory"])) == compute_manifest(tiny)


@pytest.mark.thorough
def test_half_a_model_in_the_hubs_cache_is_none(place: Place, hub: HubServer) -> None:
    hub.repositories[NAME].cut = [0] * 6
    place.prepare(NAME)
    said = without_network(place).prepare(NAME)
    assert said["error"] == "ExternalServiceError"
    assert "model.safetensors" in said["message"]


def test_weights_in_shards_come_with_their_index(place: Place, hub: HubServer) -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"weight_map": {f"part{number}": shard for number, shard in enumerate(shards)}}
    files = {name: name.encode() for name in shards}
    files |= {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    hub.repositories["acme/sharded"] = HubRepository({**files, **STRANGERS})
    directory = Path(place.prepare("acme/sharded")["directory"])
    assert {file.name for file in directory.iterdir()} == set(files)


def test_no_network_and_nothing_kept_is_said_at_once(tmp_path: Path) -> None:
    said = Place(tmp_path, "http://127.0.0.1:9").prepare("acme/unknown")
    assert said["error"] == "ExternalServiceError"
    assert "The hub cannot be reached, and acme/unknown@main is not complete in its cache" in said["message"]


def test_a_hub_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    # 192.0.2.0/24 is kept for documentation: nobody answers there, as behind a firewall that drops.
    begin = time.monotonic()
    said = Place(tmp_path, "http://192.0.2.1:81").prepare("acme/unknown")
    assert time.monotonic() - begin < 100, "the kernel gives up after two minutes"
    assert said["error"] == "ExternalServiceError"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("acme/nothing", "UserError", ["no directory 'acme/nothing'", "HF_TOKEN"]),
        (f"{NAME}@v9", "UserError", ["no revision 'v9'"]),
        (f"{NAME}@{OTHER}", "UserError", [f"no revision '{OTHER}'"]),
        ("acme/gated", "UserError", ["gated", "Accept them at http", "HF_TOKEN"]),
        pytest.param(
            f"acme/gated@{COMMIT}",
            "UserError",
            ["gated", "Accept them at http", "HF_TOKEN"],
            marks=pytest.mark.thorough,
        ),
        ("acme/pickled", "UserError", ["no safetensors weights"]),
        ("acme/empty", "UserError", ["no config.json"]),
        ("acme/huge", "MachineError", ["1,000.0 GB more", "HF_HOME"]),
        pytest.param(
            "./acme/tiny",
            "UserError",
            ["There is no model directory './acme/tiny'"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "/acme/tiny",
            "UserError",
            ["There is no model directory '/acme/tiny'"],
            marks=pytest.mark.thorough,
        ),
        ("models/acme/tiny", "UserError", ["There is no model directory 'models/acme/tiny'"]),
    ],
)
def test_what_cannot_be_had_is_said_with_its_mend(
    place: Place, hub: HubServer, name: str, error: str, words: list[str]
) -> None:
    files = hub.repositories[NAME].files
    hub.repositories["acme/gated"] = HubRepository(files, gated=True)
    hub.repositories["acme/pickled"] = HubRepository({"config.json": b"{}", "pytorch_model.bin": b""})
    hub.repositories["acme/empty"] = HubRepository({"README.md": b""})
    hub.repositories["acme/huge"] = HubRepository(files, sizes={"model.safetensors": 10**12})
    said = place.prepare(name)
    assert said.get("error") == error, said
    for word in words:
        assert word in said["message"]


def test_a_directory_of_that_name_comes_first(place: Place, hub: HubServer) -> None:
    (place.root / NAME).mkdir(parents=True)
    assert place.prepare(NAME) == {
        "told": [],
        "name": str(place.root / NAME),
        "directory": str(place.root / NAME),
    }
    assert hub.sent == []


def test_without_the_extra_the_mend_names_it(place: Place) -> None:
    (place.root / "huggingface_hub.py").write_text("raise ImportError('not here')")
    said = place.prepare(NAME, PYTHONPATH=f"{place.root}:{os.environ.get('PYTHONPATH', '')}")
    assert said["error"] == "UserError"
    assert "agent2rl[hub]" in said["message"]


@pytest.mark.thorough
def test_a_run_on_a_hub_model_can_be_repeated_from_its_specification(
    place: Place, launcher: RunLauncher
) -> None:
    options = ("--task", "tests.helpers.short_gsm8k:TASK", "--model", NAME, "--json")
    run = launcher.run(
        "say(model=os.environ['BASE_MODEL'], files=sorted(os.listdir(MODEL)))",
        *options,
        PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        **place.environment,
    )
    assert (run.code, run.result.ending) == (0, "completed"), run.result.reason
    assert run.result.spec.model == run.result.assets[0].source == f"{NAME}@{COMMIT}"
    assert run.result.spec.engine == "transformers"
    assert run.said["model"] == NAME
    assert "model.safetensors" in run.said["files"]
