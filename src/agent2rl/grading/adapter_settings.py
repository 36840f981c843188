"""What a submitted adapter_config.json says, read as data.

peft runs `target_modules` and the patterns for ranks and alphas as regular expressions; here names are
compared. Every key that has a value and is not known here is refused, so that no option is silently ignored.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

from agent2rl.core.errors import Refusal
from agent2rl.grading.freeze import ADAPTER_CONFIG
from agent2rl.grading.untrusted_model_files import format_value, format_values

AdapterKind = Literal["LORA", "LOHA", "IA3"]
# An agent chooses both: a huge rank costs memory, and a huge alpha makes infinite weights.
MAX_RANK = 1024
MAX_ALPHA = 1e6
MODULE_NAME = re.compile(r"[A-Za-z0-9_.]{1,200}")
INPUT_KINDS = {
    *("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT", "ADAPTION_PROMPT"),
}
"""Kinds that train inputs of the model, which no merge turns into weights."""
INITIALIZATIONS = {"gaussian", "eva", "orthogonal"}
"""Those that leave the base model's weights as they are, beside true and false."""
USED: Mapping[AdapterKind, frozenset[str]] = {
    "LORA": frozenset(
        {
            *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "lora_bias"),
            *("fan_in_fan_out", "init_lora_weights"),
        }
    ),
    "LOHA": frozenset({"r", "alpha", "rank_pattern", "alpha_pattern"}),
    "IA3": frozenset({"fan_in_fan_out"}),
}
"""The keys of each kind that take effect, beside those of all kinds."""
USED_BY_ALL = {"peft_type", "target_modules"}
WITHOUT_EFFECT = {
    # who wrote the file, and for which base model
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "peft_version", "inference_mode"),
    # of training
    *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
    *("rank_dropout", "module_dropout", "init_weights", "init_ia3_weights"),
    # which modules were trained, and how: the names and shapes of the tensors say that
    *("exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save", "bias"),
    *("feedforward_modules", "use_effective_conv2d"),
    # defaults of features that other keys turn on
    *("megatron_core", "qalora_group_size"),
}
MERGE = """Merge it into the base model and submit the result:
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"], dtype="auto")
    model = PeftModel.from_pretrained(model, ADAPTER_DIRECTORY).merge_and_unload()
    model.save_pretrained(MERGED_DIRECTORY, safe_serialization=True)"""
SAVE_ADAPTER = "Save the adapter again with peft's model.save_pretrained(path)."


@dataclass(frozen=True)
class AdapterSettings:
    """What of adapter_config.json takes effect. IA3 has neither ranks nor alphas."""

    kind: AdapterKind
    targets: "ModuleValues | None"
    """The modules; None if the file has a pattern, which is not run."""
    rank: int
    alpha: float
    ranks: "ModuleValues"
    alphas: "ModuleValues"
    """Of modules with another rank or alpha."""
    rank_stabilized: bool
    decomposed: bool
    """Whether it is a DoRA."""
    biased: bool
    """Whether it adds to the biases of its modules too."""
    transposed: bool
    """Whether the base model stores its matrices as inputs times outputs."""

    def rank_of(self, module: str) -> int:
        return int(self.ranks.find(module) or self.rank)

    def scaling_of(self, module: str) -> float:
        rank = self.rank_of(module)
        return (self.alphas.find(module) or self.alpha) / (sqrt(rank) if self.rank_stabilized else rank)

    def has_target(self, module: str) -> bool:
        return self.targets is None or self.targets.find(module) is not None


