"""The transformers engine: exact whatever the batch, careful with what it opens."""

import json
import os
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
)

from agent2rl.core.engine import Chat, ChatMessage, Completion, Sampling, ScoringEngine, use_all_cores
from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers import (
    CachedConversations,
    ForkedEngine,
    TransformersEngine,
    forked_workers,
    measure_batch_limits,
    open_engine,
)
from agent2rl.engines.transformers.decoding import BatchDecoder, BatchLimits
from agent2rl.engines.transformers.loading import LoadedModel, describe_model, load_model
from agent2rl.engines.transformers.token_choice import choose_tokens, derive_noise_key
from tests.helpers.tiny_models import CHAT_TEMPLATE, make_tiny_tokenizer, write_tiny_llama

WORDS = ["Ada", "has", "12", "apples", "and", "gives", "5", "to", "Ben", "How", "many", "?", "42", "é", "数"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(directory: Path) -> LoadedModel:
    return load_model(directory)


@pytest.fixture(scope="module")
def engine(model: LoadedModel) -> Iterator[TransformersEngine]:
    with roomy(model) as opened:
        yield opened


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    """The tiny model, to be spoiled."""
    return Path(shutil.copytree(directory, tmp_path / "model"))


def roomy(model: LoadedModel, rows: int = 64, read: int = 4096, tokens: int = 1 << 20) -> TransformersEngine:
    return TransformersEngine(model, BatchLimits(rows, tokens, read))


def some_chats(count: int, words: int = 50, seed: int = 0) -> list[Chat]:
    dice = random.Random(seed)
    return [
        (ChatMessage("user", " ".join(dice.choices(WORDS, k=dice.randint(1, words)))),) for _ in range(count)
    ]


def reference(model: LoadedModel, prompt: str, max_tokens: int, special: bool = False) -> str:
    """What the library's own generation says to one text."""
    ids = model.tokenizer.encode(prompt, add_special_tokens=special)
    network: Any = model.network
    output = network.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=2,
    )
    text = model.tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=8),
        pytest.param(Sampling(max_tokens=8, temperature=1.2, seed=5), marks=pytest.mark.thorough),
    ],
)
def test_answers_are_the_same_in_batches_of_every_size(model: LoadedModel, sampling: Sampling) -> None:
    chats = some_chats(32)
    with roomy(model, rows=32) as engine:
        expected = engine.generate(chats, sampling)
    assert len({answer.text for answer in expected}) > 25
    for rows, read, tokens in [(1, 1, 1), (3, 100, 1 << 20), (7, 4096, 400), (32, 300, 2000)]:
        with roomy(model, rows, read, tokens) as engine:
            assert engine.generate(chats, sampling) == expected


@pytest.mark.skipif(platform.machine() not in ("aarch64", "arm64"), reason="torch asks oneDNN on ARM only")
def test_on_arm_the_products_of_a_loaded_model_do_not_wait_for_onednn(directory: Path) -> None:
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    load_model(directory)
    assert not torch._C._get_mkldnn_enabled()


def test_greedy_answers_are_those_of_the_library(model: LoadedModel, engine: TransformersEngine) -> None:
    chats = some_chats(12, seed=1)
    answers = engine.generate(chats, Sampling(max_tokens=16))
    for prompt, answer in zip(engine.render(chats), answers, strict=True):
        assert answer.text == reference(model, prompt, 16)


def test_where_all_tokens_are_equally_likely_batches_still_agree(copy: Path) -> None:
    spoil(copy, lambda name, tensor: tensor * 0 if name == "lm_head.weight" else tensor)
    chats = some_chats(6)
    with roomy(load_model(copy)) as engine:
        together = engine.generate(chats, Sampling(max_tokens=4))
        engine.limits.rows = 1
        assert engine.generate(chats, Sampling(max_tokens=4)) == together


