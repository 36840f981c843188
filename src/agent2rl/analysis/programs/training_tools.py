"""Parse the launches of command-line trainers into training jobs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import program_settings, source_files
from agent2rl.analysis.programs.abstract_values import UNKNOWN
from agent2rl.analysis.programs.command_lines import ProgramLaunch
from agent2rl.analysis.programs.source_files import AgentSourceFiles

METHODS: dict[str, Route | None] = {
    "sft": "sft",
    "pt": "sft",
    "pretrain": "sft",
    "finetune": "sft",
    "lora": "sft",
    "dpo": "preference",
    "kto": "preference",
    "orpo": "preference",
    "simpo": "preference",
    "cpo": "preference",
    "ipo": "preference",
    "online_dpo": "preference",
    "bco": "preference",
    "ppo": "policy-gradient",
    "grpo": "policy-gradient",
    "rloo": "policy-gradient",
    "reinforce": "policy-gradient",
    "gkd": "other",
    "rm": None,
    "reward": None,
    "knowledge_distillation": "other",
    "merge": "other",
}
OUTPUTS = (
    "output_dir", "save_path", "output", "save_dir", "trainer.default_local_dir", "checkpoint_dir",
    "adapter_path",
)  # fmt: skip
INPUTS = (
    "adapter_name_or_path", "model_name_or_path", "model", "base_model", "pretrain", "lora_model_dir",
    "actor_rollout_ref.model.path", "model.path", "model.partial_pretrain", "policy.model_name",
    "model_path", "model_id",
)  # fmt: skip
CONFIGS = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True)
class ToolTrainingJob:
    """The training that a command-line tool performs."""

    route: Route | None
    """None: the policy is not trained."""
    start: str | None
    target: str | None
    settings: tuple[tuple[str, JsonValue, str, bool], ...]
    """Name, value, the tool's own name for it, and whether it is from the command line."""
    config: str | None
    world: bool = False


def parse_training_job(launch: ProgramLaunch, files: AgentSourceFiles) -> ToolTrainingJob | None:
    """Return the training job of a launch; None if it is no trainer."""
    words = [word for word in launch.argv if not word.startswith("-")]
    said: dict[str, JsonValue] = {
        name: value.constant
        for name, value in program_settings.split_options(list(launch.argv))
        if value.constant is not UNKNOWN
    }
    path, config = _load_config(launch, files)
    every = {**config, **said}
    if not (method := _find_method(launch.name, words, every)):
        return None
    lost = (
        not config and any(word.endswith(CONFIGS) for word in launch.argv) and _is_config_driven(launch.name)
    )
    route = "unknown" if lost else METHODS[method]
    world = any(
        "env" in name or "multi_turn" in name for name in every if every[name] not in (None, False, "")
    )
    settings = [
        (setting, value, name.rpartition(".")[2], name in said)
        for name, value in every.items()
        if (setting := program_settings.canonical_setting(name.rpartition(".")[2], name))
        and isinstance(value, str | int | float)
    ]
    return ToolTrainingJob(
        route,
        _find_first(every, INPUTS),
        words[-1] if method == "merge" and len(words) > 1 else _find_first(every, OUTPUTS),
        tuple(settings),
        path,
        world and route == "policy-gradient",
    )


def _find_method(name: str, words: list[str], every: Mapping[str, JsonValue]) -> str | None:
    """Return the name of the training method; None if it is no trainer."""
    first = words[0].lower() if words else ""
    last = name.rpartition(".")[2].lower()
    if name == "trl" or name.startswith("trl.scripts"):
        return _normalise_method(first if name == "trl" else last)
    if name in ("llamafactory-cli", "lmf", "llamafactory.launcher") or name.endswith(
        "llamafactory/launcher.py"
    ):
        return (
            _normalise_method(str(every.get("stage", "sft")))
            if first in ("train", "") or first.endswith(CONFIGS)
            else None
        )
    if name == "axolotl" or name.startswith("axolotl.cli"):
        if first not in ("train", "") and last != "train":
            return None
        return _normalise_method(str(every.get("rl") or "sft"))
    if name == "swift" or name.startswith("swift.cli"):
        kind = first if name == "swift" else last
        return _normalise_method(str(every.get("rlhf_type", "dpo")) if kind == "rlhf" else kind)
    if name.startswith("openrlhf.cli.train_"):
        return _normalise_method(last.removeprefix("train_").removesuffix("_ray"))
    if name.startswith("verl.trainer"):
        return "sft" if "sft" in last else "ppo"
    if name == "tune" and first == "run":
        return _find_torchtune_method(words[1] if len(words) > 1 else "")
    if name.startswith("mlx_lm") and (last in ("lora", "mlx_lm.lora") or name == "mlx_lm.lora"):
        return "sft" if every.get("train") else None
    if name.startswith("mergekit"):
        return "merge"
    if name == "autotrain":
        return _normalise_method(str(every.get("trainer", "sft")))
    if name in ("rl", "prime-rl", "vf-train", "vf-rl"):
        return "grpo"
    return None


def _is_config_driven(name: str) -> bool:
    """Whether a configuration file determines the training method."""
    return name.startswith(("llamafactory", "lmf", "axolotl", "swift", "autotrain"))


def _normalise_method(name: str) -> str | None:
    method = name.lower().replace("-", "_")
    return method if method in METHODS else None


def _find_torchtune_method(recipe: str) -> str | None:
    for word in ("dpo", "ppo", "grpo", "knowledge_distillation", "finetune"):
        if word in recipe:
            return word
    return None


def _load_config(launch: ProgramLaunch, files: AgentSourceFiles) -> tuple[str | None, dict[str, JsonValue]]:
    for word in launch.argv:
        path = re.sub(r"^--?[\w-]+=", "", word)
        if path.endswith(CONFIGS) and (source := files.find_file(path)):
            config = source_files.parse_config(source)
            if isinstance(config, dict):
                return source.path, _flatten_config(config)
    return None, {}


def _flatten_config(config: dict[str, JsonValue], prefix: str = "") -> dict[str, JsonValue]:
    flat: dict[str, JsonValue] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= _flatten_config(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _find_first(every: Mapping[str, JsonValue], names: tuple[str, ...]) -> str | None:
    for name in names:
        for key, value in every.items():
            if (key == name or key.endswith(f".{name}")) and isinstance(value, str) and value:
                return value
    return None