class ModuleValues:
    """Values of modules, by their names or the ends of their names. The first that fits a module counts."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = {name: (place, value) for place, (name, value) in enumerate(values.items())}

    def find(self, module: str) -> float | None:
        """Look up each end of a name, because an agent decides how many values there are."""
        parts = module.split(".")
        ends = (".".join(parts[first:]) for first in range(len(parts)))
        return min((self._values[end] for end in ends if end in self._values), default=(0, None))[1]


def read_adapter_settings(config: Mapping[str, Any]) -> AdapterSettings:
    """Return what of adapter_config.json takes effect, or refuse a kind that cannot be merged here."""
    kind = _read_kind(config)
    _check_options(config, kind)
    targets = config.get("target_modules")
    if not (targets is None or isinstance(targets, str) or _is_text_list(targets)):
        raise _setting_refusal("target_modules", targets, "a list of names")
    alpha = {"LORA": "lora_alpha", "LOHA": "alpha", "IA3": ""}[kind]
    return AdapterSettings(
        kind=kind,
        targets=ModuleValues(dict.fromkeys(targets, 1)) if isinstance(targets, list) else None,
        rank=_read_rank("r", config.get("r")) if alpha else 1,
        alpha=_read_alpha(alpha, config.get(alpha)) if alpha else 1.0,
        ranks=_read_pattern(config, "rank_pattern", _read_rank),
        alphas=_read_pattern(config, "alpha_pattern", _read_alpha),
        rank_stabilized=_read_flag(config, "use_rslora"),
        decomposed=_read_flag(config, "use_dora"),
        biased=_read_flag(config, "lora_bias"),
        transposed=_read_flag(config, "fan_in_fan_out"),
    )


def _read_kind(config: Mapping[str, Any]) -> AdapterKind:
    given = config.get("peft_type")
    if isinstance(given, str) and given in INPUT_KINDS:
        raise Refusal(
            f"This is an adapter of the kind {given}: it trains inputs of the model and not its weights, so "
            "it cannot be merged.",
            "Train a LoRA adapter or the model's own weights.",
        )
    for kind in USED:
        if given == kind:
            return kind
    raise Refusal(
        f"{ADAPTER_CONFIG}: peft_type is {format_value(given)}. The grader merges LORA, also "
        "with use_rslora, use_dora or lora_bias, LOHA and IA3.",
        MERGE,
    )


def _check_options(config: Mapping[str, Any], kind: AdapterKind) -> None:
    initialization = config.get("init_lora_weights", True)
    if not isinstance(initialization, bool) and str(initialization) not in INITIALIZATIONS:
        raise Refusal(
            f"{ADAPTER_CONFIG}: init_lora_weights is {format_value(initialization)}, which also changes the "
            "base model's own weights, and the adapter does not hold that change.",
            "Save it with path_initial_model_for_weight_conversion, or submit the merged model.",
        )
    known = USED_BY_ALL | USED[kind] | WITHOUT_EFFECT
    # peft writes all options that it knows, so one without a value is not in use.
    others = sorted(key for key, value in config.items() if key not in known and value)
    if others:
        raise Refusal(
            f"{ADAPTER_CONFIG} uses {format_values(others)}, which the grader does not merge.", MERGE
        )
    if config.get("use_dora") and config.get("lora_bias"):
        raise Refusal(f"{ADAPTER_CONFIG} uses lora_bias with use_dora, which peft does not have.", MERGE)


def _read_rank(key: str, value: object) -> int:
    # JSON's true would pass isinstance: in Python a bool is an int.
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise _setting_refusal(key, value, f"a rank from 1 to {MAX_RANK}")
    return value


def _read_alpha(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_ALPHA:
        raise _setting_refusal(key, value, f"a number above 0 and up to {MAX_ALPHA:g}")
    return float(value)


def _read_flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise _setting_refusal(key, value, "true or false")
    return bool(value)


def _read_pattern(config: Mapping[str, Any], key: str, read: Callable[[str, object], float]) -> ModuleValues:
    pattern = config.get(key) or {}
    if not isinstance(pattern, dict) or not all(MODULE_NAME.fullmatch(name) for name in pattern):
        raise _setting_refusal(key, pattern, "a mapping of module names; regular expressions are not run")
    return ModuleValues({name: read(key, value) for name, value in pattern.items()})


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _setting_refusal(key: str, value: object, expected: str) -> Refusal:
    return Refusal(f"{ADAPTER_CONFIG}: {key} is {format_value(value)}, not {expected}.", SAVE_ADAPTER)