def test_a_sample_does_not_depend_on_the_batch_but_on_its_place(engine: TransformersEngine) -> None:
    chat = some_chats(1)[0]
    sampling = Sampling(max_tokens=16, temperature=1.0)
    answers = engine.generate([chat] * 6, sampling)
    assert len({answer.text for answer in answers}) == 6
    assert engine.generate([chat] * 2, sampling) == answers[:2]
    assert engine.generate([chat] * 6, replace(sampling, seed=1)) != answers


def test_tokens_are_drawn_as_often_as_the_model_says() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, -2.0]).expand(20_000, 5)
    keys, steps = torch.full((20_000,), derive_noise_key("test")), torch.arange(20_000)
    for temperature in (1.0, 0.7):
        chosen = choose_tokens(logits, temperature, keys, steps)
        drawn = torch.bincount(chosen.tokens, minlength=5) / 20_000
        expected = torch.softmax(logits[0] / temperature, dim=0)
        assert torch.allclose(drawn, expected, atol=0.012)


def test_an_end_token_ends_the_reply_and_is_not_shown(copy: Path, engine: TransformersEngine) -> None:
    chats = some_chats(20)
    tokens = engine.model.tokenizer
    edit(copy / "config.json", eos_token_id=[7, *range(200, 260)])
    with open_engine(copy) as ending:
        answers = ending.generate(chats, Sampling(max_tokens=12))
        assert ending.model.ends == {tokens.eos_token_id, 7, *range(200, 260)}
    whole = engine.generate(chats, Sampling(max_tokens=12))
    assert all(one.text.startswith(two.text[:-1]) for one, two in zip(whole, answers, strict=True))
    assert len({answer.tokens for answer in answers}) > 3


def test_a_stop_string_across_tokens_ends_the_row_early(engine: TransformersEngine) -> None:
    chats = some_chats(8, seed=3)
    whole = engine.generate(chats, Sampling(max_tokens=40))
    stop = whole[0].text[6:9]
    answers = engine.generate(chats, Sampling(max_tokens=40, stop=(stop,)))
    assert answers[0].text == whole[0].text.partition(stop)[0]
    assert answers[0].tokens < whole[0].tokens
    assert [answer.text for answer in answers] == [answer.text.partition(stop)[0] for answer in whole]


