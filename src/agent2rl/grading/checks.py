"""Is a frozen submission fit to be graded: the base model, trained further, and nothing that runs code?

Everything wrong is named in one refusal, each fault with its mend, so that faults do not cost a submission
each. No framework loads anything here. Not covered: what the weights are worth and where they come from, and
the inside of `tokenizer.model`, which only the grading child opens.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agent2rl.core.errors import Refusal, UserError
from agent2rl.core.records import Manifest
from agent2rl.grading.architecture import check_config, check_tensors
from agent2rl.grading.freeze import manifest_of
from agent2rl.grading.templates import TEMPLATE_BYTES, check_template
from agent2rl.grading.untrusted import MIB, keys, read_bytes, read_object
from agent2rl.grading.weights import INDEX, MEND, Tensor, tensors, weights_sha256

MERGE = """Merge it into the base model and submit the result:
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"], dtype="auto")
    model = PeftModel.from_pretrained(model, ADAPTER_DIRECTORY).merge_and_unload()
    model.save_pretrained(MERGED_DIRECTORY, safe_serialization=True)
    AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"]).save_pretrained(MERGED_DIRECTORY)"""

CONFIG = "config.json"
SETTINGS = {
    "tokenizer_config.json": 16 * MIB,
    "special_tokens_map.json": MIB,
    "generation_config.json": MIB,
    "chat_template.json": MIB,
}
"""JSON files that could name code or hold a chat template, with the most bytes that each may have."""
VOCABULARIES = {"tokenizer.json": 64 * MIB, "vocab.json": 64 * MIB, "added_tokens.json": 16 * MIB}
"""JSON files whose keys are tokens, which may be any text."""
TEXTS = {"vocab.txt": 64 * MIB, "merges.txt": 64 * MIB}
TEMPLATE = "chat_template.jinja"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
ADAPTERS = ("adapter_config.*", "adapter_model.*")
CODE = ("*.py", "*.pyc", "*.so", "*.so.*", "*.sh", "*.ipynb")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib", "*.npy", "*.npz")
LEFTOVERS = ("training_args.*", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*", "*.bin.index.json")
ACCEPTED = (
    *("*.safetensors", INDEX, CONFIG, *SETTINGS, *VOCABULARIES, *TEXTS, TEMPLATE, "tokenizer.model"),
    *("trainer_state.json", "*.md", "*.txt", "LICENSE*", ".gitattributes"),
)


@dataclass(frozen=True)
class BaseModel:
    """The untouched model, as submissions are held against it."""

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    templates: frozenset[str]
    """Its own chat templates: trusted, and so accepted as they are."""
    weights_sha256: str
    manifest: Manifest

    @property
    def templated(self) -> bool:
        """Whether it is asked in chats. One without a tokenizer is no language model, and answers them."""
        return any(self.templates) or not {file.path for file in self.manifest.files}.intersection(TOKENIZERS)

    @property
    def parameters(self) -> int:
        return sum(tensor.parameters for tensor in self.tensors.values())

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.manifest.files)


def base_model(directory: Path) -> BaseModel:
    """Read a base model. It is the user's, so what is wrong with it is no refusal."""
    try:
        return BaseModel(
            directory=directory,
            config=read_object(directory / CONFIG, MIB),
            tensors=tensors(directory),
            templates=frozenset(_base_templates(directory)),
            weights_sha256=weights_sha256(directory),
            manifest=manifest_of(directory),
        )
    except (Refusal, OSError) as error:
        raise UserError(
            f"The base model {directory} cannot be used: {error}",
            "Name a directory with config.json and safetensors weights.",
        ) from error


def check(submission: Path, base: BaseModel) -> None:
    """Refuse what cannot be graded, naming every fault at once."""
    problems: list[Refusal] = list(_files(submission))
    with _noting(problems):
        _model(submission, base)
    for name, most in SETTINGS.items():
        with _noting(problems):
            _settings(submission / name, most, base)
    for name, most in VOCABULARIES.items():
        with _noting(problems):
            _vocabulary(submission / name, most)
    for name, most in TEXTS.items():
        with _noting(problems):
            _text(submission / name, most)
    with _noting(problems):
        _template(_text(submission / TEMPLATE, TEMPLATE_BYTES), base)
    with _noting(problems):
        _tokenizer(submission, base)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Refusal("\n".join(map(str, problems)), "\nMend all of these, then submit again.")


@contextmanager
def _noting(problems: list[Refusal]) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        problems.append(refusal)


