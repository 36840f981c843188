"""Agent folders in the published format: what the harness sets for the program that each one starts."""

import json
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from agent2rl import registry
from agent2rl.core.agent import Agent, Brief, DrivenAgent, DriverLlm, ProgramAgent
from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire
from agent2rl.core.records import Budget
from agent2rl.core.sandbox import Command, url_placeholder
from tests.agents.published_folders import FOLDERS, write_folder

URL = url_placeholder("LLM_URL")
TOKEN = "the-token"
WIRES: dict[str, Wire] = {
    "claude": "anthropic",
    "codex": "openai-responses",
    "gemini": "gemini",
    "opencode": "openai-responses",
    "openhands": "openai-chat",
    "rdagent": "openai-chat",
}
EXPECTED = {
    "claude": {"ANTHROPIC_API_KEY": TOKEN, "ANTHROPIC_BASE_URL": URL, "CLAUDE_MODEL": "driver-1"},
    "codex": {"LITELLM_API_KEY": TOKEN, "CODEX_MODEL": "driver-1"},
    "gemini": {"GEMINI_API_KEY": TOKEN, "GOOGLE_GEMINI_BASE_URL": URL, "GEMINI_MODEL": "driver-1"},
    "opencode": {"OPENAI_API_KEY": TOKEN, "OPENAI_API_BASE": f"{URL}/v1", "OPENCODE_MODEL": "driver-1"},
    "openhands": {
        "LLM_API_KEY": TOKEN,
        "OPENAI_API_KEY": TOKEN,
        "OPENAI_API_BASE": f"{URL}/v1",
        "LLM_MODEL": "openai/driver-1",
        "OPENHANDS_PYTHON": "/opt/program/bin/agent",
    },
    "rdagent": {"OPENAI_API_KEY": TOKEN, "OPENAI_API_BASE": f"{URL}/v1", "CHAT_MODEL": "openai/driver-1"},
}


@pytest.fixture(autouse=True)
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opencode", "openhands"):
        checkout = tmp_path / "code" / f"{name}-rl"
        checkout.mkdir(parents=True)
        (checkout / "main.py").touch()
        monkeypatch.setenv(f"{name.upper()}_RL_ROOT", str(checkout))


def brief(wire: Wire) -> Brief:
    return Brief(
        task="gsm8k",
        mode="free",
        budget=Budget(wall_seconds=3600),
        workspace=PurePosixPath("/workspace"),
        instructions="",
        environment={"TASK": "gsm8k", "WORKSPACE": "/workspace"},
        prompt="Begin.",
        llm=DriverLlm("driver-1", wire, URL, TOKEN),
        prefix=PurePosixPath("/opt/program"),
    )


def load(folder: Path) -> Agent:
    return registry.find_agent(f"folder:{folder}")


def command_of(name: str, place: Path) -> Command:
    return load(write_folder(name, place)).command(brief(WIRES[name]))


def start_script(command: Command) -> str:
    return command.files[".config/agent2rl/start.sh"]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_start_script_finds_the_gateway_behind_the_variables_that_it_reads(
    name: str, tmp_path: Path
) -> None:
    environment = command_of(name, tmp_path).environment
    assert {key: environment[key] for key in EXPECTED[name]} == EXPECTED[name]
    assert environment["TASK"] == "gsm8k"


@pytest.mark.parametrize("name", EXPECTED)
def test_variables_of_the_config_apply_where_the_harness_sets_none(name: str, tmp_path: Path) -> None:
    own = {"TASK": "another", "MAX_ITERATIONS": "7"}
    folder = write_folder(name, tmp_path, **own)
    environment = load(folder).command(brief(WIRES[name])).environment
    assert (environment["TASK"], environment["MAX_ITERATIONS"]) == ("gsm8k", "7")


