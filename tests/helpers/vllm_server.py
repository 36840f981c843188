"""vLLM's own OpenAI-compatible server on a CPU, with a model whose replies are known.

The weights of the model, a Llama, are written by hand: each reply is one token, and the token before it
decides which. The chat template ends with a token for the turn of the conversation, or for a judge's
question.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.tiny_models import make_tiny_tokenizer

MODEL = "known-replies"
CONTEXT = 16384
START_SECONDS = 600
JUDGE_TURN = "<|judge|>"
JUDGE_LOGIT = 1.0
"""Of A; that of B is 0. Enough above all others that the two share the probability."""
FLOOR = -20.0
LOGIT = 40.0
HIDDEN = 64
"""Two heads of size 32, the smallest that vLLM's attention on a CPU supports. A dimension for each token that
decides about the next one."""
SAYS_TOOL_CALL = '<tool_call>\n{"name": "bash", "arguments": %s}\n</tool_call>'
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|user|>{{ message['role'] }}: {{ message['content'] or '' }}</s>
{%- endfor -%}
{%- if 'A or B' in (messages[0]['content'] or '') -%}
<|judge|>
{%- else -%}
<|turn%(last)d|>
{%- endif -%}
"""


def say_tool_call(command: str) -> str:
    """A call of the tool `bash` in the form that vLLM's parser `hermes` reads."""
    return SAYS_TOOL_CALL % json.dumps({"command": command})


def write_known_replies(directory: Path, replies: Sequence[str]) -> Path:
    """Write a model that answers turn n of a conversation with reply n, and the last one from then on."""
    tokenizer = make_tiny_tokenizer(chat_template=False)
    turns = [f"<|turn{number}|>" for number in range(len(replies))]
    tokenizer.add_tokens([AddedToken(turn, special=True) for turn in (*turns, JUDGE_TURN)])
    tokenizer.add_tokens([AddedToken(reply, normalized=False) for reply in replies])
    tokenizer.chat_template = _make_template(len(replies))

    def number_of(token: str) -> int:
        number = tokenizer.convert_tokens_to_ids(token)
        assert isinstance(number, int)
        return number

    end = number_of("</s>")
    following = {number_of(turn): number_of(reply) for turn, reply in zip(turns, replies, strict=True)}
    following |= {number_of(text): end for text in (*replies, "A", "B")}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
    )
    network = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    _write_weights(network, following, number_of(JUDGE_TURN), (number_of("A"), number_of("B")))
    network.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _make_template(replies: int) -> str:
    turns = (
        "{%- set turn = messages | selectattr('role', 'equalto', 'assistant') | list | length -%}"
        f"<|turn{{{{ [turn, {replies - 1}] | min }}}}|>"
    )
    return CHAT_TEMPLATE.replace("<|turn%(last)d|>", turns)


def _write_weights(
    network: LlamaForCausalLM, following: dict[int, int], judge: int, letters: tuple[int, int]
) -> None:
    """Give each deciding token a dimension of its own, and let nothing else in the model do anything."""
    parameters = dict(network.named_parameters())
    scale = HIDDEN**0.5  # a norm makes this of a dimension that is alone
    with torch.no_grad():
        for name, values in parameters.items():
            values.fill_(1.0 if "norm" in name else 0.0)
        embeddings, head = parameters["model.embed_tokens.weight"], parameters["lm_head.weight"]
        for place, (token, next_token) in enumerate(following.items()):
            embeddings[token, place] = 1.0
            head[next_token, place] = LOGIT / scale
        place = len(following)
        embeddings[judge, place] = 1.0
        head[:, place] = FLOOR / scale
        for letter, logit in zip(letters, (JUDGE_LOGIT, 0.0), strict=True):
            head[letter, place] = logit / scale


@dataclass(frozen=True)
class VllmServer:
    url: str

    @property
    def driver(self) -> str:
        """Its name for --driver and --judge."""
        return f"{MODEL}@{self.url}/v1"

    def read_token_totals(self) -> tuple[int, int]:
        """What vLLM itself has counted: tokens of prompts, and generated ones."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
        prompt, generated = (
            sum(round(float(line.rpartition(" ")[2])) for line in lines if line.startswith(f"{name}{{"))
            for name in names
        )
        return prompt, generated


@contextmanager
def serve_vllm(model: Path, folder: Path, *flags: str) -> Iterator[VllmServer]:
    """Start vLLM's server as docs/gateway.md says, and wait until it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(1 << 28)]
    log = folder / "vllm.log"
    # The sampler is compiled even so, and the machine may have no compiler.
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *flags], stdout=output, stderr=output, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(process, url, log)
        yield VllmServer(url)
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM did not start in time: {log.read_text(errors='replace')[-3000:]}")
