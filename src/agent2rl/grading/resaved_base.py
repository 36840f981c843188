"""The base model's small files as the library writes them when it saves the model again, unchanged.

Made once per run, when a submission first differs from the base model's files as they stand. It takes a
child process, because the harness itself does not import the library.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent2rl.core.errors import GradingError, Refusal
from agent2rl.core.sandbox import Command, Enclosure
from agent2rl.grading.base_model import TOKENIZER_BYTES, BaseModel, read_templates
from agent2rl.grading.grading_child import GradingChild, model_mounts, require_normal_exit
from agent2rl.grading.model_builder import base_files
from agent2rl.grading.strict_json import MIB, read_object
from agent2rl.grading.submission_files import CONFIG, TOKENIZER, VOCABULARY_FILES
from agent2rl.grading.worker import MODEL
from agent2rl.store.files import remove_tree, sha256_file

RESAVE_SECONDS = 300.0
RESAVE_TARGET = "resaved"


@dataclass(frozen=True)
class ResavedBase:
    """Nothing, where the library does not know the model or is not installed."""

    config: Mapping[str, Any] | None = None
    tokenizer: Mapping[str, Any] | None = None
    templates: frozenset[str] = frozenset()
    file_sha256: Mapping[str, str] = field(default_factory=dict)
    """Of the vocabulary's other files."""


def resave_base(
    base: BaseModel, child: GradingChild, scratch: Path, log: Path, stop: threading.Event
) -> ResavedBase:
    scratch.mkdir(parents=True, exist_ok=True)
    here = Path(tempfile.mkdtemp(prefix="resave-", dir=scratch))
    try:
        for name in ("work", "scratch"):
            (here / name).mkdir()
        enclosure = Enclosure(
            role="grader",
            workspace=here / "work",
            scratch=here / "scratch",
            log=log,
            wall_seconds=RESAVE_SECONDS,
            limits=child.limits,
            mounts=model_mounts(base_files(base)),
            grace_seconds=0,
        )
        argv = (sys.executable, "-m", "agent2rl.engines.prompts.resave", MODEL, RESAVE_TARGET)
        command = Command(argv, {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""})
        ended = child.sandbox.run(command, enclosure, stop)
        require_normal_exit("Reading the base model", ended, RESAVE_SECONDS)
        return read_resaved(here / "work" / RESAVE_TARGET)
    finally:
        remove_tree(here)


def read_resaved(directory: Path) -> ResavedBase:
    """What the child wrote; nothing, where it wrote nothing."""
    if not directory.is_dir():
        return ResavedBase()
    names = {entry.name for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False)}
    try:
        return ResavedBase(
            config=read_object(directory / CONFIG, MIB) if CONFIG in names else None,
            tokenizer=read_object(directory / TOKENIZER, TOKENIZER_BYTES) if TOKENIZER in names else None,
            templates=frozenset(read_templates(directory)),
            file_sha256={
                name: sha256_file(directory / name) for name in names.intersection(VOCABULARY_FILES)
            },
        )
    except Refusal as error:
        raise GradingError(f"The base model's files cannot be read: {error.message}") from error
