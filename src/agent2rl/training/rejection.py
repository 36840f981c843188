"""Rejection sampling: ask the model often, keep what it got right, and train on that."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.training.sampling import SampleSettings, sample


def right_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    right: Callable[[int, str], bool],
    settings: SampleSettings,
    times: int = 8,
) -> list[tuple[str, str]]:
    """Pairs of prompt and answer for SFT: of `times` answers to each prompt, those that are `right(index,
    text)` and ended by themselves, each text once."""
    pairs = []
    for index, group in enumerate(sample(model, tokenizer, prompts, settings, times)):
        texts = dict.fromkeys(found.text for found in group if found.finished)
        pairs += [(prompts[index], text) for text in texts if right(index, text)]
    return pairs
