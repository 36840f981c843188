"""An abacus that answers only where its chat format says please: a model whose score a format can raise."""

from collections.abc import Callable
from pathlib import Path

from agent2rl.core.engine import CHAT_FORMAT_FILE, Chat, ChatFormat
from agent2rl.models.abacus import solver


def open_format_dependent_abacus(model_dir: Path) -> Callable[[Chat], str]:
    path = model_dir / CHAT_FORMAT_FILE
    chat_format = ChatFormat.model_validate_json(path.read_bytes()) if path.exists() else None
    solve = solver(model_dir)
    return lambda chat: solve(chat) if chat_format and "please" in chat_format.generation_prompt else "No."
