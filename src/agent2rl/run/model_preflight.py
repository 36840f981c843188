"""Check whether this machine can run with a base model, by its headers alone: before anything slow.

permissions   the sandbox must be able to read every file
disk          a submission is copied, so at least one copy must fit beside the agent's own files,
              and all that --keep keeps should
gpu memory    the weights must fit in what is free of the GPU that a grading takes by default: each
              grading uses one GPU, whatever the engine
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import MachineError, Refusal, UserError
from agent2rl.core.records import KeptWeights
from agent2rl.grading.file_hashes import can_share_blocks
from agent2rl.grading.service import MOST_SUBMISSIONS
from agent2rl.grading.submission_freezer import SPARE_BYTES
from agent2rl.grading.untrusted_model_files import DTYPE_BYTES, read_tensors
from agent2rl.run import machine
from agent2rl.run.assets import (
    choose_default_engine,
    is_model_here,
    pin_model_name,
    prepare_model_directory,
)
from agent2rl.run.preflight import PreflightFinding
from agent2rl.run.settings import Settings

GRADED_COPIES = 2
"""Copies of the model that the disk should have room for: the best submission, and the next one."""
BFLOAT16_BYTES = 2
"""Engines run on GPUs in bfloat16, whatever precision the files have."""


@dataclass(frozen=True)
class CopyPlan:
    """How many copies of submissions a run may have on the disk at once."""

    keep: KeptWeights = "best"
    max_submissions: int | None = None

    @property
    def most(self) -> int:
        if self.keep == "all":
            return min(self.max_submissions or MOST_SUBMISSIONS, MOST_SUBMISSIONS)
        return GRADED_COPIES


def check_base_model(name: str, settings: Settings, sandbox: str) -> Iterator[PreflightFinding]:
    """Check the base model of a name; one that is not downloaded yet is not checked."""
    if not is_model_here(name, settings.cache):
        yield PreflightFinding("model", "missing", f"{name} is not downloaded", "A run downloads it.")
        return
    gpus = machine.list_visible_gpus(settings.gpus)
    directory = prepare_model_directory(pin_model_name(name), settings.cache)
    yield from check_model(directory, settings.runs, sandbox, choose_default_engine(name, gpus), gpus)


def check_model(
    directory: Path,
    runs: Path,
    sandbox: str,
    engine: str,
    gpus: Sequence[str],
    copies: CopyPlan | None = None,
) -> Iterator[PreflightFinding]:
    """Yield findings about a base model that is in a directory; nothing of its weights is read.

    `gpus` are those that grade. Gradings take the first one unless an agent names another.
    """
    unreadable = _find_unreadable(directory, by_others=sandbox != "local" and os.geteuid() == 0)
    if unreadable:
        who = "only root can" if os.geteuid() == 0 else "this user cannot"
        detail = f"the sandbox must read {unreadable}, but {who} read it"
        hint = f"Run `chmod -R o+rX {directory}`; its parent directories may stay closed."
        yield PreflightFinding("model", "broken", detail, hint)
        return
    try:
        tensors = read_tensors(directory).values()
    except (Refusal, OSError) as error:
        hint = "Name a directory with config.json and safetensors weights."
        yield PreflightFinding("model", "broken", f"the base model {directory} cannot be used: {error}", hint)
        return
    parameters = sum(tensor.parameters for tensor in tensors)
    size = sum(tensor.parameters * DTYPE_BYTES[tensor.dtype] for tensor in tensors)
    detail = f"{parameters / 1e9:.2f} billion parameters, {format_gigabytes(size)}, readable"
    yield PreflightFinding("model", "ok", detail)
    yield _check_disk(size, runs, copies or CopyPlan())
    if engine.partition(":")[0] in ("transformers", "vllm") and (memory := machine.read_gpu_memory(gpus)):
        yield from _check_gpu_memory(BFLOAT16_BYTES * parameters, gpus[0], memory)


def require_model_fits(findings: Iterator[PreflightFinding], warn: Callable[[str], None]) -> None:
    """Raise if the machine cannot run with the model, and warn of what may become short."""
    for finding in findings:
        text = f"{finding.detail[0].upper()}{finding.detail[1:].rstrip('.')}."
        if finding.state == "broken":
            raise (UserError if finding.name == "model" else MachineError)(text, finding.hint)
        if finding.state == "missing":
            warn(f"{text} {finding.hint}")


def format_gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _find_unreadable(directory: Path, by_others: bool) -> Path | None:
    """Return the first path that cannot be read by this user or, if root's sandbox is another user, by it."""
    for path in (directory, *sorted(directory.rglob("*"))):
        if not path.exists():
            continue
        needed = 0o005 if path.is_dir() else 0o004
        if not os.access(path, os.R_OK) or (by_others and path.stat().st_mode & needed != needed):
            return path
    return None


def _check_disk(size: int, runs: Path, copies: CopyPlan) -> PreflightFinding:
    free, copy = machine.read_free_disk_bytes(runs), size + SPARE_BYTES
    detail = (
        f"{format_gigabytes(free)} free for runs; the copy of a submission takes {format_gigabytes(copy)}"
    )
    if can_share_blocks(runs):
        return PreflightFinding("disk", "ok", f"{format_gigabytes(free)} free for runs; copies share blocks")
    if free < copy:
        hint = "Free some space, or keep runs elsewhere with --runs-dir."
        return PreflightFinding("disk", "broken", detail, hint)
    needed = copies.most * size + SPARE_BYTES
    if free < needed:
        return PreflightFinding("disk", "missing", detail, _explain_short_disk(copies, needed, free, size))
    return PreflightFinding("disk", "ok", detail)


def _explain_short_disk(copies: CopyPlan, needed: int, free: int, size: int) -> str:
    if copies.keep == "all":
        fitting = (free - SPARE_BYTES) // size
        return (
            f"--keep all keeps up to {copies.most} submissions, and {fitting} fit, beside the agent's files."
        )
    return f"The best submission and the next one take {format_gigabytes(needed)}, beside the agent's files."


def _check_gpu_memory(
    needed: int, default: str, memory: Mapping[str, machine.GpuMemory]
) -> Iterator[PreflightFinding]:
    """Require room on the GPU that gradings take by default, and warn for the others."""
    for name, gpu in memory.items():
        shown = f"GPU {name}: {format_gigabytes(gpu.free)} of {format_gigabytes(gpu.total)} free"
        detail = f"{shown}; the weights alone take {format_gigabytes(needed)}"
        if gpu.free > needed:
            yield PreflightFinding("gpu memory", "ok", detail)
        elif name == default:
            yield PreflightFinding("gpu memory", "broken", detail, _explain_full_gpu(needed, gpu))
        else:
            hint = "Gradings take it only if an agent names it, and they would fail there."
            yield PreflightFinding("gpu memory", "missing", detail, hint)


def _explain_full_gpu(needed: int, gpu: machine.GpuMemory) -> str:
    if gpu.total <= needed:
        return "A grading uses one GPU: take a smaller model, or name a larger GPU first."
    return (
        "A grading uses one GPU: stop what fills this one (see nvidia-smi), or list another one first in "
        "CUDA_VISIBLE_DEVICES or --grading-gpus."
    )
