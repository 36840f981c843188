"""The LLM that drives the agent: the gateway before it, what the agent is told of it, and who is to blame.

An agent that needs none is driven by nobody. One that is a plain program gets the gateway too, where the user
names a driver: its address is in the variables that the usual client libraries read.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from agent2rl.core.agent import Agent, Brief, DrivenAgent, DriverLlm
from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmExchange, LlmUsage
from agent2rl.core.records import Ending, RunSpec
from agent2rl.core.sandbox import Door, Mount, url_placeholder
from agent2rl.gateway.drivers import Driver, parse_driver
from agent2rl.gateway.gateway import Gateway, Tape
from agent2rl.gateway.keys import Key
from agent2rl.gateway.meter import UsageCaps
from agent2rl.gateway.prices import load_prices
from agent2rl.gateway.tape import TapeRecording, TapeReplay
from agent2rl.grading.server import serve_on_socket
from agent2rl.record.recorder import Recorder
from agent2rl.run.settings import Settings, read_secrets

DOOR = "LLM_URL"
CONNECTIONS = 256
KEY = "agent2rl"
"""What clients in the sandbox send where they insist on a key."""
CLIENT_VARIABLES: Mapping[str, str] = {
    "OPENAI_BASE_URL": f"{url_placeholder(DOOR)}/v1",
    "OPENAI_API_KEY": KEY,
    "ANTHROPIC_BASE_URL": url_placeholder(DOOR),
    "ANTHROPIC_API_KEY": KEY,
    "GOOGLE_GEMINI_BASE_URL": url_placeholder(DOOR),
    "GEMINI_API_KEY": KEY,
}
"""By which a plain program's client library finds the driver."""
DRIVER_FAILURES: Mapping[str, tuple[Ending, str]] = {
    "login": ("login-failed", "The driver's provider does not let the key in"),
    "rate-limit": ("rate-limited", "The driver's provider is too busy, or the key has used its share"),
    "failure": ("driver-failed", "The driver failed"),
    "rejected": ("driver-failed", "The driver does not take what the agent asks"),
}


@dataclass(frozen=True)
class DriverSession:
    """What drives a run's agent: nobody, or a gateway."""

    agent: Agent
    over: threading.Event
    """Set when the agent is to be ended: the run is stopped, or the driver's budget is used up."""
    gateway: Gateway | None = None
    driver: Driver | None = None
    prefix: Path | None = None
    """Where the agent's package is installed; it is seen at the same place inside."""
    doors: tuple[Door, ...] = ()

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return (Mount(self.prefix, str(self.prefix)),) if self.prefix else ()

    def add_driver_to_brief(self, brief: Brief) -> Brief:
        """With what the agent needs to reach its driver."""
        if self.driver is None:
            return brief
        if not isinstance(self.agent, DrivenAgent):
            known = {**CLIENT_VARIABLES, "LLM_MODEL": self.driver.model}
            return replace(brief, environment={**brief.environment, **known})
        llm = DriverLlm(
            self.driver.model, self.driver.choose_wire(self.agent.wires), url_placeholder(DOOR), KEY
        )
        return replace(brief, llm=llm, prefix=PurePosixPath(self.prefix) if self.prefix else None)

    def count_answered_requests(self) -> int:
        """Requests so far that the driver answered."""
        return self.gateway.usage().answered if self.gateway else 0

    def read_usage(self) -> LlmUsage | None:
        return self.gateway.usage() if self.gateway else None

    def find_driver_failure(self) -> tuple[Ending, str] | None:
        """The ending and its reason, where an agent that came to nothing did so for want of its driver."""
        if self.gateway is None:
            return None
        if self.gateway.exhausted.is_set() and self.gateway.over.is_set():
            return "budget-exhausted", f"The driver's budget is used up: {self.gateway.describe_spending()}."
        if trouble := self.gateway.get_failure_streak():
            ending, what = DRIVER_FAILURES[trouble.kind]
            times = "once" if trouble.requests == 1 else f"{trouble.requests} times in a row"
            return ending, f"{what}, {times}: {trouble.message}"
        return None


class _AnyEvent(threading.Event):
    """Either of two."""

    def __init__(self, *events: threading.Event) -> None:
        super().__init__()
        self._events = events

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._events)


class DriverSetup:
    """A run's driver before the run begins: all that can be refused has been."""

    def __init__(self, spec: RunSpec, agent: Agent, settings: Settings, again: bool = False) -> None:
        """`again`: the run goes on after its harness died."""
        self._agent = agent
        self._driver = _parse_driver(spec, agent)
        self._write: list[Recorder] = []
        self._gateway = (
            _make_gateway(spec, self._driver, settings, self._record_exchange, again)
            if self._driver
            else None
        )

    @contextmanager
    def open_session(
        self, prefix: Path | None, recorder: Recorder, stop: threading.Event
    ) -> Iterator[DriverSession]:
        if self._gateway is None:
            yield DriverSession(self._agent, stop)
            return
        self._write.append(recorder)
        self._gateway.restore_exchanges(recorder.past.exchanges)
        over, gateway = _AnyEvent(stop, self._gateway.over), self._gateway
        with serve_on_socket(gateway.application, connections=CONNECTIONS) as socket:
            try:
                with closing(gateway):
                    yield DriverSession(
                        self._agent, over, gateway, self._driver, prefix, (Door(DOOR, socket),)
                    )
            finally:
                recorder.record_usage(gateway.usage())

    def _record_exchange(self, exchange: LlmExchange) -> None:
        for recorder in self._write:
            recorder.record_exchange(exchange)


def _parse_driver(spec: RunSpec, agent: Agent) -> Driver | None:
    if spec.driver is None:
        if isinstance(agent, DrivenAgent):
            raise UserError(
                f"The agent {spec.agent!r} thinks with an LLM: name one.",
                "For example --driver claude-opus-4-6, or --driver MODEL@URL for a compatible endpoint.",
            )
        if spec.budget.tokens or spec.budget.usd or spec.record_driver or spec.replay_driver:
            raise UserError(
                "Without a driver there is nothing to limit, record or replay.", "Name one with --driver."
            )
        return None
    driver = parse_driver(spec.driver)
    if isinstance(agent, DrivenAgent):
        driver.choose_wire(agent.wires)
    return driver


def _make_gateway(
    spec: RunSpec, driver: Driver, settings: Settings, note: Callable[[LlmExchange], None], again: bool
) -> Gateway:
    keys = read_secrets(driver.key_names)
    key = next((Key(keys[name]) for name in driver.key_names if name in keys), None)
    caps = UsageCaps(spec.budget.tokens, spec.budget.usd)
    return Gateway(driver, key, caps, load_prices(settings.prices), note, _open_tape(spec, again))


def _open_tape(spec: RunSpec, again: bool) -> Tape | None:
    if spec.replay_driver and spec.record_driver:
        raise UserError("A replay is a record already.", "Leave out --record-driver.")
    if spec.replay_driver:
        return TapeReplay(Path(spec.replay_driver))
    return TapeRecording(Path(spec.record_driver), again) if spec.record_driver else None
