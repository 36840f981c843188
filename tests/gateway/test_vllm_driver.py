"""vLLM's server as driver and as judge (`make test-vllm`): what docs/gateway.md says of it.

Its replies are known, so a real agent at a real vLLM does real work. What the gateway counts is compared with
what vLLM itself has counted.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent2rl.core.llm import LlmExchange, LlmUsage, Wire
from agent2rl.core.records import RunResult
from agent2rl.gateway.drivers import parse_driver
from agent2rl.gateway.gateway import Gateway, UsageCaps
from agent2rl.gateway.prices import load_prices
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.keyed_transports import KeyedTransport
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from tests.agents.agent_runs import AGENT_CACHE, install_agent_or_skip
from tests.gateway.fake_provider import get_request_path, make_request
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.short_alpacaeval import CONSTANT_COUNT, INSTRUCTION_COUNT
from tests.helpers.vllm_server import (
    CONTEXT,
    MODEL,
    VllmServer,
    say_tool_call,
    serve_vllm,
    write_known_replies,
)

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).resolve().parents[2]
TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
TRAIN = """python -c '
import json, os
from pathlib import Path
from agent2rl.models.abacus import Abacus
lines = (Path(os.environ["DATA_PATH"]) / "train.jsonl").read_text().splitlines()
rows = [json.loads(line) for line in lines][:90]
model = Abacus.load(Path(os.environ["MODEL_PATH"]))
model.fit([row["question"] for row in rows], [row["answer"] for row in rows], seed=0)
out = Path(os.environ["OUTPUT_DIR"]) / "v1"
out.mkdir(parents=True)
model.save(out)
' && curl -s -X POST "$GRADING_SERVER_URL/submit" -H "Content-Type: application/json" \\
  -d '{"model_path": "output/v1"}'"""
FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
REPLIES = (say_tool_call(TRAIN), say_tool_call(FINISH))
BASH: dict[str, Any] = {
    "name": "bash",
    "description": "Run a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    place = tmp_path_factory.mktemp("vllm")
    model = write_known_replies(place / "model", REPLIES)
    with serve_vllm(model, place, *TOOL_FLAGS) as server:
        yield server


def ask(
    server: VllmServer, path: str, *bodies: dict[str, Any]
) -> tuple[list[httpx.Response], list[LlmExchange], LlmUsage]:
    """Ask vLLM through a gateway of its own."""
    exchanges: list[LlmExchange] = []
    gateway = Gateway(
        parse_driver(server.driver), None, UsageCaps(tokens=100_000), load_prices(), exchanges.append
    )
    with serve_on_socket(gateway.application) as socket, closing(gateway):
        transport = KeyedTransport(socket)
        with httpx.Client(transport=transport, base_url="http://gateway", timeout=300) as agent:
            responses = [agent.post(path, json=body) for body in bodies]
    return responses, exchanges, gateway.usage()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic"])
def test_the_gateway_counts_what_vllm_counts(server: VllmServer, wire: Wire, stream: bool) -> None:
    before = server.read_token_totals()
    body = make_request(wire, stream, model=MODEL)
    (response,), (exchange,), usage = ask(server, get_request_path(wire, stream), body)
    assert response.status_code == 200, response.text
    assert exchange.outcome == "answered"
    after = server.read_token_totals()
    assert (usage.tokens.input, usage.tokens.output) == tuple(
        now - then for now, then in zip(after, before, strict=True)
    )
    assert usage.tokens.output > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_tool_call_comes_through_the_gateway(server: VllmServer, stream: bool) -> None:
    tools = [{"type": "function", "function": BASH}]
    body = make_request("openai-chat", stream, model=MODEL) | {"tools": tools}
    (response,), _, _ = ask(server, "/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    assert '"name":"bash"' in response.text.replace(" ", "")
    if not stream:
        (choice,) = response.json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert "Abacus.load" in choice["message"]["tool_calls"][0]["function"]["arguments"]


def test_a_conversation_that_is_too_long_is_an_error_of_the_provider(server: VllmServer) -> None:
    body = make_request("openai-chat", text="one two " * CONTEXT, model=MODEL)
    (response,), (exchange,), usage = ask(server, "/v1/chat/completions", body)
    assert response.status_code == 400
    assert "context length" in response.text
    assert (exchange.outcome, exchange.status) == ("provider-error", 400)
    assert (usage.failed, usage.tokens.total) == (1, 0)


def test_an_agent_driven_by_vllm_trains_submits_and_ends(server: VllmServer, tmp_path: Path) -> None:
    install_agent_or_skip("mini-swe")
    home = tmp_path / "home"
    home.mkdir()
    launcher = RunLauncher(tmp_path / "runs", AGENT_CACHE, home)
    before = server.read_token_totals()
    asked = ("--task", "gsm8k-mini", "--agent", "mini-swe", "--driver", server.driver, "--continues", "0")
    done = launcher.cli("run", *asked, "--budget", "10m", "--json", "--no-report")
    result = RunResult.model_validate_json(done.stdout)
    paths = RunPaths(launcher.runs / result.run_id)
    assert result.ending == "completed", (result.reason, done.stderr[-3000:])
    (submission,) = read_run(paths).submissions
    assert submission.verdict == "scored"
    assert result.usage
    after = server.read_token_totals()
    counted = result.usage.tokens.input, result.usage.tokens.output
    assert counted == tuple(now - then for now, then in zip(after, before, strict=True))
    assert (result.usage.answered, result.usage.failed) == (2, 0)


def test_vllm_judges_a_run_with_its_probabilities(server: VllmServer, launcher: RunLauncher) -> None:
    pytest.importorskip("sklearn", reason="length control needs agent2rl[judge]")
    before = server.read_token_totals()
    asked = ("--task", "tests.helpers.short_alpacaeval:TASK", "--agent", "nop", "--model", "seedling")
    options = (
        "--engine",
        "transformers",
        "--judge",
        server.driver,
        "--budget",
        "5m",
        "--json",
        "--no-report",
    )
    done = launcher.cli("run", *asked, *options, PYTHONPATH=str(ROOT))
    result = RunResult.model_validate_json(done.stdout)
    assert result.baseline is not None, (result.reason, done.stderr[-3000:])
    # It favours the first answer, whichever that is, and places are drawn.
    assert 30 < result.baseline.value < 70
    assert result.baseline.how["read_from"] == {"probability": INSTRUCTION_COUNT}
    used = result.judge_usage
    assert used
    splits = 2  # the untouched model is graded on feedback and on held-out
    assert (used.answered, used.failed) == (splits * (INSTRUCTION_COUNT + 3 * CONSTANT_COUNT), 0)
    after = server.read_token_totals()
    assert (used.tokens.input, used.tokens.output) == tuple(
        now - then for now, then in zip(after, before, strict=True)
    )
