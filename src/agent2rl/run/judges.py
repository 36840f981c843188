"""Open judge models by name (a driver, an engine or a local model), measure them against published
preferences, and use one to summarise a run.

    claude-opus-4-6   gpt-5.4   gemini-2.5-flash   MODEL@URL    asked through a metering gateway
    openai-api:MODEL@URL                                        the same, with the key of that engine
    model:smollm2-135m                                          a model that runs on this machine

Remote judges are asked with OpenAI's Chat Completions, which every provider offers. Judgements are cached by
the judge's name, so a model has one name however it is spelt, and different models have different names.
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
"""API keys of the `openai-api` engine."""
JUDGES = (
    "Write claude-…, gpt-… or gemini-…, MODEL@URL for a compatible endpoint, "
    f"or {HERE}:NAME for a model that runs here, such as {HERE}:smollm2-135m."
)


@contextmanager
def open_judge(name: str, settings: Settings) -> Iterator[JudgeProxy]:
    """Open the named judge inside the context."""
    judgements = settings.cache / "judgements"
    if model := _parse_local_model(name):
        directory = prepare_model_directory(model, settings.cache)
        content = compute_manifest(directory).sha256[:12]
        with registry.find_engine(choose_default_engine(model, ()))(directory) as engine:
            yield JudgeProxy(f"{HERE}:{pin_model_name(model)}@{content}", engine, judgements, one_by_one=True)
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
        yield JudgeProxy(f"{driver.model}@{driver.urls[WIRE]}", engine, judgements, usage=gateway.usage)


def validate_judge_name(name: str) -> None:
    """Refuse an invalid judge name."""
    if not _parse_local_model(name) and not name.startswith(f"{ENGINE}:"):
        driver = parse_driver(name)
        driver.choose_wire((WIRE,))
        if driver.needs_key and _find_api_key(driver) is None:
            raise UserError(
                f"{driver.model} needs a key of {driver.provider}.", f"Set {' or '.join(driver.key_names)}."
            )


def require_different_judges(judge: str, train_judge: str, settings: Settings) -> None:
    """Refuse a training judge that is the grading judge, however it is spelt and wherever it is served."""
    if _identify_judge(judge, settings) == _identify_judge(train_judge, settings):
        raise UserError(
            "The training judge and the grading judge are the same model.",
            "Name another model for --train-judge. The same name elsewhere counts as the same model.",
        )


def _parse_local_model(name: str) -> str | None:
    """Return the model of a judge that runs on this machine, or None."""
    head, _, model = name.partition(":")
    return model if head == HERE and model else None


def _identify_judge(name: str, settings: Settings) -> str:
    """Identify a local judge by its content and a remote one by its name."""
    if model := _parse_local_model(name):
        return compute_manifest(prepare_model_directory(model, settings.cache)).sha256
    return _parse_judge_driver(name).model.lower()


def _parse_judge_driver(name: str) -> Driver:
    if not name.startswith(f"{ENGINE}:"):
        return parse_driver(name)
    with registry.find_engine(name)(Path()) as engine:  # the engine knows an endpoint's only model
        assert isinstance(engine, RemoteEngine)
        return replace(
            parse_driver(f"judge@{engine.url}"), model=engine.model, urls={WIRE: engine.url}, key_names=KEYS
        )


def _find_api_key(driver: Driver) -> Key | None:
    secrets = read_secrets(driver.key_names)
    return next((Key(secrets[name]) for name in driver.key_names if name in secrets), None)


# Calibration of a judge against the published preferences of a task's benchmark.


def measure_judge(task: str, judge: str, data_dir: Path | None, most: int, settings: Settings) -> Calibration:
    """Measure a judge on at most `most` comparisons; cached judgements are reused."""
    published = registry.find_task(task).published
    if published is None:
        raise UserError(f"The task {task!r} has no published preferences.", "Try --task alpacaeval.")
    preferences = select_preferences(published.preferences(data_dir), most)
    with (
        open_judge(judge, settings) as judging,
        serve_grading_proxy(ProxyServices(judging=judging)) as socket,
    ):
        assert socket
        return calibrate(JudgeReferee(GradingProxyClient(socket)), preferences)


# A language model that summarises a run. It is named like a judge and asked through a metering gateway.

MAX_TOKENS = 2000


@dataclass(frozen=True)
class Summariser:
    engine: Engine
    usage: Callable[[], LlmUsage] | None
    """Returns the usage so far, if it is metered."""

    def __call__(self, question: str) -> str:
        chat = (ChatMessage("user", question),)
        return self.engine.generate([chat], Sampling(max_tokens=MAX_TOKENS))[0].text


@contextmanager
def open_summariser(name: str, settings: Settings) -> Iterator[Summariser]:
    """Open the named model inside the context."""
    validate_judge_name(name)
    with open_judge(name, settings) as judge:
        yield Summariser(judge.engine, judge.usage)
