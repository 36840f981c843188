"""How the driven agents are started: what each is told, and what none may be told."""

import json
import tomllib
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
import yaml

from agent2rl.core.agent import Brief, DrivenAgent, DriverLlm
from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire
from agent2rl.core.records import Budget
from agent2rl.core.sandbox import Command, url_placeholder
from agent2rl.run.agent_install import list_driven_agents

AGENTS = list_driven_agents()
SPOKEN = [(name, wire) for name, agent in sorted(AGENTS.items()) for wire in agent.wires]
URL = url_placeholder("LLM_URL")
PROMPT = 'Read "instructions.md".\nBegin.'
HOURS = 12 * 3600.0


def brief(wire: Wire, seconds: float = HOURS, resumed: bool = False) -> Brief:
    return Brief(
        task="gsm8k",
        mode="free",
        budget=Budget(wall_seconds=seconds),
        workspace=PurePosixPath("/workspace"),
        instructions="",
        environment={"TASK": "gsm8k"},
        prompt=PROMPT,
        llm=DriverLlm("some/model-1", wire, URL, "the-key"),
        prefix=PurePosixPath("/opt/agent"),
        resumed=resumed,
    )


def told(command: Command) -> str:
    """All that a command says, apart from its arguments."""
    return "\n".join([*command.environment.values(), *command.files.values(), command.input])


def test_all_seven_are_there() -> None:
    named = {"claude-code", "codex", "gemini-cli", "mini-swe", "opencode", "openhands", "rdagent"}
    assert set(AGENTS) == named


@pytest.mark.parametrize(("name", "wire"), SPOKEN)
def test_an_agent_asks_the_driver_at_the_gateway_and_nobody_else(name: str, wire: Wire) -> None:
    command = AGENTS[name].command(brief(wire))
    everything = told(command) + " ".join(command.argv)
    assert URL in everything
    assert "some/model-1" in everything
    assert "the-key" in told(command)
    assert "://" not in everything


@pytest.mark.parametrize(("name", "wire"), SPOKEN)
def test_no_argument_holds_the_prompt_or_the_key(name: str, wire: Wire) -> None:
    """What a tool call ends by `pkill -f` is found by its arguments; and everybody can read those."""
    command = AGENTS[name].command(brief(wire))
    arguments = " ".join(command.argv)
    assert "instructions.md" not in arguments
    assert "the-key" not in arguments
    assert "python" not in PurePosixPath(command.argv[0]).name


@pytest.mark.parametrize("name", sorted(set(AGENTS) - {"rdagent"}))
def test_the_prompt_comes_by_stdin_or_in_a_file(name: str) -> None:
    command = AGENTS[name].command(brief(AGENTS[name].wires[0]))
    texts = [command.input, *command.files.values()]
    assert any(PROMPT in text or json.dumps(PROMPT) in text for text in texts)


@pytest.mark.parametrize(("name", "wire"), SPOKEN)
def test_what_the_run_tells_every_agent_stays(name: str, wire: Wire) -> None:
    command = AGENTS[name].command(brief(wire))
    assert command.environment["TASK"] == "gsm8k"
    assert "PATH" not in command.environment
    assert "HOME" not in command.environment
    assert command.interrupt == "leader"
    assert not AGENTS[name].secrets


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini-cli", "opencode", "openhands"])
def test_an_agent_that_can_go_on_is_told_to(name: str) -> None:
    agent = AGENTS[name]
    first, again = (agent.command(brief(agent.wires[0], resumed=resumed)) for resumed in (False, True))
    added = [argument for argument in again.argv if argument not in first.argv]
    assert added
    assert any(word in " ".join(added) for word in ("continue", "resume"))
    assert (again.files, again.environment, again.input) == (first.files, first.environment, first.input)


def test_an_agent_does_not_speak_what_it_cannot() -> None:
    with pytest.raises(UserError, match="does not speak gemini"):
        AGENTS["claude-code"].command(brief("gemini"))


def test_an_agent_without_a_driver_says_so() -> None:
    for agent in AGENTS.values():
        with pytest.raises(UserError, match="--driver"):
            agent.command(replace(brief("anthropic"), llm=None))


def test_an_agent_that_is_not_installed_says_so() -> None:
    for agent in AGENTS.values():
        with pytest.raises(UserError, match="agents install"):
            agent.command(replace(brief(agent.wires[0]), prefix=None))


def limits(name: str, seconds: float) -> list[int]:
    """What the agent is told that a command may take, in seconds."""
    agent: DrivenAgent = AGENTS[name]
    command = agent.command(brief(agent.wires[0], seconds))
    match name:
        case "claude-code":
            names = ("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS")
            return [int(command.environment[variable]) // 1000 for variable in names]
        case "codex":
            config = tomllib.loads(command.files[".codex/config.toml"])
            return [config["background_terminal_max_timeout"] // 1000]
        case "gemini-cli":
            return [json.loads(command.files[".gemini/settings.json"])["tools"]["shell"]["inactivityTimeout"]]
        case "opencode":
            return [int(command.environment["OPENCODE_EXPERIMENTAL_BASH_DEFAULT_TIMEOUT_MS"]) // 1000]
    [config] = (yaml.safe_load(text) for text in command.files.values())
    return [config["environment"]["timeout"]]


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini-cli", "mini-swe", "opencode"])
def test_a_command_may_take_as_long_as_the_run(name: str) -> None:
    assert set(limits(name, HOURS)) == {int(HOURS)}


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini-cli", "mini-swe", "opencode"])
def test_no_limit_is_longer_than_a_timer_goes(name: str) -> None:
    """One that is goes off at once."""
    assert max(limits(name, 100 * 86400.0)) * 1000 < 2**31


def test_a_model_s_name_cannot_break_out_of_a_configuration() -> None:
    odd = 'a"b\\c'
    for agent in AGENTS.values():
        for wire in agent.wires:
            asked = brief(wire)
            command = agent.command(replace(asked, llm=replace(asked.driver, model=odd)))
            for path, text in command.files.items():
                if path.endswith(".toml"):
                    assert tomllib.loads(text)["model"] == odd
                elif path.endswith((".json", ".yaml")):
                    assert odd in json.dumps(yaml.safe_load(text)).encode().decode("unicode_escape")


def test_the_login_shells_of_codex_keep_the_agent_s_python_first() -> None:
    asked = replace(brief("openai-responses"), python="/my envs/trl/bin/python")
    profile = AGENTS["codex"].command(asked).files[".bash_profile"]
    assert profile == "export PATH='/my envs/trl/bin':\"$PATH\"\n"
