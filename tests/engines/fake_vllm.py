"""A stand-in for the package vllm, which is not installed here: the few names that our engine uses.

It shows that our half of the engine works, and nothing of vLLM; that the names are vLLM's is for
`test_vllm` to hold against its sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypedDict

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


@dataclass
class SamplingParams:
    max_tokens: int
    temperature: float
    seed: int = 0
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    stop_token_ids: list[int] = field(default_factory=list)
    skip_special_tokens: bool = True
    detokenize: bool = True
    prompt_logprobs: int | None = None


class LLM:
    def __init__(self, model: str, **options: Any) -> None:
        self.options = options
        self.network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.model_config = SimpleNamespace(max_model_len=self.network.config.max_position_embeddings)

    def generate(
        self, prompts: Sequence[TokensPrompt], sampling_params: Any, *, use_tqdm: bool
    ) -> list[SimpleNamespace]:
        assert not use_tqdm
        one = isinstance(sampling_params, SamplingParams)
        each = [sampling_params] * len(prompts) if one else sampling_params
        return [
            self._answer(prompt["prompt_token_ids"], how) for prompt, how in zip(prompts, each, strict=True)
        ]

    @torch.inference_mode()
    def _answer(self, prompt: list[int], how: SamplingParams) -> SimpleNamespace:
        assert not any(stop == "" for stop in how.stop)
        assert len(prompt) < self.model_config.max_model_len
        dice = torch.Generator().manual_seed(how.seed)
        reply: list[int] = []
        text = ""
        while len(reply) < how.max_tokens and not any(stop in text for stop in how.stop):
            logits = self._logprobs(prompt + reply)[-1]
            if how.temperature:
                token = int(torch.multinomial((logits / how.temperature).softmax(-1), 1, generator=dice))
            else:
                token = int(logits.argmax())
            reply.append(token)
            if token in how.stop_token_ids:
                break
            text = self.tokenizer.decode(reply, skip_special_tokens=how.skip_special_tokens)
        completion = SimpleNamespace(text=text if how.detokenize else "", token_ids=reply)
        found = self._prompt_logprobs(prompt) if how.prompt_logprobs is not None else None
        return SimpleNamespace(outputs=[completion], prompt_logprobs=found)

    def _logprobs(self, ids: list[int]) -> Any:
        return self.network(torch.tensor([ids])).logits[0].log_softmax(-1)

    def _prompt_logprobs(self, ids: list[int]) -> list[dict[int, SimpleNamespace] | None]:
        rows = self._logprobs(ids)
        said = [
            {token: SimpleNamespace(logprob=float(rows[place][token]))} for place, token in enumerate(ids[1:])
        ]
        return [None, *said]
