"""Tiny models with random weights, written as Hugging Face directories: real files, real tokenizer."""

import tempfile
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent2rl.engines.prompts.resave import resave
from agent2rl.grading.checks import ResavedBase, read_resaved

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOKENIZER_TEXT = (
    "Ada has 12 apples and gives 5 of them to Ben. How many apples are left? That leaves 7. #### 7",
    "A shop sells 3 boxes of pens. Each box holds 24 pens, and 30 are sold; so 42 pens remain.",
    "Look at the table: there is a mug, a plate and a lamp. Take the mug and put it in the sink.",
)
# On models so small, threads spend their time waiting for each other.
torch.set_num_threads(1)
VOCABULARY_SIZE = 320
"""Room for all 256 bytes, the special tokens and a few merges."""


def write_tiny_llama(directory: Path, seed: int = 0, chat_template: bool = True) -> Path:
    """A Llama of about 40,000 parameters with a byte-level tokenizer; the same bytes for the same seed."""
    tokenizer = make_tiny_tokenizer(chat_template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        # Wide enough that what the model says depends on what it reads.
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
        network.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def resave_model(model: Path) -> ResavedBase:
    """A model's small files as the library writes them."""
    with tempfile.TemporaryDirectory() as target:
        resave(model, Path(target))
        return read_resaved(Path(target))


def make_tiny_tokenizer(chat_template: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TOKENIZER_TEXT, trainer)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=special[3:],
    )
    if chat_template:
        fast.chat_template = CHAT_TEMPLATE
    return fast
