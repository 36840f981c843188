"""Rows of what was said: each word after the tokens it was said after, and nothing learnt of the world's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from agent2rl.training import models
from agent2rl.training.grpo import GrpoRollout, GrpoSettings, RolloutGroup, weigh_by_advantage
from agent2rl.training.policy import (
    PromptGroup,
    TrainingSequence,
    build_sequences,
    compute_weighted_log_probs,
    group_by_prompt,
    pack_microbatches,
)
from tests.helpers.tiny_models import write_tiny_llama

TOKENS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
ROWS = st.builds(TrainingSequence.from_answer, st.sampled_from([(1,), (2, 2), (3, 3, 3)]), TOKENS)


def turns_of(row: TrainingSequence) -> list[tuple[list[int], list[int]]]:
    """What the model had read before each thing it said, and that."""
    found: list[tuple[list[int], list[int]]] = []
    read: list[int] = list(row.prompt)
    before = False
    for token, generated in zip(row.tokens, row.generated, strict=True):
        if generated and not before:
            found.append((list(read), []))
        if generated:
            found[-1][1].append(token)
        read.append(token)
        before = generated
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    return models.load(write_tiny_llama(tmp_path_factory.mktemp("base")))[0]


def test_a_conversation_that_goes_on_is_one_row() -> None:
    (row,) = build_sequences([([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6])])
    assert row == TrainingSequence([1, 2], [3, 4, 5, 6], [True, True, False, True])
    assert row.count == 3


def test_a_turn_that_reads_something_else_than_was_said_begins_a_row() -> None:
    found = build_sequences([([1], [2, 7]), ([1, 2, 3], [4]), ([1, 2, 3, 4, 5], [6])])
    assert found == (
        TrainingSequence([1], [2, 7], [True, True]),
        TrainingSequence([1, 2, 3], [4, 5, 6], [True, False, True]),
    )


@given(st.lists(st.tuples(TOKENS, TOKENS, st.booleans()), min_size=1, max_size=5))
def test_every_word_is_learnt_after_what_had_been_read(said: list[tuple[list[int], list[int], bool]]) -> None:
    turns: list[tuple[list[int], list[int]]] = []
    for told, reply, goes_on in said:
        before = [*turns[-1][0], *turns[-1][1]] if turns and goes_on else []
        turns.append(([*before, *told], reply))
    assert [turn for row in build_sequences(turns) for turn in turns_of(row)] == turns


@given(st.lists(ROWS, min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 4))
def test_every_row_is_in_one_pass_and_no_pass_is_too_large(
    spoken: list[TrainingSequence], most: int, members: int
) -> None:
    weights = [float(number) for number, _ in enumerate(spoken)]
    shares = pack_microbatches(group_by_prompt(zip(spoken, weights, strict=True)), most, members)
    assert len(shares) == members
    found = [one for share in shares for one in share]
    pairs = [pair for one in found for group in one for pair in zip(group.weights, group.rows, strict=True)]
    assert sorted(pairs, key=lambda pair: pair[0]) == list(zip(weights, spoken, strict=True))
    for one in found:
        size = sum(group.count_tokens(share_prompt=True) for group in one)
        assert size <= most or (len(one) == 1 and len(one[0].rows) == 1)


def test_workers_get_about_the_same_number_of_tokens() -> None:
    rows = [
        TrainingSequence([number % 5] * 100, [0] * length, [True] * length)
        for number, length in enumerate((80, 400, 120, 300, 90, 250, 410, 160, 100, 330, 140, 85, 390, 200))
    ]
    shares = pack_microbatches(group_by_prompt([(row, 1.0) for row in rows]), 1024, 2)
    tokens = [
        sum(group.count_tokens(share_prompt=True) for one in share for group in one) for share in shares
    ]
    assert tokens[0] <= tokens[1] < 1.15 * tokens[0]


def test_what_the_world_says_is_read_and_not_learnt(model: PreTrainedModel) -> None:
    """The gradient is that of the model's own words, each by a plain pass over all that stands before it."""
    conversation = build_sequences([([40, 41], [50, 51]), ([40, 41, 50, 51, 60, 61, 62], [52, 53])])
    other = build_sequences([([40, 41], [54]), ([40, 41, 54, 63], [55])])
    part = group_by_prompt([(row, 1.0) for row in (*conversation, *other)])
    assert [len(group.rows) for group in part] == [2]
    found = compute_weighted_log_probs(model, part).log_probs
    assert len(found) == 6
    ours = torch.autograd.grad(found.sum(), list(model.parameters()), retain_graph=True)
    whole = torch.zeros(())
    for row in (*conversation, *other):
        for read, reply in turns_of(row):
            values = torch.log_softmax(model(torch.tensor([[*read, *reply]])).logits[0], -1)
            for place, token in enumerate(reply, start=len(read) - 1):
                whole = whole + values[place, token]
    torch.testing.assert_close(found.sum(), whole, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(ours, torch.autograd.grad(whole, list(model.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_how_likely_the_worlds_words_are_changes_no_loss(model: PreTrainedModel) -> None:
    """Its last words are read by nobody: others in their place leave all as it is."""
    told = [
        TrainingSequence([40, 41], [50, 51, *last], [True, True, False, False])
        for last in ([60, 61], [70, 71])
    ]
    found = [
        compute_weighted_log_probs(model, [PromptGroup(row.prompt, [row], [1.0])]).log_probs for row in told
    ]
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("level", [False, True])
def test_a_long_attempt_weighs_more_only_if_all_tokens_weigh_the_same(level: bool) -> None:
    short, long = TrainingSequence.from_answer([1], [2] * 5), TrainingSequence.from_answer([1], [2] * 15)
    idle = [GrpoRollout((TrainingSequence.from_answer([3], [4]),))] * 2
    groups = [
        RolloutGroup([GrpoRollout((short,)), GrpoRollout((long,))], [1.0, 0.0]),
        RolloutGroup(idle, [0.5, 0.5]),
    ]
    [found] = weigh_by_advantage(groups, GrpoSettings(average_by_attempt=level))
    assert [row for row, _ in found] == [short, long]
    total = sum(row.count * weight for row, weight in found)
    assert total == pytest.approx(0.0 if level else -10.0, abs=1e-3)


def test_of_a_group_those_attempts_are_learnt_that_differ_most() -> None:
    rollouts = [GrpoRollout((TrainingSequence.from_answer([1], [number]),)) for number in range(6)]
    group = RolloutGroup(rollouts, [0.0, 1.0, 0.2, 0.9, 0.5, 0.4])
    [found] = weigh_by_advantage([group], GrpoSettings(learned_attempts=4))
    assert sorted(row.tokens[0] for row, _ in found) == [0, 1, 2, 3]
