"""Is a frozen submission fit to be graded: the base model's tensors, trained further?

A submission is weights. What else it holds must be the base model's, or one of the few things that may
differ: added special tokens, their rows, tokens that end a reply, a declared chat format. Everything wrong
is named in one refusal, so that faults do not cost a submission each. No framework loads anything here; what
the weights are worth and where they come from is for the grading child and for `lineage`.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent2rl.core.chat_format import CHAT_FORMAT_FILE, ChatFormat
from agent2rl.core.errors import Refusal
from agent2rl.grading.architecture import HEAD, check_tensors
from agent2rl.grading.base_model import (
    CHAT_FORMAT_EXAMPLE,
    TOKENIZER_BYTES,
    BaseModel,
    read_chat_format,
    read_templates,
)
from agent2rl.grading.model_builder import ModelParts
from agent2rl.grading.model_config import VOCABULARY, ConfigChanges, check_config, config_value
from agent2rl.grading.resaved_base import ResavedBase
from agent2rl.grading.strict_json import MIB, read_object
from agent2rl.grading.submission_files import CONFIG, TOKENIZER, VOCABULARY_FILES
from agent2rl.grading.tokenizer_check import AddedToken, check_tokenizer, read_special_ids
from agent2rl.grading.weights import Tensor, read_tensors
from agent2rl.store.files import sha256_file

Resave = Callable[[], ResavedBase]
"""Says how the library writes the base model's files; asked only where a submission's are not the base's."""


def check_submission(submission: Path, base: BaseModel, resave: Resave) -> ModelParts:
    """What of a submission takes effect; everything that may not be in it is refused at once."""
    problems: list[Refusal] = []
    config, found = ConfigChanges(), dict[str, Tensor]()
    added, tokenizer = tuple[AddedToken, ...](), None
    chat_format = None
    with _noting(problems):
        config = _check_config(submission, base, resave)
    with _noting(problems):
        found = _check_weights(submission, base, config)
    with _noting(problems):
        vocabulary = config.vocabulary or config_value(base.config, VOCABULARY)
        added, tokenizer = _check_tokenizer(submission, base, resave, vocabulary)
    with _noting(problems):
        _check_vocabulary_files(submission, base, resave)
    with _noting(problems):
        _check_end_tokens(config, base, added, tokenizer)
    with _noting(problems):
        chat_format = _check_chat_format(submission, base, resave)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Refusal("\n".join(map(str, problems)), "\nFix all of these, then submit again.")
    return ModelParts(found, config, added, tokenizer, chat_format)


@contextmanager
def _noting(problems: list[Refusal]) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        problems.append(refusal)


def _check_config(submission: Path, base: BaseModel, resave: Resave) -> ConfigChanges:
    """What of a configuration takes effect. A base model without a head of its own is always tied."""
    changes = _read_config(submission, base, resave)
    return changes if HEAD in base.tensors else replace(changes, tied=None)


def _read_config(submission: Path, base: BaseModel, resave: Resave) -> ConfigChanges:
    if not (submission / CONFIG).is_file():
        return ConfigChanges(vocabulary=_grown_vocabulary(submission, base))
    config = read_object(submission / CONFIG, MIB)
    try:
        return check_config(config, base.config, [base.config], base.end_tokens)
    except Refusal:
        resaved = resave().config
        if resaved is None:
            raise
        return check_config(config, base.config, [base.config, resaved], base.end_tokens)


def _grown_vocabulary(submission: Path, base: BaseModel) -> int | None:
    """The vocabulary that the weights have, where no configuration says it."""
    rows = config_value(base.config, VOCABULARY)
    sizes = {
        tensor.shape[0]
        for name, tensor in read_tensors(submission).items()
        if name in base.tensors and base.tensors[name].shape[:1] == (rows,) and tensor.shape
    }
    grown = sizes - {rows}
    if len(grown) != 1:
        return None
    return check_config({VOCABULARY: grown.pop()}, base.config, [base.config], base.end_tokens).vocabulary


def _check_weights(submission: Path, base: BaseModel, config: ConfigChanges) -> dict[str, Tensor]:
    found = read_tensors(submission)
    used = {tensor.file.name for tensor in found.values()}
    if stray := sorted(file.name for file in submission.glob("*.safetensors") if file.name not in used):
        raise Refusal(
            f"These weights belong to no model: {', '.join(stray)}.",
            f"rm -- {' '.join(map(shlex.quote, stray))}",
        )
    check_tensors(found, base.tensors, config.apply(base.config), base.config)
    return found


def _check_tokenizer(
    submission: Path, base: BaseModel, resave: Resave, vocabulary: int | None
) -> tuple[tuple[AddedToken, ...], Mapping[str, Any] | None]:
    """The tokens that are added, and the tokenizer.json that they are added to."""
    path = submission / TOKENIZER
    if not path.is_file() or _is_same_file(path, base):
        return (), None
    if not base.has_tokenizer:
        raise Refusal("tokenizer.json: the base model has no tokenizer.", "rm tokenizer.json")
    submitted = read_object(path, TOKENIZER_BYTES)
    forms = [base.tokenizer] if base.tokenizer is not None else []
    try:
        if not forms:
            raise Refusal("tokenizer.json: the base model's tokenizer has another form.", "rm tokenizer.json")
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
    """An ordinary token that ends replies, or a row without one, would change what the base model says."""
    special = read_special_ids(tokenizer or base.tokenizer or {}) | {token.id for token in added}
    if ordinary := sorted(set(config.end_tokens) - special):
        raise Refusal(
            f"config.json: eos_token_id names {ordinary}, which are not special tokens.",
            "End replies with a special token of the base model's, or with one that you add.",
        )


def _check_vocabulary_files(submission: Path, base: BaseModel, resave: Resave) -> None:
    """Other files of the vocabulary are those of the base model, or decide nothing where it has none."""
    known = {file.path for file in base.manifest.files}
    for name in VOCABULARY_FILES:
        path = submission / name
        if name not in known or not path.is_file() or _is_same_file(path, base):
            continue
        if resave().file_sha256.get(name) != sha256_file(path):
            raise Refusal(f"{name} is not the base model's.", "Copy the base model's, or leave it out.")


def _check_chat_format(submission: Path, base: BaseModel, resave: Resave) -> ChatFormat | None:
    declared = read_chat_format(submission)
    if declared is not None:
        return declared if declared != base.chat_format else None
    templates = {text for text in read_templates(submission) if text}
    if templates <= base.templates or templates <= base.templates | resave().templates:
        return None
    raise Refusal(
        "The chat template is not the base model's, and no submitted template is ever run.",
        f"Keep the base model's, or describe yours in {CHAT_FORMAT_FILE} beside the weights. "
        f"{CHAT_FORMAT_EXAMPLE}",
    )


def _is_same_file(path: Path, base: BaseModel) -> bool:
    digests = {file.path: file.sha256 for file in base.manifest.files}
    return digests.get(path.name) == sha256_file(path)
