"""The training recipes, on a tiny model: they learn, they repeat, and what they save can be submitted."""

import math
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl import registry
from agent2rl.core.engine import ChatMessage, Sampling
from agent2rl.core.errors import UserError
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.checks import ResavedBase, check_submission
from agent2rl.grading.untrusted_model_files import weights_sha256
from agent2rl.training import models, prompts
from agent2rl.training.grpo import GrpoSettings, grpo
from agent2rl.training.optimizer import FINAL_RATE_SHARE, TrainingSchedule, compute_rate_factor
from agent2rl.training.policy import PromptGroup, TrainingSequence, compute_log_probs
from agent2rl.training.progress import TrainingProgress, TrainingProgressEntry
from agent2rl.training.sampling import PolicySample, PolicySampler, SampleSettings, right_answers, sample
from agent2rl.training.sft import SftSettings, sft
from tests.helpers.tiny_models import write_tiny_llama

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
PAIRS = [(f"What is {number} and {number}?", f"It is {2 * number}. #### {2 * number}") for number in range(8)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture
def loaded(base: Path) -> Loaded:
    return models.load(base)


@pytest.fixture(scope="module")
def taught(base: Path) -> Loaded:
    """Knows the eight pairs by heart."""
    model, tokenizer = models.load(base)
    sft(
        model,
        tokenizer,
        PAIRS,
        SftSettings(learning_rate=1e-2, epochs=60, batch_size=8),
        TrainingProgress("sft"),
    )
    return model, tokenizer


def weights(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in model.parameters()])


def asked() -> list[str]:
    return [prompt for prompt, _ in PAIRS]


