"""The driver LLM of an agent: its gateway, its part of the brief, and the diagnosis of its failures.

An agent that needs no driver gets none. A plain program gets the gateway if the user names a driver: the
gateway's address is in the environment variables that common client libraries read.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from agent2rl.core.agent import Agent, Brief, DrivenAgent, DriverLlm
from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmExchange, LlmUsage
from agent2rl.core.records import Ending, RunSpec
from agent2rl.core.sandbox import Mount, ServiceSocket, url_placeholder
from agent2rl.gateway.drivers import Driver, parse_driver
from agent2rl.gateway.gateway import Gateway, Tape
from agent2rl.gateway.keys import Key
from agent2rl.gateway.meter import UsageCaps
from agent2rl.gateway.prices import load_prices
from agent2rl.gateway.tape import TapeRecording, TapeReplay
from agent2rl.grading.server import serve_on_socket
from agent2rl.record.recorder import Recorder
from agent2rl.run.settings import Settings, read_secrets

logger = logging.getLogger(__name__)

URL_VARIABLE = "LLM_URL"
CONNECTIONS = 256
KEY = "agent2rl"
"""Sent by clients in the sandbox that require a key."""
CLIENT_VARIABLES: Mapping[str, str] = {
    "OPENAI_BASE_URL": f"{url_placeholder(URL_VARIABLE)}/v1",
    "OPENAI_API_KEY": KEY,
    "ANTHROPIC_BASE_URL": url_placeholder(URL_VARIABLE),
    "ANTHROPIC_API_KEY": KEY,
    "GOOGLE_GEMINI_BASE_URL": url_placeholder(URL_VARIABLE),
    "GEMINI_API_KEY": KEY,
}
"""Environment variables with which a plain program's client library finds the driver."""
DRIVER_FAILURES: Mapping[str, tuple[Ending, str]] = {
    "login": ("login-failed", "The driver's provider rejects the key"),
    "rate-limit": ("rate-limited", "The driver's provider is overloaded, or the key is over its quota"),
    "failure": ("driver-failed", "The driver failed"),
    "rejected": ("driver-failed", "The driver rejects the agent's requests"),
}


@dataclass(frozen=True)
class DriverSession:
    """The gateway of a run's agent, if it has a driver."""

    agent: Agent
    over: threading.Event
    """Set to end the agent: the run is stopped, or the driver's budget is used up."""
    gateway: Gateway | None = None
    driver: Driver | None = None
    prefix: Path | None = None
    """Directory of the agent's package; it has the same path inside the sandbox."""
    sockets: tuple[ServiceSocket, ...] = ()

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return (Mount(self.prefix, str(self.prefix)),) if self.prefix else ()

    def add_driver_to_brief(self, brief: Brief) -> Brief:
        """Add what the agent needs to reach its driver."""
        if self.driver is None:
            return brief
        if not isinstance(self.agent, DrivenAgent):
            variables = {**CLIENT_VARIABLES, "LLM_MODEL": self.driver.model}
            return replace(brief, environment={**brief.environment, **variables})
        llm = DriverLlm(
            self.driver.model, self.driver.choose_wire(self.agent.wires), url_placeholder(URL_VARIABLE), KEY
        )
        return replace(brief, llm=llm, prefix=PurePosixPath(self.prefix) if self.prefix else None)

    def count_answered_requests(self) -> int:
        """Return the number of requests that the driver has answered so far."""
        return self.gateway.usage().answered if self.gateway else 0

    def sent_no_request(self) -> bool:
        """Return whether the agent has a driver and has never sent it a request."""
        return self.gateway is not None and self.gateway.usage().requests == 0

    def read_usage(self) -> LlmUsage | None:
        return self.gateway.usage() if self.gateway else None

    def find_driver_failure(self) -> tuple[Ending, str] | None:
        """Return the ending and its reason, if the driver is to blame for an agent that failed."""
        if self.gateway is None:
            return None
        if self.gateway.exhausted.is_set() and self.gateway.over.is_set():
            return "budget-exhausted", f"The driver's budget is used up: {self.gateway.describe_spending()}."
        if streak := self.gateway.get_failure_streak():
            ending, description = DRIVER_FAILURES[streak.kind]
            times = "once" if streak.requests == 1 else f"{streak.requests} times in a row"
            return ending, f"{description}, {times}: {streak.message}"
        return None


# A sandbox asks for nothing but `is_set`, from time to time.
class _AnyEvent(threading.Event):
    """An event that is set when any of several is."""

    def __init__(self, *events: threading.Event) -> None:
        super().__init__()
        self._events = events

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._events)


class DriverSetup:
    """Check a run's driver settings before the run begins, and open the driver session later."""

    def __init__(self, spec: RunSpec, agent: Agent, settings: Settings, resuming: bool = False) -> None:
        """`resuming`: the run continues after a crash of the harness."""
        self._agent = agent
        self._driver = _parse_driver(spec, agent)
        # Filled later: settings are checked before there is a run directory to record in.
        self._recorders: list[Recorder] = []
        self._gateway = (
            _make_gateway(spec, self._driver, settings, self._record_exchange, resuming)
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
        self._recorders.append(recorder)
        self._gateway.restore_exchanges(recorder.resume_state.exchanges)
        stop_or_over, gateway = _AnyEvent(stop, self._gateway.over), self._gateway
        if self._driver:
            logger.info("The driver LLM is %s (%s)", self._driver.model, self._driver.provider)
        with serve_on_socket(gateway.application, connections=CONNECTIONS) as socket:
            try:
                with closing(gateway):
                    yield DriverSession(
                        self._agent,
                        stop_or_over,
                        gateway,
                        self._driver,
                        prefix,
                        (ServiceSocket(URL_VARIABLE, socket),),
                    )
            finally:
                usage = gateway.usage()
                recorder.record_usage(usage)
                logger.info("The driver answered %d of %d requests", usage.answered, usage.requests)

    def _record_exchange(self, exchange: LlmExchange) -> None:
        for recorder in self._recorders:
            recorder.record_exchange(exchange)


def _parse_driver(spec: RunSpec, agent: Agent) -> Driver | None:
    if spec.driver is None:
        if isinstance(agent, DrivenAgent):
            raise UserError(
                f"The agent {spec.agent!r} needs a driver LLM.",
                "For example --driver claude-opus-4-6, or --driver MODEL@URL for a compatible endpoint.",
            )
        if spec.budget.tokens or spec.budget.usd or spec.record_driver or spec.replay_driver:
            raise UserError(
                "Without a driver there is nothing to limit, record or replay.",
                "Name one with --driver.",
            )
        return None
    driver = parse_driver(spec.driver)
    if isinstance(agent, DrivenAgent):
        driver.choose_wire(agent.wires)
    return driver


def _make_gateway(
    spec: RunSpec, driver: Driver, settings: Settings, record: Callable[[LlmExchange], None], resuming: bool
) -> Gateway:
    keys = read_secrets(driver.key_names)
    key = next((Key(keys[name]) for name in driver.key_names if name in keys), None)
    caps = UsageCaps(spec.budget.tokens, spec.budget.usd)
    return Gateway(driver, key, caps, load_prices(settings.prices), record, _open_tape(spec, resuming))


def _open_tape(spec: RunSpec, resuming: bool) -> Tape | None:
    if spec.replay_driver and spec.record_driver:
        raise UserError(
            "A replay cannot be recorded: it is already a recording.", "Leave out --record-driver."
        )
    if spec.replay_driver:
        return TapeReplay(Path(spec.replay_driver))
    return TapeRecording(Path(spec.record_driver), resuming) if spec.record_driver else None
