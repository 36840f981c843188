"""Find what the runs of a campaign need and this machine does not have: cores, GPUs, models, data and keys.

A plan lists these as warnings, because a campaign may be planned on one machine and run on another.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from agent2rl import registry
from agent2rl.campaign.campaign_file import Experiment, RunResources
from agent2rl.campaign.executors import ExecutorOptions, list_shortages
from agent2rl.core.errors import Agent2RLError
from agent2rl.core.records import RunSpec
from agent2rl.environments.search.search_engines import ENGINES
from agent2rl.evaluators.task_data import probe_data
from agent2rl.gateway.drivers import parse_driver
from agent2rl.gateway.prices import Prices
from agent2rl.run.assets import is_model_here
from agent2rl.run.settings import Settings, read_secrets

EMBEDDED = "-mini"
"""Suffix of tasks whose data ships with the package."""
LOCAL_JUDGES = ("model:", "openai-api:")


def count_slots_or_warn(
    options: ExecutorOptions, resources: RunResources, gpus: Sequence[str]
) -> tuple[int | None, tuple[str, ...]]:
    """Return the number of parallel runs, and warnings instead of an error if not even one fits here."""
    shortages = list_shortages(resources, gpus) if options.executor == "local" else []
    if shortages:
        return options.parallel, tuple(shortages)
    return options.count_slots(resources, gpus), ()


def find_missing(experiments: Sequence[Experiment], settings: Settings, prices: Prices) -> tuple[str, ...]:
    """Return a sentence for each thing that is missing here, with the number of runs that need it."""
    checks = _RequirementChecks(settings, prices)
    found = [dict.fromkeys(checks.list_missing(experiment.spec)) for experiment in experiments]
    counts = Counter(each for missing in found for each in missing)
    return tuple(
        f"{what} Needed by {count} {'run' if count == 1 else 'runs'}." for what, count in counts.items()
    )


class _RequirementChecks:
    """Checks each model, task, driver, judge and search backend once."""

    def __init__(self, settings: Settings, prices: Prices) -> None:
        self._settings, self._prices = settings, prices
        self._found: dict[tuple[str, ...], tuple[str, ...]] = {}

    def list_missing(self, spec: RunSpec) -> Iterator[str]:
        yield from self._check_once(("model", spec.model), partial(self._check_model, spec.model))
        yield from self._check_once(("data", spec.task, spec.data_dir or ""), partial(_check_data, spec))
        if spec.driver:
            capped = spec.budget.usd is not None
            yield from self._check_once(("driver", spec.driver), partial(_check_key, spec.driver))
            yield from self._check_once(
                ("price", spec.driver, str(capped)), partial(self._check_price, spec.driver, capped)
            )
        for judge in (spec.judge, spec.train_judge):
            if judge:
                yield from self._check_once(("judge", judge), partial(_check_key, judge))
        if spec.search:
            yield from self._check_once(("search", spec.search), partial(_check_search, spec.search))

    def _check_once(self, key: tuple[str, ...], check: Callable[[], Iterator[str]]) -> tuple[str, ...]:
        if key not in self._found:
            self._found[key] = tuple(check())
        return self._found[key]

    def _check_model(self, name: str) -> Iterator[str]:
        if not is_model_here(name, self._settings.cache):
            yield f"The model {name} is not on this machine: the first run downloads it."

    def _check_price(self, name: str, capped: bool) -> Iterator[str]:
        if self._prices.find_price(parse_driver(name).model) is None:
            effect = "a limit in dollars cannot be enforced" if capped else "its cost is unknown"
            yield f"The driver {name} has no known price: {effect}. Set it in a file (AGENT2RL_PRICES)."


def _check_data(spec: RunSpec) -> Iterator[str]:
    if spec.data_dir:
        if not Path(spec.data_dir).is_dir():
            yield f"There is no data directory {spec.data_dir}."
        return
    if spec.task.endswith(EMBEDDED) or spec.task not in registry.list_names("tasks"):
        return
    try:
        here = probe_data(registry.find_task(spec.task).load)
    except Agent2RLError as error:
        yield f"The data of {spec.task} is not on this machine: {error.message}"
        return
    if not here:
        yield f"The data of {spec.task} is not on this machine: the first run downloads it."


def _check_key(name: str) -> Iterator[str]:
    if name.startswith(LOCAL_JUDGES):
        return
    driver = parse_driver(name)
    if driver.needs_key and not read_secrets(driver.key_names):
        yield f"{' or '.join(driver.key_names)} is not set."


def _check_search(name: str) -> Iterator[str]:
    engine = ENGINES.get(name)
    if engine and engine.key and not read_secrets((engine.key,)):
        yield f"{engine.key} is not set."
