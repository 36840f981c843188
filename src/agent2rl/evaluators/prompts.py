"""Reads a prompt file: a task's words for the model, its own or a user's.

chat = "…"           for a model with a chat template
plain = "…"          for one without, which goes on from the text
[plain]              or one text for each kind of example, in a world that has kinds
pick_and_place_simple = "…"
"" = "…"            for all others
"""

import tomllib
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.records import PromptTemplates

PROMPT_FILE_FORMAT = "It is TOML with the texts `chat` and `plain`, or one of them."


def read_prompts(path: Path) -> PromptTemplates:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        found = PromptTemplates.model_validate({"name": path.stem, **values})
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", PROMPT_FILE_FORMAT) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}.", PROMPT_FILE_FORMAT) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}.", PROMPT_FILE_FORMAT) from error
    if found.chat is None and found.plain is None:
        raise UserError(f"{path} holds no words for the model.", PROMPT_FILE_FORMAT)
    return found
