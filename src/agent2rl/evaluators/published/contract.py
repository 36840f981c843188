"""The import names of the published evaluators, without their package.

`install_contract` adds them to this process's modules. Only sandboxed children call it:

    rdagent.log.rdagent_logger
    rdagent.scenarios.rl.autorl_bench.core[.evaluator].BaseEvaluator, EvalResult
    rdagent.scenarios.rl.autorl_bench.benchmarks.BenchmarkConfig, get_benchmark
    rdagent.scenarios.rl.autorl_bench.benchmarks.NAME    the folder itself, with its modules
    loguru.logger                                        if loguru is not installed

Other names of that package do not exist here: an import of one raises ModuleNotFoundError or ImportError.
"""

import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

BENCH = "rdagent.scenarios.rl.autorl_bench"
BENCHMARKS = f"{BENCH}.benchmarks"

EvalResult = dict[str, Any]
"""What `run_eval` returns: benchmark, model_path, score (0 to 100), accuracy_summary; optional: eval_type,
error, raw_output."""


class BaseEvaluator(ABC):
    """The published base class of evaluators."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def run_eval(
        self,
        model_path: str,
        workspace_path: str,
        model_name: str = "",
        gpu_count: int = 1,
        test_range: str = "[:]",
        **kwargs: Any,
    ) -> EvalResult: ...

    def validate_model(self, model_path: str) -> bool:
        return Path(model_path).exists()

    def get_default_result(self, benchmark_name: str, model_path: str) -> EvalResult:
        return {
            "benchmark": benchmark_name,
            "model_path": model_path,
            "score": 0.0,
            "accuracy_summary": {},
        }


@dataclass
class BenchmarkConfig:
    """The published configuration of a benchmark, which its evaluator gets."""

    id: str
    evaluator_class: str = ""
    data_module: str = ""
    description: str = ""
    eval_config: dict[str, Any] | None = None
    expose_files: list[str] = field(default_factory=list)
    bench_dir: str | None = None


class PrintingLogger:
    """Prints messages to stderr, which is the grading log. It has the methods of loguru's logger."""

    def info(self, message: object, *values: object, **named: object) -> None:
        text = str(message)
        try:
            text = text.format(*values, **named) if values or named else text
        except (IndexError, KeyError, ValueError):
            text = " ".join(map(str, (text, *values)))
        print(text, file=sys.stderr, flush=True)

    trace = debug = success = warning = error = critical = exception = info


def install_contract(config: BenchmarkConfig, folder: Path) -> None:
    """Add the contract's modules to this process. `folder` is the benchmark's, named as it is imported."""

    def get_benchmark(benchmark_id: str) -> BenchmarkConfig:
        if benchmark_id != config.id:
            raise ValueError(f"Unknown benchmark: {benchmark_id}. Available: {[config.id]}")
        return config

    logger = PrintingLogger()
    evaluator = {"BaseEvaluator": BaseEvaluator, "EvalResult": EvalResult}
    contents: dict[str, Mapping[str, object]] = {
        "rdagent": {},
        "rdagent.log": {"rdagent_logger": logger, "logger": logger},
        "rdagent.scenarios": {},
        "rdagent.scenarios.rl": {},
        BENCH: {},
        f"{BENCH}.core": evaluator,
        f"{BENCH}.core.evaluator": evaluator,
        BENCHMARKS: {
            "BenchmarkConfig": BenchmarkConfig,
            "BENCHMARKS": {config.id: config},
            "BENCHMARKS_DIR": folder.parent,
            "get_benchmark": get_benchmark,
        },
    }
    for name, values in contents.items():
        _install_module(name, values, [str(folder.parent)] if name == BENCHMARKS else [])
    if importlib.util.find_spec("loguru") is None:
        _install_module("loguru", {"logger": logger}, [])


def _install_module(name: str, values: Mapping[str, object], path: list[str]) -> None:
    module = ModuleType(name)
    module.__dict__.update(values)
    module.__path__ = path  # makes it a package; an empty path has no further modules
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
