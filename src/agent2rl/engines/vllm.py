"""Runs a model directory with vLLM, on one GPU or several, in bfloat16.

Continuous integration has no GPU and does not run it: tests compare every name and parameter that is used
here with the sources of the pinned version, and test the rest of this module with a stand-in for vLLM.

Chats are rendered by the same killable template process as in `transformers`, and replies end at the same
tokens: generation_config.json is ignored. Nothing in the directory is executed. Conversations are sent in
full at each turn; vLLM's prefix cache processes only what is new. Replies may differ with the batch, by the
last bits of bfloat16. The GPU's memory is freed when the process ends.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agent2rl.core.engine import Chat, Completion, OpenEngine, Sampling
from agent2rl.core.errors import GradingError, MachineError, UserError

VERSION = "0.32.0"
try:
    import torch
    from transformers import AutoConfig
    from vllm import LLM, SamplingParams, TokensPrompt

    from agent2rl.engines.prompts import (
        PromptEncoder,
        build_loading_error,
        find_end_tokens,
        load_chat_format,
        load_tokenizer,
    )
except ImportError as error:
    raise UserError(
        f"vLLM cannot be imported: {error}.",
        f"Install it in its own environment: pip install vllm=={VERSION}. Or use transformers.",
    ) from error

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput
    from vllm.config import ModelConfig
    from vllm.logprobs import Logprob

MEMORY_SHARE = 0.9
"""Share of the free GPU memory to use: the agent may be training on the same GPU."""
NO_TEMPLATE = "{{ '' }}"
"""vLLM renders a template in its own process when it starts; it gets this one and not the submitted one."""


class VLLM:
    def __init__(self, llm: LLM, prompts: PromptEncoder, ends: frozenset[int]) -> None:
        self._llm: LLM = llm
        self._prompts = prompts
        self._ends = sorted(ends)

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        if sampling.max_tokens <= 0 or not chats:
            return [Completion("", tokens=0) for _ in chats]
        rows = self._prompts.select_encoder(sampling).encode_chats(chats)
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in rows]
        params = [self._build_sampling_params(sampling, index) for index in range(len(chats))]
        llm: LLM = self._llm
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [_build_completion(output, sampling) for output in outputs]

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        replies = [self._prompts.encode_text(text) for text in continuations]
        texts = [
            prompt + reply for prompt, reply in zip(self._prompts.encode_chats(chats), replies, strict=True)
        ]
        if any(len(text) >= self._prompts.context for text in texts):
            raise GradingError("A chat and the reply to be scored are longer than the model's context.")
        non_empty = [index for index, reply in enumerate(replies) if reply]
        sums = [0.0] * len(texts)
        if non_empty:
            llm: LLM = self._llm
            # vLLM must generate at least one token; only the prompt's log-probabilities are used.
            params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
            prompts = [TokensPrompt(prompt_token_ids=texts[index]) for index in non_empty]
            for index, output in zip(non_empty, llm.generate(prompts, params, use_tqdm=False), strict=True):
                sums[index] = _sum_logprobs(output, texts[index], len(replies[index]))
        return sums

    @property
    def templated(self) -> bool:
        return self._prompts.templated

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._prompts.close()

    def _build_sampling_params(self, sampling: Sampling, index: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=sampling.derive_seed(index),
            stop=[text for text in sampling.stop if text],
            # Else vLLM would take the end token from generation_config.json.
            ignore_eos=True,
            stop_token_ids=self._ends,
            skip_special_tokens=True,
        )


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


def gpus_to_use(heads: int, visible: int) -> int:
    """Return the largest power of two that divides the attention heads and fits the visible GPUs."""
    return max(1 << power for power in range(visible.bit_length()) if heads % (1 << power) == 0)


def open_engine(directory: Path) -> VLLM:
    visible = torch.cuda.device_count()
    if not visible:
        raise MachineError("vLLM needs a GPU, and none is visible.", "Use --engine transformers.")
    memory = [torch.cuda.mem_get_info(index) for index in range(visible)]
    tokenizer = load_tokenizer(directory)
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        words = config.get_text_config()
        llm: LLM = LLM(
            model=str(directory),
            tensor_parallel_size=gpus_to_use(words.num_attention_heads, visible),
            dtype="bfloat16",
            load_format="safetensors",
            trust_remote_code=False,
            enable_prefix_caching=True,
            gpu_memory_utilization=MEMORY_SHARE * min(free / total for free, total in memory),
            generation_config="vllm",
            chat_template=NO_TEMPLATE,
            seed=0,
        )
    except Exception as error:  # the library raises many kinds of errors for broken files
        raise build_loading_error("vLLM cannot load the model", error) from error
    settings: ModelConfig = llm.model_config
    prompts = PromptEncoder(tokenizer, words.vocab_size, settings.max_model_len, load_chat_format(directory))
    return VLLM(llm, prompts, find_end_tokens(words, tokenizer))


ENGINE: OpenEngine = open_engine
