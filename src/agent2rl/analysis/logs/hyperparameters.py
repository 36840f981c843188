"""Settings that a log prints. A line of a training's course is none: its rate of learning is a moment's."""

import re
from collections.abc import Sequence

from agent2rl.analysis.attempts import PrintedText
from agent2rl.analysis.evidence import EvidenceBook
from agent2rl.analysis.findings import Setting
from agent2rl.analysis.logs.printed_lines import split_streams

# The names that settings have which are read in code.
NAMES = {
    "learning_rate": ("learning_rate", "lr", "learning rate", "actor_learning_rate", "peak_lr", "rate"),
    "epochs": ("num_train_epochs", "num_epochs", "epochs", "n_epochs", "max_epochs", "num epochs"),
    "batch_size": (
        *("per_device_train_batch_size", "train_batch_size", "batch_size", "micro_batch_size", "batch size"),
        "instantaneous batch size per device",
    ),
    "total_batch_size": ("total train batch size", "total_batch_size", "effective_batch_size"),
    "gradient_accumulation": ("gradient_accumulation_steps", "gradient accumulation steps", "grad_accum"),
    "steps": ("max_steps", "total optimization steps", "num_steps", "total_steps", "num_train_steps"),
    "examples": ("num examples", "num_examples", "num_train_examples", "train examples"),
    "beta": ("beta", "dpo_beta", "kl_coef", "init_kl_coef", "kl_coeff", "kl_beta"),
    "group_size": ("num_generations", "group_size", "n_samples_per_prompt", "num_return_sequences"),
    "temperature": ("temperature", "temp"),
    "top_p": ("top_p",),
    "max_tokens": ("max_new_tokens", "max_completion_length", "max_tokens", "max_response_length"),
    "max_length": ("max_seq_length", "max_length", "max_seq_len", "max_prompt_length"),
    "optimizer": ("optimizer", "optim"),
    "schedule": ("lr_scheduler_type", "lr_scheduler"),
    "lora_rank": ("lora_rank", "lora_r"),
    "lora_alpha": ("lora_alpha",),
    "lora_dropout": ("lora_dropout",),
    "weight_decay": ("weight_decay",),
    "warmup": ("warmup_steps", "num_warmup_steps", "warmup_ratio"),
    "gradient_clip": ("max_grad_norm", "grad_clip", "clip_grad_norm"),
    "clip": ("cliprange", "clip_range", "clip_eps", "epsilon"),
    "trainable_parameters": ("number of trainable parameters", "trainable params"),
    "seed": ("seed",),
    "data": ("dataset_name", "dataset", "data_path", "train_file", "train_data"),
    "model": ("model_name_or_path", "base_model", "pretrained_model"),
}
CANONICAL = {alias: name for name, aliases in NAMES.items() for alias in aliases}
WORDS = {"optimizer", "schedule", "data", "model"}
"""Whose values are words; all others are numbers."""
_NAME = "|".join(re.escape(alias) for alias in sorted(CANONICAL, key=len, reverse=True))
SET = re.compile(
    rf"(?<![\w./-])(?P<flag>--)?(?P<name>{_NAME})(?:\ \([^)]{{1,60}}\))?"
    r"(?P<sign>['\"]?\s{0,8}[=:|]\s{0,8}|\s)"
    r"(?P<value>['\"]?(?:[-+]?(?:\d[\d,_]{0,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,4})?(?![\w.])"
    r"|[A-Za-z/.~][\w./@:+-]{0,199})['\"]?)",
    re.IGNORECASE | re.VERBOSE,
)
COURSE = re.compile(
    r"(?<![\w])(?:loss|reward|grad_norm|entropy)['\"]?\s?[=:]?\s{0,3}['\"]?[-+]?(?:\d|nan|inf)"
)
NUMBER = re.compile(r"[-+]?[\d,_.]+(?:[eE][-+]?\d+)?")
NOTHING = {
    "none",
    "null",
    "str",
    "int",
    "float",
    "optional",
    "true",
    "false",
    "nan",
    "self",
    "args",
    "config",
}
HINTS = (
    *(
        "lr",
        "rate",
        "epoch",
        "batch",
        "grad",
        "step",
        "examples",
        "beta",
        "kl_",
        "group",
        "generations",
        "n_",
    ),
    *("temp", "top_p", "max_", "optim", "lora", "decay", "warmup", "clip", "epsilon", "trainable", "seed"),
    *("data", "train_file", "model", "sequences"),
)
"""In every line that is looked at."""
MOST_VALUES = 5
"""Of one name: of several trainings, in their order."""
MOST_SETTINGS = 100


def extract_settings(printed: Sequence[PrintedText], book: EvidenceBook) -> tuple[Setting, ...]:
    """Hyperparameters and data that programs told, each value once, with the line that told it first."""
    found: dict[tuple[str, float | str], Setting] = {}
    counts: dict[str, int] = {}
    for lines in split_streams(printed).values():
        for line in lines:
            lower = line.text.lower()
            if not any(hint in lower for hint in HINTS) or COURSE.search(line.text):
                continue
            for match in SET.finditer(line.text):
                name, value = CANONICAL[match["name"].lower()], _parse_value(match)
                full = counts.get(name, 0) >= MOST_VALUES or len(found) >= MOST_SETTINGS
                if value is None or full or (name, value) in found:
                    continue
                cited = book.add_evidence("log", line.where, line.text.strip(), line.printed.at)
                found[name, value] = Setting(name=name, value=value, source="log", evidence=(cited,))
                counts[name] = counts.get(name, 0) + 1
    return tuple(found.values())


def _parse_value(match: re.Match[str]) -> int | float | str | None:
    name, text = match["name"].lower(), match["value"].strip("'\"").rstrip(".,:")
    loose = not match["sign"].strip("'\" ")  # only a space
    told = name == "rate" and match.string[: match.start()].endswith(", ")  # as the shipped recipe tells it
    if loose != told and not (loose and match["flag"]):
        return None
    kind = CANONICAL[name]
    return _parse_word(kind, text, match["value"]) if kind in WORDS else _parse_number(text)


def _parse_word(kind: str, text: str, written: str) -> str | None:
    """A name of its own, not one of the language's."""
    if {text.lower(), text.split(".")[0].lower()} & NOTHING:
        return None
    if kind in ("optimizer", "schedule"):
        return text.rsplit(".", 1)[-1].lower() or None
    return text if set("/.") & set(text) or written[0] in "'\"" else None


def _parse_number(text: str) -> int | float | None:
    if not NUMBER.fullmatch(text):
        return None
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    if not abs(number) < 1e18:
        return None
    return int(number) if number.is_integer() and not set("eE.") & set(text) else number
