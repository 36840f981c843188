"""Which files of a submitted directory are taken, by name alone. Everything else is left where it is.

taken      weights, their index, and the small files that say what the weights belong to
refused    an adapter, or a model in pickle form: there is nothing else to grade
left out   whatever a trainer leaves beside a model; named in the reply and never opened
"""

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent2rl.core.chat_format import CHAT_FORMAT_FILE
from agent2rl.core.errors import Refusal
from agent2rl.grading.weights import INDEX, MEND, SINGLE

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY_FILES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")
"""Other forms of the vocabulary that `tokenizer.json` holds."""
TEMPLATE, TEMPLATE_JSON = "chat_template.jinja", "chat_template.json"
WEIGHTS = "*.safetensors"
TAKEN = (
    *(CONFIG, WEIGHTS, INDEX, TOKENIZER, TOKENIZER_CONFIG, *VOCABULARY_FILES),
    *(TEMPLATE, TEMPLATE_JSON, CHAT_FORMAT_FILE),
)
UNUSED = ("generation_config.json", "special_tokens_map.json", "added_tokens.json")
"""Every save_pretrained writes them and nothing here depends on them, so the reply does not name them."""
ADAPTERS = ("adapter_config.json", "adapter_model.*")
PICKLED_MODELS = (
    *("pytorch_model*", "consolidated*.pth", "*.ckpt"),
    *(f"model*.{ending}" for ending in ("bin", "pt", "pth", "pkl", "pickle")),
)

MERGE = """Merge it into the base model and submit the result:
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"], dtype="auto")
    model = PeftModel.from_pretrained(model, ADAPTER_DIRECTORY).merge_and_unload()
    model.save_pretrained(MERGED_DIRECTORY, safe_serialization=True)"""


@dataclass(frozen=True)
class SelectedFiles:
    taken: tuple[str, ...]
    left_out: tuple[str, ...]
    """What the reply names."""


def select_files(names: Collection[str]) -> SelectedFiles:
    """Decide by name which entries of a submitted directory are taken, or refuse all of it."""
    taken = _matching(names, TAKEN)
    rest = sorted(set(names) - {*taken, *UNUSED})
    has_weights = bool(_matching(taken, (WEIGHTS, INDEX)))
    pickled = _matching(rest, PICKLED_MODELS)
    if pickled:
        raise Refusal(
            f"A pickled model can run code and is never opened: {', '.join(pickled)}.",
            f"{MEND} Then: rm -- {' '.join(map(shlex.quote, pickled))}",
        )
    adapters = _matching(names, ADAPTERS)
    if adapters and not (INDEX in taken or SINGLE in taken):
        raise Refusal(f"This is a LoRA adapter ({', '.join(adapters)}), not a whole model.", MERGE)
    if not has_weights:
        found = f" It holds: {', '.join(sorted(names)[:10])}." if names else " It is empty."
        raise Refusal(
            f"There are no weights in this directory: neither {SINGLE} nor {INDEX}.{found}",
            f"Submit the checkpoint directory itself. {MEND}",
        )
    taken = tuple(sorted(set(taken) - set(adapters)))
    return SelectedFiles(taken, tuple(sorted({*rest, *adapters})))


def matches_name(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _matching(names: Collection[str], patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if matches_name(name, patterns)))
