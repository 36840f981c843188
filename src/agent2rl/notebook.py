"""Runs in a notebook: load them, look at them as a table, compare them.

    import agent2rl

    runs = agent2rl.load_runs("runs")
    runs.to_frame()
    agent2rl.compare(runs.filter(agent="script"), runs.filter(agent="nop"))

Everything is read from run directories and bundles, as by the commands.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, overload

from pydantic import JsonValue

from agent2rl.analysis import statistics
from agent2rl.analysis.campaigns.comparisons import GroupDifference, compare_groups
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.analysis.findings import Findings
from agent2rl.bundles.unpacking import is_bundle, open_bundle
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.grading_records import EvalResult, ExampleResult, HeldoutComparison, Split
from agent2rl.core.records import Record, RunResult, RunSpec
from agent2rl.record.crash_recovery import read_resume_state
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, read_results, read_run
from agent2rl.report import run_report
from agent2rl.report.digests import read_digest
from agent2rl.report.export import build_wide_row, runs_below

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LoadedRun:
    """A run in any state. What is costly is read when it is first asked for."""

    view: RunView
    """The content of the run directory."""

    @property
    def paths(self) -> RunPaths:
        return self.view.paths

    @property
    def id(self) -> str:
        return self.paths.run_id

    @property
    def spec(self) -> RunSpec:
        return self.view.spec

    @property
    def result(self) -> RunResult | None:
        """None if the run is going or was interrupted."""
        return self.view.result

    @cached_property
    def digest(self) -> RunDigest:
        """What statistics over many runs use, such as `gain`."""
        return read_digest(self.paths)

    @cached_property
    def findings(self) -> Findings:
        """The findings of the report. They are analysed now, which takes seconds."""
        return run_report.gather_report_data(self.paths).findings

    def examples(self, submission: int = 0, split: Split = "feedback") -> list[ExampleResult]:
        """Return the model's answers of a submission; 0 is the base model."""
        where = self.paths.submission_paths(submission) if submission else self.paths.baseline
        try:
            return read_results(where.results_file(split))
        except FileNotFoundError:
            raise UserError(f"Submission {submission} of {self.id} has no {split} results.") from None

    def row(self) -> dict[str, JsonValue]:
        """Return the run's row of `to_frame`."""
        digest = self.digest
        row: dict[str, JsonValue] = {**build_wide_row(self.view)}
        return {**row, "gain": digest.gain, "excluded": digest.excluded, "route": digest.route}

    def __repr__(self) -> str:
        return f"LoadedRun({self.id!r})"