def test_the_submissions_generation_config_changes_nothing(copy: Path, engine: TransformersEngine) -> None:
    settings = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0, "max_new_tokens": 1}
    (copy / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    chats = some_chats(4)
    with open_engine(copy) as spoilt:
        assert spoilt.generate(chats, Sampling(max_tokens=8)) == engine.generate(
            chats, Sampling(max_tokens=8)
        )


def test_a_model_without_a_template_continues_the_messages(tmp_path: Path) -> None:
    model = load_model(write_tiny_llama(tmp_path, chat_template=False))
    chat = (ChatMessage("system", "Add."), ChatMessage("user", "1 and 2"))
    with roomy(model) as engine:
        assert engine.render([chat]) == ["Add.\n\n1 and 2"]
        (answer,) = engine.generate([chat], Sampling(max_tokens=8))
    assert answer.text == reference(model, "Add.\n\n1 and 2", 8, special=True)


def test_plain_sampling_continues_the_text_although_there_is_a_template(
    model: LoadedModel, engine: TransformersEngine
) -> None:
    chats = some_chats(6, seed=4)
    plain = Sampling(max_tokens=8, plain=True)
    assert engine.templated
    texts = [answer.text for answer in engine.generate(chats, plain)]
    assert texts == [reference(model, chat[0].content, 8, special=True) for chat in chats]
    assert texts != [answer.text for answer in engine.generate(chats, Sampling(max_tokens=8))]
    talks = engine.conversations()
    first = talks.extend({"a": chats[0]}, plain)["a"].text
    second = talks.extend({"a": (ChatMessage("user", "\nHow many ?"),)}, plain)["a"].text
    whole = f"{chats[0][0].content}{first}\nHow many ?"
    assert (first, second) == (texts[0], reference(model, whole, 8, special=True))


def test_a_template_is_rendered_as_the_library_would(model: LoadedModel, engine: TransformersEngine) -> None:
    chat = (ChatMessage("system", "é\nBe brief."), ChatMessage("user", "hi"), ChatMessage("assistant", "ho"))
    plain = [{"role": message.role, "content": message.content} for message in chat]
    expected = model.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    assert engine.render([chat]) == [expected]


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception(messages[0]['content']) }}", "fails with TemplateError"),
        ("{{ messages[0].__class__.__mro__ }}", "fails with SecurityError"),
        ("{% if %}", "fails with TemplateSyntaxError"),
        ("{{ nothing.at.all }}", "fails with UndefinedError"),
    ],
)
def test_a_bad_template_ends_the_grading_and_does_not_tell_the_chat(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, template: str, message: str
) -> None:
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    with roomy(model) as engine, pytest.raises(GradingError, match=message) as caught:
        engine.generate([(ChatMessage("user", "a secret question"),)], Sampling(max_tokens=2))
    assert "template" in caught.value.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        LOOP,
        "{{ 9 ** (9 ** 9) }}",
        "{% set x = namespace(t='aaa') %}{% for a in range(99) %}{% set x.t = x.t ~ x.t %}{% endfor %}",
    ],
)
def test_a_template_that_takes_all_time_or_memory_is_ended(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr("agent2rl.engines.prompts.RENDER_SECONDS", 1.0)
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    with roomy(model) as engine, pytest.raises(GradingError, match=r"too long|[Mm]emory"):
        engine.render([(ChatMessage("user", "a"),)])


def test_after_a_template_that_hangs_the_next_chat_is_answered(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "{% if messages[0]['content'] == 'hang' %}" + LOOP + "{% endif %}" + CHAT_TEMPLATE
    monkeypatch.setattr(model.tokenizer, "chat_template", slow)
    with roomy(model) as engine:
        with pytest.raises(GradingError, match="too long"):
            engine.render([(ChatMessage("user", "hang"),)])
        assert engine.render([(ChatMessage("user", "go"),)]) == ["<|user|>go</s><|assistant|>"]


def test_a_template_sees_the_same_date_each_day(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.tokenizer, "chat_template", "{{ strftime_now('%d %b %Y') }}{{ eos_token }}")
    with roomy(model) as engine:
        assert engine.render([(ChatMessage("user", "a"),)]) == ["01 Jan 2025</s>"]


def spoil(directory: Path, change: Callable[[str, torch.Tensor], torch.Tensor | None]) -> None:
    """Rewrite the weights; None leaves one out."""
    file = directory / "model.safetensors"
    changed = {name: change(name, tensor) for name, tensor in load_file(file).items()}
    save_file(
        {name: tensor for name, tensor in changed.items() if tensor is not None}, file, {"format": "pt"}
    )


def truncated(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def without_a_layer(directory: Path) -> None:
    spoil(directory, lambda name, tensor: None if ".1.mlp." in name else tensor)


def of_other_shapes(directory: Path) -> None:
    spoil(directory, lambda name, tensor: tensor[:8].clone() if name.endswith("q_proj.weight") else tensor)


def of_another_kind(directory: Path) -> None:
    edit(directory / "config.json", model_type="gpt2", architectures=["GPT2LMHeadModel"])


def of_no_kind(directory: Path) -> None:
    edit(directory / "config.json", model_type="no-such-model")


def without_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def pickled(directory: Path) -> None:
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def with_a_broken_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text('{"model": 1}', encoding="utf-8")


def without_a_tokenizer(directory: Path) -> None:
    for file in directory.glob("tokenizer*"):
        file.unlink()


def with_code(directory: Path) -> None:
    (directory / "model.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    names = {"AutoConfig": "model.Config", "AutoModelForCausalLM": "model.Network"}
    edit(directory / "config.json", model_type="of-its-own", auto_map=names)


def edit(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | settings), encoding="utf-8")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (truncated, "weights cannot be loaded: SafetensorError"),
        (without_a_layer, r"weights lack model\.layers\.1\.mlp"),
        (of_other_shapes, "weights cannot be loaded"),
        (of_another_kind, "weights (lack|cannot be loaded)"),
        (of_no_kind, "weights cannot be loaded: ValueError: .*no-such-model"),
        (without_config, "weights cannot be loaded"),
        (pickled, "weights cannot be loaded"),
        (with_a_broken_tokenizer, "tokenizer cannot be loaded"),
        (without_a_tokenizer, "tokenizer cannot be loaded"),
        (with_code, "weights cannot be loaded"),
    ],
)
def test_a_broken_model_is_named_as_what_it_is(
    copy: Path, harm: Callable[[Path], None], message: str
) -> None:
    harm(copy)
    with pytest.raises(GradingError, match=message) as caught:
        open_engine(copy)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_end_the_grading(copy: Path, value: float) -> None:
    spoil(copy, lambda name, tensor: tensor * value if name == "model.norm.weight" else tensor)
    chats = some_chats(2)
    with open_engine(copy) as engine:
        for call in (
            lambda: engine.generate(chats, Sampling(max_tokens=2)),
            lambda: engine.generate(chats, Sampling(max_tokens=2, temperature=1.0)),
            lambda: engine.logprobs(chats, ["a", "b"]),
        ):
            with pytest.raises(GradingError, match="not a number"):
                call()


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(model: LoadedModel) -> None:
    with roomy(replace(model, vocabulary=10)) as engine, pytest.raises(GradingError, match="knows 10"):
        engine.generate(some_chats(1), Sampling())


def test_log_probabilities_are_those_of_the_network(model: LoadedModel, engine: TransformersEngine) -> None:
    assert isinstance(engine, ScoringEngine)
    chats, said = some_chats(5), ["apples", " 42 é", "", "How many?", "x" * 90]
    found = engine.logprobs(chats, said)
    for prompt, reply, value in zip(engine.render(chats), said, found, strict=True):
        before = model.tokenizer.encode(prompt, add_special_tokens=False)
        tokens = model.tokenizer.encode(reply, add_special_tokens=False)
        with torch.inference_mode():
            logits = model.network(torch.tensor([before + tokens])).logits[0].log_softmax(dim=-1)
        steps = range(len(before) - 1, len(before) + len(tokens) - 1)
        expected = sum(float(logits[step, token]) for step, token in zip(steps, tokens, strict=True))
        assert value == pytest.approx(expected, abs=1e-3)


LIVELY = Sampling(max_tokens=30, temperature=1.0, stop=("a", "e", "5"))
"""Replies of different lengths."""


def talk(engine: TransformersEngine, tokens: int, seed: int = 0) -> tuple[list[dict[str, Completion]], int]:
    """Eight conversations over five turns, some of which rest; what was said, and the tokens read for it."""
    read = 0

    def count(_: object, inputs: tuple[torch.Tensor]) -> None:
        nonlocal read
        read += inputs[0].numel()

    embedding = engine.model.network.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(count)
    dice, said = random.Random(seed), []
    talks = CachedConversations(engine, tokens)
    for turn in range(5):
        names = [name for name in "abcdefgh" if turn == 0 or dice.random() < 0.7]
        new: dict[str, Chat] = {
            name: (ChatMessage("user", " ".join(dice.choices(WORDS, k=dice.randint(1, 30)))),)
            for name in names
        }
        said.append(talks.extend(new, Sampling(max_tokens=10, temperature=0.5 * (turn % 2))))
    hook.remove()
    return said, read


def test_conversations_say_the_same_whatever_is_kept_and_read_less_the_more_is(model: LoadedModel) -> None:
    with roomy(model) as engine:
        everything, least = talk(engine, 1 << 20)
        some, more = talk(engine, 400)
        nothing, most = talk(engine, 0)
    assert everything == some == nothing
    assert least < more < most
    with roomy(model, rows=2, read=40) as engine:
        assert talk(engine, 300)[0] == everything


def build_message(name: str, turn: int) -> Chat:
    dice = random.Random(f"{name}:{turn}")
    return (ChatMessage("user", " ".join(dice.choices(WORDS, k=dice.randint(1, 30)))),)


def converse_together(engine: TransformersEngine, lengths: dict[str, int]) -> dict[str, list[Completion]]:
    """Conversations of so many turns, which wait for each other after each turn."""
    talks, said = (
        CachedConversations(engine, engine.limits.tokens),
        {name: list[Completion]() for name in lengths},
    )
    for turn in range(max(lengths.values())):
        new = {name: build_message(name, turn) for name, length in lengths.items() if turn < length}
        for name, reply in talks.extend(new, LIVELY).items():
            said[name].append(reply)
    return said


def converse_alone(engine: TransformersEngine, lengths: dict[str, int]) -> dict[str, list[Completion]]:
    """The same conversations, of which none waits for another."""
    talks, said = (
        CachedConversations(engine, engine.limits.tokens),
        {name: list[Completion]() for name in lengths},
    )

    def answer(name: str, reply: Completion) -> Chat:
        said[name].append(reply)
        return build_message(name, len(said[name])) if len(said[name]) < lengths[name] else ()

    talks.play({name: build_message(name, 0) for name in lengths}, answer, LIVELY)
    assert not talks.chats
    return said


def count_passes(engine: TransformersEngine, action: Callable[[], object]) -> int:
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    hook = engine.model.network.get_input_embeddings().register_forward_pre_hook(count)
    action()
    hook.remove()
    return passes


def count_tokens_read(engine: TransformersEngine, action: Callable[[], object]) -> int:
    read = 0

    def count(_: object, inputs: tuple[torch.Tensor]) -> None:
        nonlocal read
        read += inputs[0].numel()

    hook = engine.model.network.get_input_embeddings().register_forward_pre_hook(count)
    action()
    hook.remove()
    return read


def test_the_first_message_of_conversations_that_begin_alike_is_read_once(model: LoadedModel) -> None:
    message = ChatMessage("user", " ".join(WORDS[:14]))
    alike: dict[str, Chat] = dict.fromkeys("abcdefgh", (message,))
    once = Sampling(max_tokens=1)

    def start(engine: TransformersEngine, chats: dict[str, Chat]) -> dict[str, Completion]:
        return CachedConversations(engine, engine.limits.tokens).extend(chats, once)

    with roomy(model) as engine:
        alone = count_tokens_read(engine, lambda: start(engine, {"a": (message,)}))
        assert alone > 16
        assert count_tokens_read(engine, lambda: start(engine, alike)) == alone - 1 + len(alike)
        assert {*start(engine, alike).values()} == {*start(engine, {"a": (message,)}).values()}


def test_a_long_beginning_is_read_once_although_some_texts_repeat(model: LoadedModel) -> None:
    beginning = " ".join(WORDS * 6)
    once = Sampling(max_tokens=1)

    def ask(engine: TransformersEngine, names: str) -> None:
        engine.generate([(ChatMessage("user", f"{beginning} {name}"),) for name in names], once)

    with roomy(model) as engine:
        alone = count_tokens_read(engine, lambda: ask(engine, "a"))
        assert count_tokens_read(engine, lambda: ask(engine, "aabbcc")) < 2 * alone


@pytest.mark.thorough
def test_conversations_that_do_not_wait_for_each_other_say_the_same_in_fewer_passes(
    model: LoadedModel,
) -> None:
    lengths = dict(zip("abcdefgh", (3, 1, 7, 5, 5, 2, 6, 4), strict=True))
    with roomy(model) as engine:
        together = converse_together(engine, lengths)
        assert converse_alone(engine, lengths) == together
        fewer = count_passes(engine, lambda: converse_alone(engine, lengths))
        assert fewer < count_passes(engine, lambda: converse_together(engine, lengths))
    for room in ({"rows": 2}, {"read": 40}, {"tokens": 900}):
        with roomy(model, **room) as engine:
            assert converse_alone(engine, lengths) == together


def test_a_conversation_that_outgrows_the_context_ends_and_the_others_go_on(model: LoadedModel) -> None:
    endless = ChatMessage("user", "and then? " * 20)
    with roomy(model) as engine:
        said: dict[str, list[Completion]] = {"a": [], "b": []}

        def answer(name: str, reply: Completion) -> Chat:
            said[name].append(reply)
            return () if reply.full or (name == "b" and len(said["b"]) == 3) else (endless,)

        talks = CachedConversations(engine, engine.limits.tokens)
        talks.play({"a": (endless,), "b": (endless,)}, answer, LIVELY)
    assert said["a"][-1].full
    assert not said["a"][-2].full
    assert len(said["b"]) == 3 < len(said["a"])


def test_new_conversations_take_the_place_of_ended_ones_without_moving_the_cache(model: LoadedModel) -> None:
    with roomy(model) as engine:
        cache = engine.decoder.forward.cache

        def hold_conversations(count: int, words: int) -> int:
            talks = engine.conversations()
            talks.extend(
                {f"{n}": chat for n, chat in enumerate(some_chats(count, words))}, Sampling(max_tokens=4)
            )
            talks.drop([f"{n}" for n in range(count)])
            return cache.version

        first = hold_conversations(8, 40)
        assert hold_conversations(8, 40) == hold_conversations(5, 20) == first
        assert hold_conversations(8, 400) > first


def test_a_turn_reads_only_what_it_adds(model: LoadedModel, engine: TransformersEngine) -> None:
    talks = engine.conversations()
    talks.extend({"a": (ChatMessage("user", "a long beginning " * 40),)}, Sampling(max_tokens=1))
    fed: list[int] = []
    embedding = model.network.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].numel()))
    talks.extend({"a": (ChatMessage("user", "and?"),)}, Sampling(max_tokens=1))
    hook.remove()
    assert sum(fed) < 20


