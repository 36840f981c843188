"""Hyperparameters, where a program says them: in calls, on its command line, by well-known names."""

import re
from collections.abc import Mapping

from pydantic import JsonValue

from agent2rl.analysis.programs.abstract_values import HOLE, AbstractValue, ClassValue, CodeLocation
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall

NAMES = {
    "learning_rate": ("learning_rate", "lr", "peak_lr", "step_size", "actor_learning_rate", "actor_lr"),
    "epochs": ("epochs", "num_train_epochs", "num_epochs", "n_epochs", "max_epochs", "num_ppo_epochs"),
    "steps": ("steps", "max_steps", "num_steps", "n_steps", "iterations", "total_steps"),
    "batch_size": ("batch_size", "per_device_train_batch_size", "bs", "train_batch_size", "micro_batch_size",
                   "per_device_batch_size"),
    "gradient_accumulation": ("gradient_accumulation_steps", "grad_accum", "accumulate_grad_batches",
                              "grad_accum_steps", "accum_steps"),
    "group_size": ("num_generations", "group_size", "group", "n_samples", "num_samples", "samples_per_prompt",
                   "k_samples", "rloo_k", "num_return_sequences", "n_rollouts", "rollouts_per_prompt"),
    "beta": ("beta", "kl_coef", "kl", "kl_beta", "init_kl_coef", "kl_coeff", "kl_weight"),
    "clip": ("clip_range", "cliprange", "epsilon", "clip_eps", "clip_epsilon", "eps_clip"),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "max_tokens": ("max_new_tokens", "max_completion_length", "max_tokens", "response_length", "max_gen_len"),
    "max_length": ("max_length", "max_seq_length", "max_seq_len", "cutoff_len", "sequence_len", "max_len"),
    "weight_decay": ("weight_decay", "wd"),
    "warmup": ("warmup_ratio", "warmup_steps", "num_warmup_steps", "warmup"),
    "schedule": ("lr_scheduler_type", "lr_scheduler", "scheduler"),
    "lora_rank": ("lora_r", "lora_rank"),
    "lora_alpha": ("lora_alpha",),
    "lora_dropout": ("lora_dropout",),
    "gradient_clip": ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clip_val"),
    "seed": ("seed",),
    "optimizer": ("optim", "optimizer_name"),
    "data": ("data_path", "train_file", "train_path", "data_files", "dataset_name", "dataset"),
    "model": ("model_name_or_path", "model_path", "model_name", "base_model", "pretrain"),
    "loss_type": ("loss_type",),
    "gamma": ("gamma", "discount"),
    "lambda": ("lam", "gae_lambda"),
}  # fmt: skip
CANONICAL = {name: canonical for canonical, names in NAMES.items() for name in names}
OPTIMIZERS = re.compile(
    r"(?:^|\.)(?:Fused|Paged)?(Adam\w*|SGD|Adafactor|Lion\w*|RMSprop|Adagrad|Muon|adamw?|sgd|adafactor|lion)$"
)
SAYING = re.compile(
    r"Config$|Arguments$|Settings$|Params$|Trainer$|\.generate$|DataLoader$|get_peft_model$|\.fit$|\.reinforce$"
    r"|\.train$|SamplingParams|get_\w*schedule|clip_grad_norm"
)
CALL, OPTION, NAME = 3, 2, 1
"""Which counts more where they differ."""


def canonical_setting(name: str, call: str = "") -> str | None:
    if name == "r" and "lora" in call.lower():
        return "lora_rank"
    if name == "n" and ("sampling" in call.lower() or "rollout" in call.lower()):
        return "group_size"
    return CANONICAL.get(name)


def note_call(machine: AbstractInterpreter, call: LibraryCall) -> None:
    """What a call of a library says."""
    optimizer = OPTIMIZERS.search(call.name) if call.receiver is None else None
    if not optimizer and not SAYING.search(call.name):
        return
    said: dict[str, AbstractValue] = dict(call.keywords)
    if optimizer:
        machine.trace.note_setting("optimizer", optimizer[1], call.place, CALL)
        if rate := call.get_argument("lr", 1):
            said.setdefault("lr", rate)
    lines = {word.arg: word.value.lineno for word in call.node.keywords} if call.node else {}
    for name, value in said.items():
        known = canonical_setting(name, call.name)
        if known and (plain := _plain_value(value)) is not None:
            place = CodeLocation(call.place.path, lines.get(name, call.place.line))
            machine.trace.note_setting(known, plain, place, CALL)


def note_option(
    machine: AbstractInterpreter, name: str, value: AbstractValue, place: CodeLocation | None, said: bool
) -> None:
    known, plain = canonical_setting(name), _plain_value(value)
    if known and plain is not None:
        machine.trace.note_setting(known, plain, place, CALL + 1 if said else OPTION, said)


def note_name(machine: AbstractInterpreter, name: str, value: AbstractValue) -> None:
    """A name of the program's own that everybody understands."""
    known, plain = canonical_setting(name.lower()), _plain_value(value)
    if known and plain is not None and not value.marks and known not in ("data", "model", "steps"):
        machine.trace.note_setting(known, plain, machine.place, NAME)


def note_config_class(
    machine: AbstractInterpreter, of: ClassValue, attributes: Mapping[str, AbstractValue], place: CodeLocation
) -> None:
    """The agent's own configuration class."""
    for field in of.list_fields():
        value = attributes.get(field)
        if (
            value is not None
            and (known := canonical_setting(field))
            and (plain := _plain_value(value)) is not None
        ):
            machine.trace.note_setting(known, plain, place, OPTION)


def _plain_value(value: AbstractValue) -> JsonValue:
    if isinstance(value.constant, str):
        return value.constant[:200] if value.constant and HOLE not in value.constant else None
    found = value.constant
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e15:
        return None
    return found