@dataclass(frozen=True)
class RunCollection(Sequence[LoadedRun]):
    """Runs, oldest first. Runs of bundles exist until the collection is closed or no longer used."""

    runs: tuple[LoadedRun, ...]
    unreadable: tuple[str, ...] = ()
    """Runs that could not be read, and why."""
    _unpacked: ExitStack = field(default_factory=ExitStack, repr=False)
    """Keeps the folders of bundles; shared with what is filtered from this."""

    @overload
    def __getitem__(self, index: int) -> LoadedRun: ...
    @overload
    def __getitem__(self, index: slice) -> "RunCollection": ...
    def __getitem__(self, index: int | slice) -> "LoadedRun | RunCollection":
        if isinstance(index, int):
            return self.runs[index]
        return RunCollection(self.runs[index], _unpacked=self._unpacked)

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[LoadedRun]:
        return iter(self.runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the unpacked bundles."""
        self._unpacked.close()

    def filter(self, **fields: JsonValue) -> "RunCollection":
        """Return the runs with these values in their specification, such as task="gsm8k-mini", seed=1."""
        if unknown := [name for name in fields if name not in RunSpec.model_fields]:
            raise UserError(
                f"A run has no field {unknown[0]!r}.", f"One of: {', '.join(RunSpec.model_fields)}."
            )
        chosen = (run for run in self.runs if all(getattr(run.spec, name) == fields[name] for name in fields))
        return RunCollection(tuple(chosen), _unpacked=self._unpacked)

    @property
    def digests(self) -> tuple[RunDigest, ...]:
        return tuple(run.digest for run in self.runs)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each run, in the columns of `agent2rl export` and a few more.

        `gain` is what statistics use: None for runs that say nothing about their agent, with the reason in
        `excluded`.
        """
        try:
            import pandas
        except ImportError as error:
            raise MachineError(
                "Data frames need pandas, which is not installed.",
                "Install it: pip install 'agent2rl[notebook]'.",
            ) from error
        return pandas.DataFrame([run.row() for run in self.runs])


class RunDifference(Record):
    """What the first run's best submission scores above the second's, on the same examples."""

    first: str
    second: str
    split: Split
    """The split that ranks."""
    n: int
    difference: HeldoutComparison


def load_runs(*sources: str | Path) -> RunCollection:
    """Load runs from runs directories, run directories and bundles; from ./runs if there are none.

    A run that cannot be read is listed in `unreadable`.
    """
    with ExitStack() as stack:
        places = [place for source in sources or ("runs",) for place in _list_places(Path(source), stack)]
        runs, unreadable = [], []
        for paths in places:
            try:
                runs.append(LoadedRun(read_run(paths)))
            except (UserError, OSError, ValueError) as error:
                unreadable.append(f"{paths.run_id}: {error}")
        runs.sort(key=lambda run: run.id)
        return RunCollection(tuple(runs), tuple(unreadable), stack.pop_all())


def _list_places(source: Path, stack: ExitStack) -> Iterable[RunPaths]:
    if is_bundle(str(source)):
        return [stack.enter_context(open_bundle(source)).paths]
    if (source / "spec.json").is_file():
        return [RunPaths(source.resolve())]
    if not source.is_dir():
        raise UserError(f"There is no directory {source}, nor is it a bundle.", "Name the runs directory.")
    return runs_below(source.resolve())


@overload
def compare(first: LoadedRun, second: LoadedRun) -> RunDifference: ...
@overload
def compare(first: RunCollection, second: RunCollection) -> GroupDifference: ...
def compare(
    first: LoadedRun | RunCollection, second: LoadedRun | RunCollection
) -> RunDifference | GroupDifference:
    """Compare two runs by the answers of their best submissions, or two groups by their gains.

    The difference is the first minus the second, with an interval. Runs of one task and seed are paired, and
    so are the examples of two runs.
    """
    if isinstance(first, LoadedRun) and isinstance(second, LoadedRun):
        return _compare_two_runs(first, second)
    if isinstance(first, RunCollection) and isinstance(second, RunCollection):
        try:
            return compare_groups(first.digests, second.digests)
        except ValueError as error:
            raise UserError(f"These groups cannot be compared: {error}.") from error
    raise UserError("A run and a group cannot be compared.", "Compare two runs, or two collections of runs.")


def _compare_two_runs(first: LoadedRun, second: LoadedRun) -> RunDifference:
    if first.digest.task_setting != second.digest.task_setting or first.spec.protocol != second.spec.protocol:
        raise UserError("These runs have different tasks or protocols, so their scores cannot be compared.")
    split: Split = "feedback" if first.spec.protocol == "paper" else "heldout"
    one, other = _read_best_results(first, split), _read_best_results(second, split)
    try:
        difference = statistics.compare_evaluations(other, one)
    except ValueError as error:
        raise UserError(f"These runs cannot be compared: {error}.") from error
    return RunDifference(
        first=first.id, second=second.id, split=split, n=len(one.results), difference=difference
    )


def _read_best_results(run: LoadedRun, split: Split) -> EvalResult:
    """Read the results of the best submission, or of the base model if no submission is better."""
    best = run.result.best if run.result and not run.digest.left_base else None
    where = run.paths.submission_paths(best.same_as or best.id) if best else run.paths.baseline
    state = read_resume_state(run.paths, run.view.chain.entries, None)
    results = state.read_recorded_results(run.paths, where, split)
    if results is None:
        what = f"submission {best.id}" if best else "the base model, which is its result,"
        raise UserError(f"{run.id} has no {split} results of {what}.")
    return results
