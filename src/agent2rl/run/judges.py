"""Opens judge models by name (a driver, an engine or a local model), measures them against published
preferences, and uses one to summarise a run.

    claude-opus-4-6   gpt-5.4   gemini-2.5-flash   MODEL@URL    asked through a gateway, and metered
    openai-api:MODEL@URL                                        the same, with the key of that engine
    model:smollm2-135m                                          a model that runs on this computer

All that is elsewhere is asked as OpenAI's Chat Completions, which every provider offers. A judge goes by one
name however it is spelt, which is another where it is another model: judgements are kept.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agent2rl import registry
from agent2rl.core.engine import ChatMessage, Engine, RemoteEngine, Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import Calibration
from agent2rl.core.llm import LlmUsage, Wire
from agent2rl.evaluators.judge import JudgeReferee, calibrate, select_preferences
from agent2rl.gateway.drivers import Driver, parse_driver
from agent2rl.gateway.gateway import Gateway
from agent2rl.gateway.keys import Key
from agent2rl.gateway.meter import UsageCaps
from agent2rl.gateway.prices import load_prices
from agent2rl.grading.freeze import compute_manifest
from agent2rl.grading.grading_proxy import JudgeProxy, ProxyServices, serve_grading_proxy
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.grading_proxy_client import GradingProxyClient
from agent2rl.run.assets import choose_default_engine, pin_model_name, prepare_model_directory
from agent2rl.run.settings import Settings, read_secrets

HERE, ENGINE = "model", "openai-api"
WIRE: Wire = "openai-chat"
KEYS = ("AGENT2RL_API_KEY", "OPENAI_API_KEY")
"""Of that engine."""
JUDGES = (
    "Write claude-…, gpt-… or gemini-…, MODEL@URL for a compatible endpoint, "
    f"or {HERE}:NAME for a model that runs here, such as {HERE}:smollm2-135m."
)


@contextmanager
def open_judge(name: str, settings: Settings) -> Iterator[JudgeProxy]:
    """The judge that a name means, while the context lasts."""
    kept = settings.cache / "judgements"
    if model := _parse_local_model(name):
        directory = prepare_model_directory(model, settings.cache)
        content = compute_manifest(directory).sha256[:12]
        with registry.find_engine(choose_default_engine(model, ()))(directory) as engine:
            yield JudgeProxy(f"{HERE}:{pin_model_name(model)}@{content}", engine, kept, one_by_one=True)
        return
    driver = _parse_judge_driver(name)
    gateway = Gateway(
        driver, _find_api_key(driver), UsageCaps(), load_prices(settings.prices), lambda _: None
    )
    with (
        serve_on_socket(gateway.application) as socket,
        closing(gateway),
        registry.find_engine(f"{ENGINE}:{driver.model}@unix:{socket}")(Path()) as engine,
    ):
        yield JudgeProxy(f"{driver.model}@{driver.urls[WIRE]}", engine, kept, usage=gateway.usage)


def validate_judge_name(name: str) -> None:
    """Refuse a name that no judge can have."""
    if not _parse_local_model(name) and not name.startswith(f"{ENGINE}:"):
        driver = parse_driver(name)
        driver.choose_wire((WIRE,))
        if driver.needs_key and _find_api_key(driver) is None:
            raise UserError(
                f"{driver.model} needs a key of {driver.provider}.", f"Set {' or '.join(driver.key_names)}."
            )


def require_different_judges(judge: str, train_judge: str, settings: Settings) -> None:
    """Agents must not train with the judge that grades, however it is spelt and wherever it is served."""
    if _identify_judge(judge, settings) == _identify_judge(train_judge, settings):
        raise UserError(
            "The judge that grades cannot be trained with, and both are the same model.",
            "Name another for --train-judge; what has the same name at another address counts as the same.",
        )


def _parse_local_model(name: str) -> str | None:
    """The model of a judge that runs on this computer."""
    head, _, model = name.partition(":")
    return model if head == HERE and model else None


def _identify_judge(name: str, settings: Settings) -> str:
    """By its content where it runs here, else by what it is called where it runs."""
    if model := _parse_local_model(name):
        return compute_manifest(prepare_model_directory(model, settings.cache)).sha256
    return _parse_judge_driver(name).model.lower()


def _parse_judge_driver(name: str) -> Driver:
    if not name.startswith(f"{ENGINE}:"):
        return parse_driver(name)
    with registry.find_engine(name)(Path()) as engine:  # which knows the only model of an endpoint
        assert isinstance(engine, RemoteEngine)
        return replace(
            parse_driver(f"judge@{engine.url}"), model=engine.model, urls={WIRE: engine.url}, key_names=KEYS
        )


def _find_api_key(driver: Driver) -> Key | None:
    found = read_secrets(driver.key_names)
    return next((Key(found[name]) for name in driver.key_names if name in found), None)


# Measures a judge by the preferences that a task's benchmark has published.


def measure_judge(task: str, judge: str, data_dir: Path | None, most: int, settings: Settings) -> Calibration:
    """On `most` comparisons at most; what the judge has said before is not asked again."""
    published = registry.find_task(task).published
    if published is None:
        raise UserError(f"The task {task!r} has no published preferences.", "Try --task alpacaeval.")
    known = select_preferences(published.preferences(data_dir), most)
    with (
        open_judge(judge, settings) as judging,
        serve_grading_proxy(ProxyServices(judging=judging)) as socket,
    ):
        assert socket
        return calibrate(JudgeReferee(GradingProxyClient(socket)), known)


# A language model that sums a run up: named as judges are, and asked through a gateway that meters it.

MAX_TOKENS = 2000


@dataclass(frozen=True)
class Summariser:
    engine: Engine
    usage: Callable[[], LlmUsage] | None
    """What was asked of it so far, where that is metered."""

    def __call__(self, question: str) -> str:
        chat = (ChatMessage("user", question),)
        return self.engine.generate([chat], Sampling(max_tokens=MAX_TOKENS))[0].text


@contextmanager
def open_summariser(name: str, settings: Settings) -> Iterator[Summariser]:
    """The model that a name means, while the context lasts."""
    validate_judge_name(name)
    with open_judge(name, settings) as judge:
        yield Summariser(judge.engine, judge.usage)