def _files(directory: Path) -> Iterator[Refusal]:
    """What lies in the directory and may not, by kind. An adapter is named alone: nothing else fits then."""
    entries = sorted(directory.iterdir())
    folders = [entry.name for entry in entries if entry.is_dir()]
    names = [entry.name for entry in entries if not entry.is_dir()]
    if adapters := _matching(names, ADAPTERS):
        raise Refusal(f"This is a LoRA adapter ({', '.join(adapters)}), not a whole model.", MERGE)
    code = _matching(names, CODE)
    pickles = _matching(names, PICKLES + LEFTOVERS)
    other = [name for name in names if name not in {*code, *pickles, *_matching(names, ACCEPTED)}]
    if folders:
        yield Refusal(
            f"A submission has no sub-directories: {', '.join(folders)}.",
            f"Submit the checkpoint directory itself, or: rm -r -- {_quoted(folders)}",
        )
    if code:
        yield Refusal(f"No custom code is ever run: {', '.join(code)}.", f"rm -- {_quoted(code)}")
    if pickles:
        only_leftovers = pickles == _matching(pickles, LEFTOVERS)
        yield Refusal(
            f"Pickled files can run code and are never opened: {', '.join(pickles)}.",
            f"{'' if only_leftovers else f'{MEND} Then: '}rm -- {_quoted(pickles)}",
        )
    if other:
        yield Refusal(f"These are no files of a model: {', '.join(other)}.", f"rm -- {_quoted(other)}")


def _matching(names: list[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _quoted(names: list[str]) -> str:
    return " ".join(map(shlex.quote, names))


def _model(directory: Path, base: BaseModel) -> None:
    """Configuration first: the weights are held against it."""
    if not (directory / CONFIG).is_file():
        raise Refusal(f"There is no {CONFIG}.", "Save the model with model.save_pretrained(path).")
    config = read_object(directory / CONFIG, MIB)
    check_config(config, base.config)
    found = tensors(directory)
    used = {tensor.file.name for tensor in found.values()}
    if stray := sorted(file.name for file in directory.glob("*.safetensors") if file.name not in used):
        raise Refusal(f"These weights belong to no model: {', '.join(stray)}.", f"rm -- {_quoted(stray)}")
    check_tensors(found, base.tensors, config, base.config)


def _settings(path: Path, most_bytes: int, base: BaseModel) -> None:
    if not path.is_file():
        return
    settings = read_object(path, most_bytes)
    if "auto_map" in keys(settings):
        raise Refusal(
            f"{path.name} has an auto_map, and no custom code is ever run.", "Remove the key auto_map."
        )
    for template in _templates(settings, path.name):
        _template(template, base)


def _templates(settings: Mapping[str, Any], file: str) -> Iterator[str]:
    """Chat templates in a settings file: none, one, or a list of named ones."""
    found = settings.get("chat_template")
    entries = found if isinstance(found, list) else [] if found is None else [{"template": found}]
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
            raise Refusal(
                f"The chat_template of {file} is neither text nor a list of names and templates.",
                "Save the tokenizer with tokenizer.save_pretrained(path).",
            )
        yield entry["template"]


def _template(source: str, base: BaseModel) -> None:
    if source not in base.templates:
        check_template(source)


def _base_templates(directory: Path) -> Iterator[str]:
    for name, most in SETTINGS.items():
        if (directory / name).is_file():
            yield from _templates(read_object(directory / name, most), name)
    yield _text(directory / TEMPLATE, MIB)


def _vocabulary(path: Path, most_bytes: int) -> None:
    if not path.is_file():
        return
    vocabulary = read_object(path, most_bytes)
    if path.name == "tokenizer.json" and not isinstance(vocabulary.get("model"), dict):
        raise Refusal(
            "tokenizer.json has no model.", "Save the tokenizer with tokenizer.save_pretrained(path)."
        )


def _text(path: Path, most_bytes: int) -> str:
    """The file's text, none where there is no file."""
    if not path.is_file():
        return ""
    try:
        return read_bytes(path, most_bytes).decode()
    except UnicodeDecodeError:
        raise Refusal(f"{path.name} is not UTF-8 text.", "Copy the base model's.") from None


def _tokenizer(directory: Path, base: BaseModel) -> None:
    needed = {file.path for file in base.manifest.files}.intersection(TOKENIZERS)
    if needed and not any((directory / name).is_file() for name in TOKENIZERS):
        raise Refusal(
            "There is no tokenizer.",
            'AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"]).save_pretrained(path)',
        )
