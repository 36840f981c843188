"""Check whether a frozen submission can be graded: it must be the base model with trained weights.

All other files must be the base model's, either unchanged or as the library saves them (a child process finds
that out once per run), or have only allowed changes: added special tokens, their rows, tokens that end a
reply, a declared chat format. Tensors are compared by name, shape and dtype from the safetensors headers;
those of an adapter are compared as they are after merging. One refusal lists all problems, so that each
problem does not cost a submission.
"""

import logging
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from agent2rl.core.engine import CHAT_FORMAT_FILE, ChatFormat
from agent2rl.core.errors import GradingError, Refusal
from agent2rl.core.sandbox import Command, Enclosure
from agent2rl.grading.base_model import (
    CHAT_FORMAT_EXAMPLE,
    TOKENIZER_BYTES,
    BaseModel,
    read_chat_format,
    read_templates,
)
from agent2rl.grading.config_and_tokenizer import (
    VOCABULARY,
    AddedToken,
    Config,
    ConfigChanges,
    check_config,
    check_tokenizer,
    config_value,
    read_special_ids,
)
from agent2rl.grading.freeze import CONFIG, TOKENIZER, VOCABULARY_FILES
from agent2rl.grading.grading_child import GradingChild, model_mounts, require_normal_exit
from agent2rl.grading.lora_adapter import is_adapter, read_adapter
from agent2rl.grading.model_builder import ModelParts, base_files
from agent2rl.grading.untrusted_model_files import (
    MIB,
    SAVE_HINT,
    Tensor,
    format_values,
    read_object,
    read_tensors,
    tensor_sha256,
)
from agent2rl.grading.worker import MODEL
from agent2rl.record.files import remove_tree, sha256_file

logger = logging.getLogger(__name__)

# The base model's small files as the library writes them when it saves the unchanged model.

RESAVE_SECONDS = 300.0
RESAVE_TARGET = "resaved"
RESAVE_MODULE = "agent2rl.engines.prompts.resave"
WITHOUT_TORCH = (
    'import runpy, sys; sys.modules["torch"] = None; runpy.run_module(sys.argv.pop(1), run_name="__main__")'
)
"""Program that runs a module and hides torch from the library, which writes the same files without it and
starts in a third of the time."""


@dataclass(frozen=True)
class ResavedBase:
    """The base model's resaved files; empty if the library does not know the model or is not installed."""

    config: Mapping[str, Any] | None = None
    tokenizer: Mapping[str, Any] | None = None
    templates: frozenset[str] = frozenset()
    file_sha256: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the other vocabulary files."""


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
        argv = (sys.executable, "-c", WITHOUT_TORCH, RESAVE_MODULE, MODEL, RESAVE_TARGET)
        command = Command(argv, {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""})
        ended = child.sandbox.run(command, enclosure, stop)
        require_normal_exit("Reading the base model", ended, RESAVE_SECONDS)
        logger.debug("Saved the base model's files again in %.1f s", ended.wall_seconds)
        return read_resaved(here / "work" / RESAVE_TARGET)
    finally:
        remove_tree(here)


def read_resaved(directory: Path) -> ResavedBase:
    """Read what the child wrote, if anything."""
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


# Tensors: must match the base model's by name, shape and dtype. Only the vocabulary may grow a little.

PARAMETER_GROWTH = 1.05
FLOATS = {"F64", "F32", "F16", "BF16"}
HEAD = "lm_head.weight"
"""The only optional tensor: if embeddings are tied, it is a copy of them."""


def check_tensors(
    tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], config: Config, base_config: Config
) -> None:
    """Refuse tensors that differ from the base model's in name, shape or dtype.

    The configuration must have been checked before.
    """
    size, rows = config_value(config, VOCABULARY), config_value(base_config, VOCABULARY)
    grown = {name: _grow_shape(tensor.shape, rows, size) for name, tensor in base.items()}
    if HEAD in tensors and HEAD not in base:
        tensors = {name: tensor for name, tensor in tensors.items() if name != HEAD} | _keep_untied_head(
            tensors
        )
    _check_count(tensors, base, grown)
    tied = config.get("tie_word_embeddings", base_config.get("tie_word_embeddings", True)) is not False
    common = sorted(tensors.keys() & base.keys())
    faults = {
        "missing": sorted(base.keys() - tensors.keys() - ({HEAD} if tied else set())),
        "not in the base model": sorted(tensors.keys() - base.keys()),
        "of another shape": [
            f"{name} {list(tensors[name].shape)}, not {list(base[name].shape)}"
            for name in common
            if tensors[name].shape not in (base[name].shape, grown[name])
        ],
        "not floating-point numbers": [
            f"{name} {tensors[name].dtype}"
            for name in common
            if tensors[name].dtype not in FLOATS | {base[name].dtype}
        ],
    }
    if any(faults.values()):
        text = "; ".join(f"{fault}: {format_values(names)}" for fault, names in faults.items() if names)
        raise Refusal(
            f"The tensors are not the base model's. They are {text}.", f"Unwrap the model. {SAVE_HINT}"
        )


def _grow_shape(shape: tuple[int, ...], rows: int | None, size: int | None) -> tuple[int, ...]:
    """Return the shape with the submission's vocabulary size, if the rows are the vocabulary."""
    return (size, *shape[1:]) if size is not None and shape and shape[0] == rows else shape


