"""What several texts begin with is read once: instructions, worked examples, an earlier round of a game."""

from collections.abc import Iterator, Sequence

from agent2rl.engines.transformers.decoding import GenerationRequest

MIN_SHARED_TOKENS = 64
"""Tokens in common from which it is worth a pass of its own."""


def find_shared_prefixes(
    requests: Sequence[GenerationRequest],
) -> Iterator[tuple[list[int], list[GenerationRequest]]]:
    """The common beginning of texts that are alike so far, with those that have it; one token is left."""
    alike: dict[tuple[int, ...], list[GenerationRequest]] = {}
    for request in requests:
        if request.prefix is None and len(request.ids) > MIN_SHARED_TOKENS:
            alike.setdefault(tuple(request.ids[:MIN_SHARED_TOKENS]), []).append(request)
    for group in alike.values():
        if len(group) > 1:
            texts = [request.ids[:-1] for request in group]
            yield (
                _find_common_prefix(min(texts), max(texts)),
                group,
            )  # what the extremes have in common, all have


def _find_common_prefix(first: list[int], last: list[int]) -> list[int]:
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((place for place, (a, b) in pairs if a != b), min(len(first), len(last)))]