@pytest.mark.parametrize("name", EXPECTED)
def test_the_start_script_runs_as_it_is_from_a_read_only_mount(name: str, tmp_path: Path) -> None:
    command = command_of(name, tmp_path)
    assert start_script(command).endswith("exec bash /workspace/agent/start.sh\n")
    mount = command.mounts[0]
    assert (mount.source, mount.target, mount.writable) == (tmp_path / name, "agent", False)


def test_a_folder_shares_the_installation_of_the_agent_with_the_same_program(tmp_path: Path) -> None:
    agent, own = load(write_folder("claude", tmp_path)), registry.find_agent("claude-code")
    assert isinstance(agent, ProgramAgent)
    assert isinstance(own, DrivenAgent)
    assert (agent.package, agent.installed_as) == (own.package, "claude-code")
    script = start_script(agent.command(brief("anthropic")))
    assert 'export PATH="$HOME/.local/bin":/opt/program/bin:"$PATH"' in script


def test_codex_finds_the_provider_litellm_and_does_not_search_the_web(tmp_path: Path) -> None:
    files = command_of("codex", tmp_path).files
    provider = tomllib.loads(files[".codex/config.toml"])["model_providers"]["litellm"]
    assert provider["base_url"] == f"{URL}/v1"
    assert (provider["env_key"], provider["wire_api"]) == ("LITELLM_API_KEY", "responses")
    assert "--search" in files[".local/bin/codex"]


def test_gemini_is_logged_in_with_the_key(tmp_path: Path) -> None:
    settings = json.loads(command_of("gemini", tmp_path).files[".gemini/settings.json"])
    assert settings["security"]["auth"]["selectedType"] == "gemini-api-key"


@pytest.mark.parametrize("name", ["opencode", "openhands"])
def test_the_code_beside_a_program_is_copied_to_where_the_agent_may_write(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = start_script(command_of(name, tmp_path))
    assert f'export {name.upper()}_RL_ROOT="$HOME/{name}-rl"' in script
    monkeypatch.delenv(f"{name.upper()}_RL_ROOT")
    with pytest.raises(UserError, match=f"{name.upper()}_RL_ROOT is not set"):
        load(tmp_path / name)


def test_a_folder_that_starts_no_known_program_needs_no_driver(tmp_path: Path) -> None:
    folder = write_folder("example_agent", tmp_path)
    agent = load(folder)
    assert not isinstance(agent, DrivenAgent)
    assert agent.command(brief("anthropic")).argv == ("bash", "/workspace/agent/start.sh")


def test_a_program_that_only_a_comment_or_a_message_mentions_is_not_started(tmp_path: Path) -> None:
    folder = write_folder("example_agent", tmp_path)
    (folder / "start.sh").write_text("# like codex\necho no claude here\npython train.py\n")
    assert not isinstance(load(folder), DrivenAgent)


def test_the_config_may_name_the_program(tmp_path: Path) -> None:
    folder = write_folder("example_agent", tmp_path)
    config = folder / "config.yaml"
    config.write_text(config.read_text() + "program: gemini-cli\n")
    assert isinstance(load(folder), DrivenAgent)
    config.write_text(config.read_text().replace("gemini-cli", "emacs"))
    with pytest.raises(UserError, match="emacs") as raised:
        load(folder)
    assert "gemini-cli" in raised.value.hint
    claude = write_folder("claude", tmp_path)
    with (claude / "config.yaml").open("a") as file:
        file.write("program: none\n")
    assert not isinstance(load(claude), DrivenAgent)


@pytest.mark.parametrize("missing", ["config.yaml", "start.sh"])
def test_a_folder_in_no_known_format_is_told_which_file_it_lacks(missing: str, tmp_path: Path) -> None:
    folder = write_folder("claude", tmp_path)
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"has no {missing}") as raised:
        load(folder)
    assert "start.sh" in raised.value.hint
    assert "script:FILE" in raised.value.hint


def test_every_published_folder_is_rebuilt_here() -> None:
    assert set(FOLDERS) == {*EXPECTED, "example_agent"}
