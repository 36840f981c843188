"""The models that judge: named as drivers are, or by an engine, or loaded here.

    claude-opus-4-6   gpt-5.4   gemini-2.5-flash   MODEL@URL    asked through a gateway, and metered
    openai-api:MODEL@URL                                        the same, with the key of that engine
    model:smollm2-135m                                          a model that runs on this computer

All that is elsewhere is asked as OpenAI's Chat Completions, which every provider offers. A judge goes by one
name however it is spelt, which is another where it is another model: judgements are kept.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from agent2rl import registry
from agent2rl.core.engine import Elsewhere
from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire
from agent2rl.gateway.drivers import Driver, parse
from agent2rl.gateway.gateway import Gateway
from agent2rl.gateway.keys import Key
from agent2rl.gateway.meter import Caps
from agent2rl.gateway.prices import load
from agent2rl.grading.desk import Judging
from agent2rl.grading.freeze import manifest_of
from agent2rl.grading.server import serve
from agent2rl.runner.assets import default_engine, model_directory, repeatable
from agent2rl.runner.settings import Settings, secrets

HERE, ENGINE = "model", "openai-api"
WIRE: Wire = "openai-chat"
KEYS = ("AGENT2RL_API_KEY", "OPENAI_API_KEY")
"""Of that engine."""
JUDGES = (
    "Write claude-…, gpt-… or gemini-…, MODEL@URL for a compatible endpoint, "
    f"or {HERE}:NAME for a model that runs here, such as {HERE}:smollm2-135m."
)


@contextmanager
def judge(name: str, settings: Settings) -> Iterator[Judging]:
    """The judge that a name means, while the context lasts."""
    kept = settings.cache / "judgements"
    if model := _here(name):
        directory = model_directory(model, settings.cache)
        content = manifest_of(directory).sha256[:12]
        with registry.engine(default_engine(model, ()))(directory) as engine:
            yield Judging(f"{HERE}:{repeatable(model)}@{content}", engine, kept, one_by_one=True)
        return
    driver = _driver(name)
    gateway = Gateway(driver, _key(driver), Caps(), load(settings.prices), lambda _: None)
    with (
        serve(gateway.application) as socket,
        closing(gateway),
        registry.engine(f"{ENGINE}:{driver.model}@unix:{socket}")(Path()) as engine,
    ):
        yield Judging(f"{driver.model}@{driver.urls[WIRE]}", engine, kept, usage=gateway.usage)


def require(name: str) -> None:
    """Refuse a name that no judge can have."""
    if not _here(name) and not name.startswith(f"{ENGINE}:"):
        driver = parse(name)
        driver.wire((WIRE,))
        if driver.needs_key and _key(driver) is None:
            raise UserError(
                f"{driver.model} needs a key of {driver.provider}.", f"Set {' or '.join(driver.key_names)}."
            )


def require_other(judge: str, train_judge: str, settings: Settings) -> None:
    """Agents must not train with the judge that grades, however it is spelt and wherever it is served."""
    if _identity(judge, settings) == _identity(train_judge, settings):
        raise UserError(
            "The judge that grades cannot be trained with, and both are the same model.",
            "Name another for --train-judge; what has the same name at another address counts as the same.",
        )


def _here(name: str) -> str | None:
    """The model of a judge that runs on this computer."""
    head, _, model = name.partition(":")
    return model if head == HERE and model else None


def _identity(name: str, settings: Settings) -> str:
    """By its content where it runs here, else by what it is called where it runs."""
    if model := _here(name):
        return manifest_of(model_directory(model, settings.cache)).sha256
    return _driver(name).model.lower()


def _driver(name: str) -> Driver:
    if not name.startswith(f"{ENGINE}:"):
        return parse(name)
    with registry.engine(name)(Path()) as engine:  # which knows the only model of an endpoint
        assert isinstance(engine, Elsewhere)
        return replace(
            parse(f"judge@{engine.url}"), model=engine.model, urls={WIRE: engine.url}, key_names=KEYS
        )


def _key(driver: Driver) -> Key | None:
    found = secrets(driver.key_names)
    return next((Key(found[name]) for name in driver.key_names if name in found), None)
