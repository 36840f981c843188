"""Prompts as text and as tokens, the same in training and in grading."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, render_plain_text
from agent2rl.core.errors import UserError


def render(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """Return a chat as text, up to where the model answers: by the model's template, else as paragraphs."""
    if tokenizer.chat_template is None:
        return render_plain_text(chat)
    messages = [{"role": message.role, "content": message.content} for message in chat]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encode(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> list[list[int]]:
    """Return rendered prompts as tokens. A template has already added special tokens; plain text has none."""
    if not prompts:
        return []
    encoded = tokenizer(list(prompts), add_special_tokens=tokenizer.chat_template is None)
    rows = [list(map(int, row)) for row in encoded["input_ids"]]
    if not all(rows):
        raise UserError("A prompt has no tokens.", "Remove empty prompts.")
    return rows


def encode_answers(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return answers as tokens, each with the end token, so that the model learns to stop."""
    if tokenizer.eos_token_id is None:
        raise UserError("The tokenizer has no end-of-sequence token.", "Set tokenizer.eos_token.")
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=False)
    return [[*map(int, row), int(tokenizer.eos_token_id)] for row in encoded["input_ids"]]