def plainly(loaded: Loaded, prompt: list[int], answer: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities by one unpadded pass, as anyone would write it."""
    rows = torch.log_softmax(loaded[0](torch.tensor([[*prompt, *answer]])).logits[0], -1)
    return torch.stack([rows[len(prompt) - 1 + place, token] for place, token in enumerate(answer)])


def grouped(encoded: list[list[int]], answers: list[list[list[int]]]) -> list[PromptGroup]:
    return [
        PromptGroup(
            prompt, [TrainingSequence.from_answer(prompt, answer) for answer in own], [1.0] * len(own)
        )
        for prompt, own in zip(encoded, answers, strict=True)
    ]


def test_sft_learns_eight_pairs_by_heart(taught: Loaded) -> None:
    answers = sample(*taught, asked(), SampleSettings(max_tokens=40, temperature=0))
    assert [group[0].text for group in answers] == [answer for _, answer in PAIRS]
    assert all(group[0].finished for group in answers)


def test_sft_teaches_nothing_about_the_prompt(loaded: Loaded) -> None:
    """The gradient is that of the answers alone, however they are padded."""
    model, tokenizer = loaded
    encoded, told = (
        prompts.encode(tokenizer, asked()),
        prompts.encode_answers(tokenizer, [a for _, a in PAIRS]),
    )
    found = compute_log_probs(model, grouped(encoded, [[answer] for answer in told]))
    ours = torch.autograd.grad(found.sum(), list(model.parameters()))
    whole = sum(plainly(loaded, p, tuple(a)).sum() for p, a in zip(encoded, told, strict=True))
    assert isinstance(whole, torch.Tensor)
    for mine, theirs in zip(ours, torch.autograd.grad(whole, list(model.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_answers_that_share_a_prompt_have_the_gradient_of_answers_that_do_not(loaded: Loaded) -> None:
    model, tokenizer = loaded
    encoded = prompts.encode(tokenizer, ["A short one?", "A prompt that is rather longer than that?"])
    told = prompts.encode_answers(tokenizer, ["one", "two of them", "", "four of them, no less"])
    shared = compute_log_probs(model, grouped(encoded, [told[:2], told[2:]]), temperature=0.7)
    alone = grouped([encoded[0], encoded[0], encoded[1], encoded[1]], [[answer] for answer in told])
    apart = compute_log_probs(model, alone, temperature=0.7)
    torch.testing.assert_close(shared, apart, rtol=1e-4, atol=1e-4)
    ours = torch.autograd.grad(shared.sum(), list(model.parameters()))
    theirs = torch.autograd.grad(apart.sum(), list(model.parameters()))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


def test_the_time_limit_ends_a_training_and_a_step_is_always_taken(loaded: Loaded) -> None:
    settings = SftSettings(epochs=10**6, batch_size=4, seconds=1.0)
    result = sft(*loaded, PAIRS, settings, TrainingProgress("sft"))
    assert 1 <= result.steps < 10**6


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(base: Path) -> None:
    found = []
    for seed in (1, 1, 2):
        model, tokenizer = models.load(base)
        sft(model, tokenizer, PAIRS, SftSettings(epochs=2, batch_size=4, seed=seed), TrainingProgress("sft"))
        grpo(
            model,
            tokenizer,
            asked(),
            lambda _, text: float(len(text)),
            GrpoSettings(steps=2, prompts=4, group=4, max_tokens=8, seed=seed),
            TrainingProgress("grpo"),
        )
        found.append(weights(model))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_samples_come_as_often_as_a_plain_pass_says(taught: Loaded) -> None:
    """Of the first tokens of many answers to one question, each has about its share."""
    settings = SampleSettings(max_tokens=1, temperature=5.0, seed=5)
    (group,) = sample(*taught, asked()[:1], settings, times=4000)
    (prompt,) = prompts.encode(taught[1], asked()[:1])
    shares = torch.softmax(taught[0](torch.tensor([prompt])).logits[0, -1].detach() / 5.0, -1)
    counts = torch.bincount(torch.tensor([found.tokens[0] for found in group]), minlength=len(shares))
    likely = shares * 4000 > 10
    assert likely.sum() >= 10
    spread = (4000 * shares * (1 - shares)).sqrt()
    assert ((counts - 4000 * shares) / spread)[likely].abs().max() < 5


def test_an_answer_ends_at_its_first_end_and_only_there(taught: Loaded) -> None:
    end = taught[1].eos_token_id
    for group in sample(*taught, asked(), SampleSettings(max_tokens=40, temperature=1.5), times=8):
        for found in group:
            assert found.finished == (found.tokens[-1] == end)
            assert end not in found.tokens[:-1]
            assert found.finished or len(found.tokens) == 40


def test_an_answer_is_the_same_in_whatever_company_it_is_sampled(taught: Loaded) -> None:
    settings = SampleSettings(max_tokens=40, temperature=1.5, seed=3)
    few, many = (sample(*taught, asked(), settings, times) for times in (1, 5))
    assert [group[0].text for group in few] == [group[0].text for group in many]


def test_samples_follow_the_weights_as_they_are_trained(base: Path) -> None:
    model, tokenizer = models.load(base)
    sampler = PolicySampler(model, tokenizer)
    settings = SampleSettings(max_tokens=40, temperature=0)
    sampler.sample(asked(), settings)
    sft(model, tokenizer, PAIRS, SftSettings(1e-2, epochs=60, batch_size=8), TrainingProgress("sft"))
    assert [group[0].text for group in sampler.sample(asked(), settings)] == [answer for _, answer in PAIRS]


def test_grpo_raises_a_reward_that_is_easy_to_raise(loaded: Loaded) -> None:
    def share_of_a(_: int, text: str) -> float:
        return text.count("a") / (len(text) + 1)

    result = grpo(
        *loaded,
        asked(),
        share_of_a,
        GrpoSettings(learning_rate=1e-2, steps=15, prompts=8, group=8, max_tokens=12),
        TrainingProgress("grpo"),
    )
    assert result.steps == 15
    assert sum(result.rewards[-3:]) > 2 * sum(result.rewards[:3])


def test_one_may_look_after_each_step_but_the_last_and_it_costs_the_training_nothing(
    loaded: Loaded,
) -> None:
    seen: list[int] = []

    def look(course: TrainingSchedule) -> None:
        seen.append(course.steps)
        time.sleep(0.3)

    settings = GrpoSettings(steps=4, prompts=4, group=2, max_tokens=4)
    began = time.monotonic()
    result = grpo(
        *loaded, asked(), lambda _, text: float(len(text)), settings, TrainingProgress("grpo"), look
    )
    assert seen == [1, 2, 3]
    assert time.monotonic() - began > result.seconds + 0.8


def test_grpo_learns_which_prompt_a_reward_belongs_to(loaded: Loaded) -> None:
    """The index that the reward gets is the prompt's own, also where prompts are drawn in random order."""
    seen: dict[int, set[str]] = {}

    def length(index: int, text: str) -> float:
        seen.setdefault(index, set()).add(text)
        return float(len(text))

    grpo(
        *loaded,
        asked(),
        length,
        GrpoSettings(steps=2, prompts=4, group=2, max_tokens=4),
        TrainingProgress("grpo"),
    )
    assert set(seen) == set(range(len(PAIRS)))


def test_groups_whose_answers_are_worth_the_same_teach_nothing(loaded: Loaded) -> None:
    before = weights(loaded[0])
    result = grpo(
        *loaded, asked(), lambda *_: 1.0, GrpoSettings(steps=3, max_tokens=4), TrainingProgress("grpo")
    )
    assert result.rewards == (1.0, 1.0, 1.0)
    assert torch.equal(before, weights(loaded[0]))


def test_a_penalty_keeps_the_model_near_the_reference(base: Path) -> None:
    def probes(tokenizer: PreTrainedTokenizerBase) -> list[PromptGroup]:
        return grouped(prompts.encode(tokenizer, asked()), [[[40, 41]]] * len(PAIRS))

    def away(kl: float) -> float:
        model, tokenizer = models.load(base)
        before = compute_log_probs(model, probes(tokenizer)).detach()
        settings = GrpoSettings(learning_rate=3e-3, steps=6, prompts=8, group=8, max_tokens=6, kl=kl)
        grpo(
            model,
            tokenizer,
            asked(),
            lambda _, text: float(text.count("e")),
            settings,
            TrainingProgress("grpo"),
        )
        after = compute_log_probs(model, probes(tokenizer)).detach()
        return float((after - before).abs().mean())

    assert away(kl=10.0) < away(kl=0.0)


def test_rejection_sampling_keeps_what_is_right_once_each(taught: Loaded) -> None:
    right = dict(enumerate(answer for _, answer in PAIRS))
    settings = SampleSettings(max_tokens=40, temperature=0.8)
    pairs = right_answers(*taught, asked(), lambda index, text: text == right[index], settings, times=4)
    assert pairs
    assert set(pairs) <= set(PAIRS)
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("chat_template", [True, False])
def test_what_is_saved_passes_the_checks_and_comes_back_the_same(tmp_path: Path, chat_template: bool) -> None:
    base = write_tiny_llama(tmp_path / "base", chat_template=chat_template)
    model, tokenizer = models.load(base)
    sft(model, tokenizer, PAIRS, SftSettings(epochs=1), TrainingProgress("sft"))
    models.save(model, tokenizer, tmp_path / "saved")
    check_submission(tmp_path / "saved", read_base_model(base), ResavedBase)
    assert weights_sha256(tmp_path / "saved") != weights_sha256(base)
    again, words = models.load(tmp_path / "saved")
    assert torch.equal(weights(model), weights(again))
    assert words.chat_template == tokenizer.chat_template
    with pytest.raises(UserError, match="already exists"):
        models.save(model, tokenizer, tmp_path / "saved")


def test_a_prompt_is_rendered_by_the_template_or_as_paragraphs(tmp_path: Path) -> None:
    chat = (ChatMessage("system", "Be brief."), ChatMessage("user", "Why?"))
    _, plain = models.load(write_tiny_llama(tmp_path / "plain", chat_template=False))
    _, templated = models.load(write_tiny_llama(tmp_path / "templated"))
    assert prompts.render(plain, chat) == "Be brief.\n\nWhy?"
    text = prompts.render(templated, chat)
    assert text == templated.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    (tokens,) = prompts.encode(templated, [text])
    assert templated.decode(tokens) == text


@pytest.mark.parametrize("chat_template", [True, False])
def test_training_asks_as_the_grader_does(tmp_path: Path, chat_template: bool) -> None:
    base = write_tiny_llama(tmp_path / "base", chat_template=chat_template)
    chats = [(ChatMessage("user", f"{prompt}\n\nThink, then answer."),) for prompt in asked()]
    model, tokenizer = models.load(base)
    texts = [prompts.render(tokenizer, chat) for chat in chats]
    ours = sample(model, tokenizer, texts, SampleSettings(max_tokens=12, temperature=0))
    with registry.find_engine("transformers")(base) as engine:
        theirs = engine.generate(chats, Sampling(max_tokens=12))
    assert [found.text for (found,) in ours] == [found.text for found in theirs]


def test_a_training_that_diverges_says_so(loaded: Loaded) -> None:
    with torch.no_grad():
        next(loaded[0].parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="diverged"):
        sft(*loaded, PAIRS, SftSettings(), TrainingProgress("sft"))


def test_progress_is_one_valid_record_a_line(
    loaded: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "progress.jsonl"
    sft(*loaded, PAIRS, SftSettings(epochs=2, batch_size=4), TrainingProgress("sft", path, every_seconds=0))
    settings = GrpoSettings(steps=2, prompts=2, group=2, max_tokens=4)
    grpo(*loaded, asked(), lambda *_: 0.5, settings, TrainingProgress("grpo", path, every_seconds=0))
    moments = [TrainingProgressEntry.model_validate_json(line) for line in path.read_text().splitlines()]
    assert [(moment.stage, moment.step) for moment in moments] == [
        *(("sft", step) for step in (1, 2, 3, 4)),
        *(("grpo", step) for step in (1, 2)),
    ]
    assert all(moment.tokens_per_second > 0 for moment in moments)
    assert moments[-1].left_seconds == 0
    assert moments[-1].reward == 0.5
    assert moments[-1].loss is None
    assert capsys.readouterr().out.splitlines() == [str(moment) for moment in moments]


def test_a_long_silence_is_broken_by_the_last_step(loaded: Loaded, tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    result = sft(
        *loaded, PAIRS, SftSettings(epochs=3, batch_size=4), TrainingProgress("sft", path, every_seconds=1e9)
    )
    (line,) = path.read_text().splitlines()
    assert TrainingProgressEntry.model_validate_json(line).step == result.steps == 6


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_learning_rate_rises_falls_and_never_vanishes(one: float, other: float) -> None:
    first, second = sorted((one, other))
    assert 0 <= compute_rate_factor(first) <= 1
    if first >= 0.06:
        assert compute_rate_factor(first) >= compute_rate_factor(second) >= FINAL_RATE_SHARE - 1e-9


@given(st.integers(1, 50))
@settings(max_examples=20)
def test_a_course_has_as_many_steps_as_it_was_given(steps: int) -> None:
    course = TrainingSchedule(steps)
    while not course.over:
        assert 0 < course.share <= 1
        course.finish_step()
    assert course.steps == steps
    assert course.seconds_left == 0


def test_a_sample_of_one_token_is_still_an_answer(loaded: Loaded) -> None:
    ((found,),) = sample(*loaded, ["Hm?"], SampleSettings(max_tokens=1))
    assert isinstance(found, PolicySample)
    assert len(found.tokens) == 1


def test_sft_without_time_for_a_step_changes_nothing(loaded: Loaded) -> None:
    result = sft(*loaded, PAIRS, SftSettings(seconds=0.0), TrainingProgress("sft"))
    assert result.steps == 0
    assert math.isnan(result.loss)