def test_layers_that_see_only_the_nearest_tokens_are_served(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = describe_model(MistralForCausalLM(config), make_tiny_tokenizer())  # type: ignore[no-untyped-call]
    chats = some_chats(6)
    with roomy(model) as engine:
        answers = engine.generate(chats, Sampling(max_tokens=12))
        assert [answer.text for answer in answers] == [
            reference(model, prompt, 12) for prompt in engine.render(chats)
        ]
    with roomy(model, rows=2, read=50) as engine:
        assert talk(engine, 1 << 20)[0] == talk(engine, 0)[0]


def test_scores_that_a_layer_limits_are_limited_as_in_the_library() -> None:
    config = Gemma2Config(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=8, attn_logit_softcapping=0.5,
        initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    network = Gemma2ForCausalLM(config)  # type: ignore[no-untyped-call]
    network.set_attn_implementation("eager")
    text = list(range(6, 40))
    with torch.inference_mode():
        expected = network(torch.tensor([text])).logits[0, -1]
        forward = BatchDecoder(
            describe_model(network, make_tiny_tokenizer()), BatchLimits(4, 1000, 1000)
        ).forward
        forward.cache.reserve(1, 64, 1000)
        slot = forward.cache.take_slot()
        forward.feed_slots([slot], [text[:20]])
        found = forward.feed_slots([slot], [text[20:]])[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_reply_ends_where_the_context_does_and_a_longer_chat_is_refused() -> None:
    config = GPT2Config(vocab_size=320, n_positions=40, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    torch.manual_seed(0)
    model = describe_model(GPT2LMHeadModel(config), make_tiny_tokenizer(chat_template=False))  # type: ignore[no-untyped-call]
    model = replace(model, ends=frozenset())
    chats: list[Chat] = [(ChatMessage("user", "x" * count),) for count in (3, 30, 39)]
    with roomy(model) as engine:
        assert [answer.tokens for answer in engine.generate(chats, Sampling(max_tokens=20))] == [20, 10, 1]
        with pytest.raises(GradingError, match="40 tokens; the model's context has 40"):
            engine.generate([(ChatMessage("user", "x" * 40),)], Sampling())


def test_what_several_texts_begin_with_is_read_once(directory: Path) -> None:
    begin = "apples and pens " * 40
    chats = [(ChatMessage("user", f"{begin}{number}"),) for number in range(8)]
    model = load_model(directory)
    read: list[int] = []
    model.network.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    with TransformersEngine(model, measure_batch_limits(model)) as engine:
        alone = [engine.generate([chat], Sampling(max_tokens=1))[0] for chat in chats]
        one_by_one = sum(read)
        read.clear()
        assert engine.generate(chats, Sampling(max_tokens=1)) == alone
    assert sum(read) < one_by_one / 4


OUT_OF_MEMORY = """
import platform, resource, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from agent2rl.core.engine import ChatMessage, Sampling
from agent2rl.engines.transformers import TransformersEngine
from agent2rl.engines.transformers.decoding import BatchLimits
from agent2rl.engines.transformers.loading import load_model

model = load_model(Path(sys.argv[1]))
chats = [(ChatMessage("user", f"{n} " + "apples " * (1200 + n)),) for n in range(48)]
sampling = Sampling(max_tokens=2)
with TransformersEngine(model, BatchLimits(2, 1 << 40, 1 << 40)) as engine:
    expected = engine.generate(chats, sampling), engine.logprobs(chats, ["pens"] * 48)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + (12 << 20 if platform.machine() == "x86_64" else 50 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    engine.limits.rows = 48
    found = engine.generate(chats, sampling), engine.logprobs(chats, ["pens"] * 48)
assert found[0] == expected[0]
assert all(abs(a - b) < 1e-3 for a, b in zip(found[1], expected[1]))
assert engine.limits.rows < 48, engine.limits
"""


@pytest.mark.thorough
def test_where_memory_ends_the_batch_is_halved_and_the_answers_are_the_same(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(directory)],
        env={**os.environ, "MIMALLOC_ARENA_RESERVE": "0"},  # torch on ARM reserves a gigabyte otherwise
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_several_processes_sample_and_score_as_one(engine: TransformersEngine, size: int) -> None:
    chats = some_chats(7)
    replies = ["42 apples", "é", "数", "?", "How many", "Ben", "5"]
    with ForkedEngine(engine, size) as forked:
        for sampling in (Sampling(max_tokens=8), Sampling(max_tokens=8, temperature=1.0, seed=3)):
            assert forked.generate(chats, sampling) == engine.generate(chats, sampling)
        assert forked.logprobs(chats, replies) == pytest.approx(engine.logprobs(chats, replies))


def test_a_chat_that_one_of_several_processes_cannot_read_fails_the_call(engine: TransformersEngine) -> None:
    chats = some_chats(3)
    long: Chat = (ChatMessage("user", "apples " * 5000),)
    with ForkedEngine(engine, 2) as forked:
        with pytest.raises(GradingError, match="the model's context has"):
            forked.generate([chats[0], long, chats[1]], Sampling(max_tokens=4))
        assert forked.generate(chats, Sampling(max_tokens=4)) == engine.generate(
            chats, Sampling(max_tokens=4)
        )


def test_a_large_model_or_one_core_stays_in_one_process(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_all_cores(engine, most=1) as same:
        assert same is engine
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        with use_all_cores(engine, most=16) as same:
            assert same is engine
    monkeypatch.setattr(forked_workers, "SMALL_MODEL_WEIGHTS", 1)
    with use_all_cores(engine, most=16) as same:
        assert same is engine
