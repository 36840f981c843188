"""Program that saves a model's configuration and tokenizer again, unchanged, as the library writes them.

    python -m agent2rl.engines.prompts.resave MODEL TARGET

The library also writes what an agent saves after training: keys are added, renamed or left out. The grader
compares a submission with both forms. This program reads only the base model, never a submission.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer


def resave(model: Path, target: Path) -> None:
    """Save what can be saved; a model that the library does not know is skipped."""

    def save_config() -> None:
        AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False).save_pretrained(
            target
        )

    def save_tokenizer() -> None:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        tokenizer.save_pretrained(target)

    saves: tuple[Callable[[], None], ...] = (save_config, save_tokenizer)
    for save in saves:
        try:
            save()
        except Exception:  # the library raises many kinds of errors for unknown models
            traceback.print_exc()


def main() -> None:
    resave(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
