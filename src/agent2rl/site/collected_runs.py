"""Read the runs of others for a site, in worker processes with limits of time and memory for each run."""

import json
import logging
import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.analysis.campaigns.training_sample import thin_trainings
from agent2rl.analysis.findings import TrainingCurves
from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError
from agent2rl.record.paths import RunPaths
from agent2rl.record.untrusted_files import find_fault
from agent2rl.report import formatting, headline, run_figures, run_report, sections, tables
from agent2rl.report.report_data import ReportData
from agent2rl.report.worker_limits import MOST_SECONDS, prepare_worker, run_with_timeout
from agent2rl.site.listing import RunChecks, RunListing, list_run, publish_digest

# Read one run for a site: its digest, its listing, and the parts of its page. Runs in a worker process.
#
# Nothing is taken from the run's `report/`, which no hash covers: everything is computed from the record
# again.


FIGURES = ("scores", "training", "rollouts", "timeline")
MOST_ASSETS = 50


class PageTile(Record):
    label: str
    value: str
    note: str
    tone: str


class PageCheck(Record):
    name: str
    tone: str
    verdict: str
    text: str


class PublishedRun(Record):
    """Everything that the site shows of a run. All texts are untrusted."""

    digest: RunDigest
    listing: RunListing
    title: str
    sentence: str
    tiles: tuple[PageTile, ...]
    integrity: tuple[PageCheck, ...]
    submissions: tuple[tuple[str, ...], ...]
    assets: tuple[tuple[str, str, str], ...]
    """Name, source and hash of each input."""
    figures: dict[str, str]
    """SVG by name; those for narrow screens end in `.narrow`."""
    trainings: tuple[TrainingCurves, ...] = ()
    """As far as a figure of several runs shows them."""


RunChecker = Callable[[RunPaths], RunChecks]


def read_published_run(check: RunChecker, root: str, source: str) -> str:
    """Return the JSON of a `PublishedRun`; `source` names where the run came from."""
    paths = RunPaths(Path(root))
    if fault := find_fault(paths):
        raise UserError(f"It {fault}.")
    checks = check(paths)
    data = run_report.gather_report_data(paths)
    if data.view.state == "running":
        raise UserError("It is still running.")
    if data.view.result and data.view.result.run_id != paths.run_id:
        raise UserError("Its directory does not have the name of the run in its record.")
    if data.digest is None:
        raise UserError("It has no digest.")
    digest = publish_digest(data.digest, source)
    _require_finite(digest)
    return PublishedRun(
        digest=digest,
        listing=list_run(data.view, digest, checks),
        title=headline.build_title(data),
        sentence=headline.build_sentence(data),
        tiles=tuple(PageTile(**vars(each)) for each in headline.build_tiles(data)),
        integrity=tuple(
            PageCheck(name=each.name, tone=each.tone, verdict=each.verdict, text=each.text)
            for each in sections.run_integrity_checks(data)
        ),
        submissions=tuple(tables.build_submission_rows(data.view)),
        assets=_list_assets(data),
        figures={
            name: svg
            for name, svg in run_figures.render_all_svgs(data).items()
            if name.partition(".")[0] in FIGURES
        },
        trainings=thin_trainings(data.findings.trainings),
    ).model_dump_json()


def _require_finite(digest: RunDigest) -> None:
    """Refuse numbers that are none: they would spoil the statistics of all others."""
    try:
        json.dumps(digest.model_dump(mode="python"), allow_nan=False)
    except ValueError as error:
        raise UserError("It has a number that is not finite.") from error


def _list_assets(data: ReportData) -> tuple[tuple[str, str, str], ...]:
    assets = data.view.result.assets if data.view.result else ()
    return tuple(
        (each.name, formatting.shorten_name(each.source), each.sha256) for each in assets[:MOST_ASSETS]
    )


logger = logging.getLogger(__name__)

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
"""Names of run directories that can be a file name and a URL."""


@dataclass(frozen=True)
class FoundRun:
    paths: RunPaths
    source: str
    """Where it came from. Runs of different sources are never the same agent by file name alone."""