def _keep_untied_head(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the head, unless it is only a copy of another tensor."""
    head = tensors[HEAD]
    alike = [
        tensor
        for name, tensor in tensors.items()
        if name != HEAD and (tensor.dtype, tensor.shape) == (head.dtype, head.shape)
    ]
    digest = tensor_sha256(head)
    return {} if any(tensor_sha256(tensor) == digest for tensor in alike) else {HEAD: head}


def _check_count(
    tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], grown: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse a bigger model with one message, since all of its tensors differ."""
    parameters = sum(tensor.parameters for tensor in tensors.values())
    allowed = sum(tensor.parameters for tensor in base.values())
    added = sum(prod(shape) for shape in grown.values()) - allowed
    if parameters > allowed * PARAMETER_GROWTH + added:
        raise Refusal(
            f"The model has {parameters:,} parameters; the base model has {allowed:,}.",
            "Train the base model itself. If its embeddings are tied, keep them tied.",
        )


Resave = Callable[[], ResavedBase]
"""Return the base model's files as the library writes them; called only if a submission's files differ."""


def check_submission(submission: Path, base: BaseModel, resave: Resave) -> ModelParts:
    """Return the parts of a submission that take effect, or refuse it with all its problems."""
    problems: list[Refusal] = []
    config, tensors = ConfigChanges(), dict[str, Tensor]()
    added, tokenizer = tuple[AddedToken, ...](), None
    chat_format = None
    with _collect_refusal(problems):
        config = _check_config(submission, base, resave)
    with _collect_refusal(problems):
        tensors = _check_weights(submission, base, config)
    with _collect_refusal(problems):
        vocabulary = config.vocabulary or config_value(base.config, VOCABULARY)
        added, tokenizer = _check_tokenizer(submission, base, resave, vocabulary)
    with _collect_refusal(problems):
        _check_vocabulary_files(submission, base, resave)
    with _collect_refusal(problems):
        _check_end_tokens(config, base, added, tokenizer)
    with _collect_refusal(problems):
        chat_format = _check_chat_format(submission, base, resave)
    logger.debug("Submission %s: checked, %d problems", submission.parent.name, len(problems))
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Refusal("\n".join(map(str, problems)), "\nFix all of these, then submit again.")
    return ModelParts(tensors, config, added, tokenizer, chat_format)


@contextmanager
def _collect_refusal(problems: list[Refusal]) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        # Several checks read the same file, and refuse it in the same words.
        if str(refusal) not in map(str, problems):
            problems.append(refusal)


def _check_config(submission: Path, base: BaseModel, resave: Resave) -> ConfigChanges:
    """Return the configuration changes that take effect. A base model without a head is always tied."""
    changes = _read_config(submission, base, resave)
    return changes if HEAD in base.tensors else replace(changes, tied=None)


def _read_config(submission: Path, base: BaseModel, resave: Resave) -> ConfigChanges:
    if not (submission / CONFIG).is_file():
        return ConfigChanges(vocabulary=_grown_vocabulary(submission, base))
    config = read_object(submission / CONFIG, MIB)
    try:
        return check_config(config, base.config, [base.config], base.end_tokens)
    except Refusal:
        # Only now, because most submissions have the base's own file and need no child process.
        resaved = resave().config
        if resaved is None:
            raise
        return check_config(config, base.config, [base.config, resaved], base.end_tokens)


def _grown_vocabulary(submission: Path, base: BaseModel) -> int | None:
    """Return the vocabulary size of the weights, for submissions without a configuration."""
    rows = config_value(base.config, VOCABULARY)
    sizes = {
        tensor.shape[0]
        for name, tensor in _read_weights(submission, base).items()
        if name in base.tensors and base.tensors[name].shape[:1] == (rows,) and tensor.shape
    }
    grown = sizes - {rows}
    if len(grown) != 1:
        return None
    return check_config({VOCABULARY: grown.pop()}, base.config, [base.config], base.end_tokens).vocabulary


def _check_weights(submission: Path, base: BaseModel, config: ConfigChanges) -> dict[str, Tensor]:
    tensors = _read_weights(submission, base)
    check_tensors(tensors, base.tensors, config.apply(base.config), base.config)
    return tensors


def _read_weights(submission: Path, base: BaseModel) -> dict[str, Tensor]:
    """Read the tensors of a model, or those that the base model has after merging an adapter."""
    if is_adapter(submission):
        return read_adapter(submission, base).outline
    tensors = read_tensors(submission)
    used = {tensor.file.name for tensor in tensors.values()}
    # An engine that looks for weights by a pattern could open these in place of the checked ones.
    if stray := sorted(file.name for file in submission.glob("*.safetensors") if file.name not in used):
        raise Refusal(
            f"These weight files are not part of the model: {', '.join(stray)}.",
            f"rm -- {' '.join(map(shlex.quote, stray))}",
        )
    return tensors


def _check_tokenizer(
    submission: Path, base: BaseModel, resave: Resave, vocabulary: int | None
) -> tuple[tuple[AddedToken, ...], Mapping[str, Any] | None]:
    """Return the added tokens and the tokenizer.json that they are added to."""
    path = submission / TOKENIZER
    if not path.is_file() or _is_same_file(path, base):
        return (), None
    if not base.has_tokenizer:
        raise Refusal("tokenizer.json: the base model has no tokenizer.", "rm tokenizer.json")
    submitted = read_object(path, TOKENIZER_BYTES)
    forms = [base.tokenizer] if base.tokenizer is not None else []
    try:
        if not forms:
            raise Refusal(
                "tokenizer.json: the base model's tokenizer has another format.", "rm tokenizer.json"
            )
        added = check_tokenizer(submitted, forms, vocabulary)
    except Refusal:
        resaved = resave().tokenizer
        if resaved is None:
            raise
        forms = [*forms, resaved]
        added = check_tokenizer(submitted, forms, vocabulary)
    return added, forms[0]


def _check_end_tokens(
    config: ConfigChanges,
    base: BaseModel,
    added: tuple[AddedToken, ...],
    tokenizer: Mapping[str, Any] | None,
) -> None:
    """Refuse end tokens that are not special: they would change the base model's answers."""
    special = read_special_ids(tokenizer or base.tokenizer or {}) | {token.id for token in added}
    if ordinary := sorted(set(config.end_tokens) - special):
        raise Refusal(
            f"config.json: eos_token_id names {ordinary}, which are not special tokens.",
            "End replies with a special token of the base model, or with one that you add.",
        )


def _check_vocabulary_files(submission: Path, base: BaseModel, resave: Resave) -> None:
    """Refuse other vocabulary files that differ from the base model's; without those they have no effect."""
    base_names = {file.path for file in base.manifest.files}
    for name in VOCABULARY_FILES:
        path = submission / name
        if name not in base_names or not path.is_file() or _is_same_file(path, base):
            continue
        if resave().file_sha256.get(name) != sha256_file(path):
            raise Refusal(f"{name} is not the base model's.", "Copy the base model's file, or leave it out.")


def _check_chat_format(submission: Path, base: BaseModel, resave: Resave) -> ChatFormat | None:
    declared = read_chat_format(submission)
    if declared is not None:
        return declared if declared != base.chat_format else None
    templates = {text for text in read_templates(submission) if text}
    if templates <= base.templates or templates <= base.templates | resave().templates:
        return None
    raise Refusal(
        "The chat template is not the base model's. Submitted templates are never run.",
        f"Keep the base model's, or describe yours in {CHAT_FORMAT_FILE} next to the weights. "
        f"{CHAT_FORMAT_EXAMPLE}",
    )


def _is_same_file(path: Path, base: BaseModel) -> bool:
    digests = {file.path: file.sha256 for file in base.manifest.files}
    return digests.get(path.name) == sha256_file(path)
