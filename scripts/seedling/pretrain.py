"""Pretrains the seedling: a few minutes on one GPU, from nothing but a seed.

    python -m scripts.seedling.pretrain --output DIR --minutes 4 --words FILES

`--words` keeps the vocabulary of an earlier version; without it, one is made from the text.

Text is made and tokenised by all cores first (`corpus`), then read again and again in blocks. Writes the
model in the Hugging Face format, its tokenizer, and `log.jsonl` with the settings and the course of the loss.
The same seed gives the same text and the same first weights; how much text is made, how many steps fit
into the minutes and the last digits of the arithmetic are the machine's, and so the trained weights are too.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from scripts.seedling import corpus
from scripts.seedling.chat import END, REPLY, TEMPLATE

VERSION = 4
VOCABULARY = 2048
PAD = "<|pad|>"
WORDS = Regex(r" ?[0-9]| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+")
"""Digits stand apart, so that arithmetic has columns; a word or sign takes the space before it along."""
CONTEXT = 512
BATCH = 256
PEAK, FLOOR, WARM_UP = 3e-3, 1e-4, 300
CHUNK = 5_000
"""Documents that one core makes at a time."""
SHARE_FOR_TEXT = 0.2
"""Of the minutes."""


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on the first documents."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END, REPLY],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(corpus.write_documents(seed * 10**9, 60_000), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        chat_template=TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2 * CONTEXT,
    )


def build_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2 * CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


def _tokenize_chunk(job: tuple[str, int]) -> NDArray[np.uint16]:
    """One chunk of documents as one row of tokens."""
    path, first = job
    bpe = Tokenizer.from_file(path)
    found: list[int] = []
    for encoding in bpe.encode_batch(list(corpus.write_documents(first, CHUNK))):
        found += [*encoding.ids, 1]
    return np.array(found, dtype=np.uint16)


def make_corpus_tokens(path: Path, seed: int, seconds: float) -> NDArray[np.uint16]:
    """As many tokens as all cores make in the time."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    until, rows = time.monotonic() + seconds, []
    jobs = ((str(path), seed * 10**9 + 10**6 + index * CHUNK) for index in range(10**5))
    with ProcessPoolExecutor() as pool:
        running = [pool.submit(_tokenize_chunk, next(jobs)) for _ in range(2 * (os.cpu_count() or 1))]
        while running:
            rows.append(running.pop(0).result())
            if time.monotonic() < until:
                running.append(pool.submit(_tokenize_chunk, next(jobs)))
    return np.concatenate(rows)


def sample_blocks(tokens: NDArray[np.uint16], seed: int) -> Iterator[torch.Tensor]:
    """Batches of windows at random places, for ever."""
    random = np.random.default_rng(seed)
    whole = torch.from_numpy(tokens.astype(np.int32)).cuda()
    within = torch.arange(CONTEXT, device="cuda")
    while True:
        starts = torch.from_numpy(random.integers(0, len(tokens) - CONTEXT, size=BATCH)).cuda()
        yield whole[starts[:, None] + within].long()


def compute_learning_rate(step: int, done: float) -> float:
    """Warm-up by steps, then a cosine over the time."""
    warm = min(1.0, (step + 1) / WARM_UP)
    return warm * (FLOOR + (PEAK - FLOOR) * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def train_model(model: PreTrainedModel, batches: Iterator[torch.Tensor], seconds: float, log: TextIO) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    compiled = torch.compile(model)
    begin, step = time.monotonic(), 0
    while (done := (time.monotonic() - begin) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = compute_learning_rate(step, done)
        batch = next(batches)
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 200 == 0:
            spent = time.monotonic() - begin
            note = {"step": step, "loss": round(loss.item(), 4), "seconds": round(spent, 1)}
            note["tokens_per_second"] = int(step * BATCH * CONTEXT / spent)
            print(json.dumps(note), flush=True)
            log.write(json.dumps(note) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--words", type=Path, help="a directory with a tokenizer to keep")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    output, seed, seconds = arguments.output, arguments.seed, 60 * arguments.minutes
    output.mkdir(parents=True)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    words = AutoTokenizer.from_pretrained(arguments.words) if arguments.words else train_tokenizer(seed)
    words.save_pretrained(output)
    tokens = make_corpus_tokens(output / "tokenizer.json", seed, SHARE_FOR_TEXT * seconds)
    model = AutoModelForCausalLM.from_config(build_config()).to("cuda")  # type: ignore[no-untyped-call]
    with (output / "log.jsonl").open("w", encoding="utf-8") as log:
        settings = {"version": VERSION, "seed": seed, "minutes": arguments.minutes, "tokens": len(tokens)}
        settings |= {"parameters": model.num_parameters(), "context": CONTEXT, "batch": BATCH, "peak": PEAK}
        print(json.dumps(settings), flush=True)
        log.write(json.dumps(settings) + "\n")
        train_model(model, sample_blocks(tokens, seed), (1 - SHARE_FOR_TEXT) * seconds, log)
    model.to(torch.bfloat16).save_pretrained(output)


if __name__ == "__main__":
    main()