@dataclass(frozen=True)
class RefusedRun:
    name: str
    reason: str


@dataclass(frozen=True)
class CollectedRuns:
    runs: tuple[PublishedRun, ...]
    refused: tuple[RefusedRun, ...]
    """Runs that are not on the site, and why."""


def collect_runs(
    runs: Sequence[FoundRun],
    check: RunChecker,
    processes: int | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> CollectedRuns:
    """Read all runs; `tell` is called with the number of runs done."""
    distinct, refused = _refuse_by_name(runs)
    published: list[PublishedRun] = []
    workers = _WorkerPools(partial(read_published_run, check))
    with ThreadPoolExecutor(processes or os.cpu_count() or 1) as threads:
        try:
            for done, outcome in enumerate(threads.map(workers.read_run, distinct), 1):
                if isinstance(outcome, PublishedRun):
                    outcome = _refuse_copy(outcome, published)
                if isinstance(outcome, PublishedRun):
                    published.append(outcome)
                else:
                    refused.append(outcome)
                tell(done)
        finally:
            workers.close()
    return CollectedRuns(tuple(sorted(published, key=lambda run: run.listing.run_id)), tuple(refused))


def _refuse_by_name(runs: Sequence[FoundRun]) -> tuple[list[FoundRun], list[RefusedRun]]:
    kept: dict[str, FoundRun] = {}
    refused = []
    for run in runs:
        name = run.paths.run_id
        if not RUN_NAME.fullmatch(name):
            refused.append(RefusedRun(name, "Its name is not a valid run id."))
        elif name in kept:
            refused.append(
                RefusedRun(name, f"Another run has the same name: it came from {kept[name].source}.")
            )
        else:
            kept[name] = run
    return list(kept.values()), refused


def _refuse_copy(run: PublishedRun, published: Sequence[PublishedRun]) -> PublishedRun | RefusedRun:
    """Refuse a run whose record is that of another: it would count twice."""
    head = run.listing.checks.head
    same = next((each for each in published if head and each.listing.checks.head == head), None)
    if same is None:
        return run
    return RefusedRun(
        run.listing.run_id, f"It is a copy of {same.listing.run_id}: their records are the same."
    )


@dataclass
class _WorkerPools:
    """One process for each thread, so that a run that kills its process takes no other with it."""

    work: Callable[[str, str], str]
    _own: threading.local = field(default_factory=threading.local)
    _pools: list[ProcessPoolExecutor] = field(default_factory=list)
    _closed: threading.Event = field(default_factory=threading.Event)

    def read_run(self, run: FoundRun) -> PublishedRun | RefusedRun:
        if self._closed.is_set():
            return RefusedRun(run.paths.run_id, "Not read: the site was interrupted.")
        try:
            future = self._get_pool().submit(
                run_with_timeout, MOST_SECONDS, self.work, str(run.paths.root), run.source
            )
            return PublishedRun.model_validate_json(future.result())
        except ValidationError:
            return RefusedRun(run.paths.run_id, "Its values are impossible for a run.")
        except BrokenProcessPool:
            self._own.pool = None
            return RefusedRun(run.paths.run_id, "Reading it took too much memory or crashed the process.")
        except Exception as error:  # whatever reading a hostile run may raise
            logger.debug("cannot read run %s", run.paths.run_id, exc_info=True)
            reason = str(error).replace(f"{run.paths.root.parent}{os.sep}", "")  # the path is not published
            return RefusedRun(run.paths.run_id, reason or type(error).__name__)

    def close(self) -> None:
        self._closed.set()
        for pool in self._pools:
            # Waits: a process that exits beside it may close the queue before the worker hears of the end.
            pool.shutdown(wait=True, cancel_futures=True)

    def _get_pool(self) -> ProcessPoolExecutor:
        pool: ProcessPoolExecutor | None = getattr(self._own, "pool", None)
        if pool is None:
            context = multiprocessing.get_context("spawn")  # forking is unsafe with threads
            pool = self._own.pool = ProcessPoolExecutor(1, context, prepare_worker)
            self._pools.append(pool)
        return pool
