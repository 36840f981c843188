"""How fast is grading? One run of each, side by side.

    python -m benchmarks.static_eval [--model DIRECTORY]     examples per second on CPU
    python -m benchmarks.static_eval --cuda                  share of the GPU's memory bandwidth

On CPU: gsm8k-mini's feedback split, greedy, by the engine and by what a user would write: `model.generate`
over fixed batches in data order, left-padded. Both must say the same. Without --model, a Llama of 3 million
parameters is trained for a minute first, so that its answers have the lengths that real answers have.

On CUDA: decoding moves memory. A step must at least read every weight once, and for each row the keys and
values of every token before it:

    bytes per step  =  weights  +  rows * tokens before * 2 * layers * key heads * head size * 2 bytes
    least seconds   =  bytes of all steps / 4.8e12 bytes per second     (H200, HBM3e, by its datasheet)
    share           =  least seconds / measured seconds of all steps, the reading of prompts taken off

Weights are all that a token passes through; an embedding table that is not the output layer too is left out:
a token reads one row of it. For example, the 0.5B shape has 0.99e9 bytes of weights and 12,288 bytes a token:
256 rows at 256 tokens are 0.81e9 bytes more, so a step takes 0.37 ms at least. The 7B shape has 14.1e9 bytes
and 57,344 a token: 3.76e9 more, 3.7 ms. Its arithmetic at 256 rows, 2 * 7.1e9 * 256 operations, takes
as long on this card (about 5 ms at 0.8e15 a second): larger batches are not bound by memory.

Measured, one run (H200, torch 2.11, transformers 5.17; the CPU part on two cores of that machine):

    0.5B    1 row        380 tokens/s    2.6 ms a step, least 0.21     8%
    0.5B   64 rows    16,200 tokens/s    4.0 ms a step, least 0.25     6%
    0.5B  256 rows    53,200 tokens/s    4.8 ms a step, least 0.37     8%
    7B      1 row        143 tokens/s    7.0 ms a step, least 2.95    42%
    7B     64 rows     7,500 tokens/s    8.5 ms a step, least 3.14    37%
    7B    256 rows    20,500 tokens/s   12.5 ms a step, least 3.73    30%

    CPU, examples/s: engine 76.4; model.generate 26.1 in batches of 8 (2.9x), 28.0 of 16 (2.7x),
    37.6 of 32 (2.0x), 50.0 of 64 (1.5x); all 150 answers the same

    CPU, up to 256 rows at once, two other x86-64 cores, the seedling after one epoch of SFT, one run:
    engine 57.7; model.generate 16.3 in batches of 16 (3.5x); all 150 answers the same

A profile of the 0.5B shape at 256 rows shows the card busy for about the length of the step with many kernels
of 2 to 8 microseconds, none of which has more than 15% of the time; fusing them has not been tried.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from agent2rl.core.engine import Sampling
from agent2rl.engines.transformers import TransformersEngine, measure_batch_limits
from agent2rl.engines.transformers.decoding import BatchDecoder, BatchLimits, GenerationRequest
from agent2rl.engines.transformers.loading import describe_model, load_model
from agent2rl.tasks.gsm8k import EVALUATOR
from agent2rl.tasks.gsm8k.mini import TASK

BANDWIDTH = 4.8e12
PROMPT, REPLY = 128, 256
SHAPES = {
    "0.5B": Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "7B": Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    ),
}
"""The shapes of Qwen2.5."""


def tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Two thousand byte pairs, single digits."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=["<end>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, eos_token="<end>", pad_token="<pad>"
    )


def train(directory: Path, texts: Sequence[str], seconds: float = 60) -> None:
    """A small model that has seen these texts for a minute."""
    tokens = tokenizer(texts)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        tie_word_embeddings=True,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
    )
    network = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    dice, begin = random.Random(0), time.monotonic()
    while time.monotonic() - begin < seconds:
        batch = tokens([text + "<end>" for text in dice.sample(texts, 16)], padding=True, return_tensors="pt")
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        network(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(directory)
    tokens.save_pretrained(directory)


def plain(model_dir: Path, prompts: Sequence[str], max_tokens: int, size: int) -> tuple[list[str], float]:
    """What a user would write, and its seconds."""
    tokens = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    network: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    answers, begin = [], time.perf_counter()
    for first in range(0, len(prompts), size):
        texts = list(prompts[first : first + size])
        batch = tokens(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        output = network.generate(**batch, max_new_tokens=max_tokens, do_sample=False)
        answers += tokens.batch_decode(output[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
    return answers, time.perf_counter() - begin


def on_cpu(model_dir: Path, sizes: Sequence[int]) -> None:
    model = load_model(model_dir)
    with TransformersEngine(model, measure_batch_limits(model)) as engine:
        sampling = EVALUATOR.prompt.sampling
        chats = [EVALUATOR.chat(one, templated=True) for one in TASK.load(None).feedback]
        prompts = engine.render(chats)
        engine.generate(chats[:2], Sampling(max_tokens=2))
        begin = time.perf_counter()
        answers = engine.generate(chats, sampling)
        seconds = time.perf_counter() - begin
    lengths = sorted(answer.tokens for answer in answers)
    print(f"{len(chats)} examples of {TASK.id}, {torch.get_num_threads()} threads")
    print(f"tokens per answer: median {lengths[len(lengths) // 2]}, most {lengths[-1]}")
    print(f"engine                     {len(chats) / seconds:7.1f} examples/s  {seconds:6.1f} s")
    for size in sizes:
        said, slow = plain(model_dir, prompts, sampling.max_tokens, size)
        same = sum(answer.text == text for answer, text in zip(answers, said, strict=True))
        rate = f"{len(chats) / slow:7.1f} examples/s  {slow:6.1f} s"
        print(
            f"model.generate, batch {size:3d}  {rate}  {slow / seconds:.1f}x  same answers: {same}",
            flush=True,
        )


def on_cuda(counts: Sequence[int]) -> None:
    torch.set_default_dtype(torch.bfloat16)
    for name, config in SHAPES.items():
        torch.manual_seed(0)
        with torch.device("cuda"):
            network = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
        model = replace(describe_model(network, tokenizer(["none"])), ends=frozenset())
        weights = sum(weight.numel() for weight in network.parameters())
        if not config.tie_word_embeddings:
            weights -= network.model.embed_tokens.weight.numel()
        for rows in counts:
            decoder = BatchDecoder(model, BatchLimits(rows, 1 << 40, 32768))
            _, reading, both = (cuda_seconds(decoder, rows, limit) for limit in (8, 1, REPLY))
            steps, seconds = REPLY - 1, both - reading
            seen = sum(range(PROMPT + 1, PROMPT + REPLY))
            least = (steps * weights * 2 + rows * seen * model.token_bytes) / BANDWIDTH
            print(f"{name:5s}{rows:4d} rows  read {rows * PROMPT / reading:9,.0f} tokens/s", end="  ")
            print(
                f"write {rows * steps / seconds:8,.0f} tokens/s  {seconds / steps * 1e3:5.2f} ms/step",
                end="  ",
            )
            print(f"least {least / steps * 1e3:4.2f} ms  share {least / seconds:.0%}", flush=True)
            decoder.forward.release_memory()
        del network, model, decoder
        torch.cuda.empty_cache()


def cuda_seconds(decoder: BatchDecoder, rows: int, limit: int) -> float:
    dice = random.Random(0)
    requests = [
        GenerationRequest([dice.randrange(2048) for _ in range(PROMPT)], str(row)) for row in range(rows)
    ]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    decoder.run(requests, Sampling(max_tokens=limit))
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--batch", type=int, nargs="*", help="rows: of generate's batches, or on the GPU")
    given = parser.parse_args()
    if given.cuda:
        on_cuda(given.batch or (1, 64, 256))
    elif given.model:
        on_cpu(given.model, given.batch or (16,))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            examples = TASK.load(None).train
            asked = [EVALUATOR.chat(one, templated=True)[0].content for one in examples]
            train(
                Path(scratch),
                [f"{text}\n{one.target}" for text, one in zip(asked, examples, strict=True)],
            )
            on_cpu(Path(scratch), given.batch or (16,))


if __name__ == "__main__":
    main()
