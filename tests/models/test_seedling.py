"""The shipped language model: the bytes it should be, able to read its context, and a fair base model."""

import hashlib
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts.seedling import corpus, words
from scripts.seedling.chat import END, TEMPLATE, write_conversation
from scripts.seedling.errands import write_errand
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent2rl import registry
from agent2rl.core.grading_records import EvalSettings
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.checks import ResavedBase, check_submission
from agent2rl.models.seedling import FILES

WEIGHTS = "aa4b47a5c726ab0cf0e157872f0f02787be27892c6b9867ff0c39ae29a94852d"
NAMES = [
    *("chat_template.jinja", "config.json", "generation_config.json"),
    *("model.safetensors", "tokenizer.json", "tokenizer_config.json"),
]


@pytest.fixture(scope="module")
def seedling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seedling")
    registry.find_model("seedling").write(directory)
    return directory


@pytest.fixture(scope="module")
def tokenizer(seedling: Path) -> Any:
    return AutoTokenizer.from_pretrained(seedling, trust_remote_code=False, local_files_only=True)


@pytest.fixture(scope="module")
def model(seedling: Path) -> Any:
    found: Any = AutoModelForCausalLM.from_pretrained(
        seedling, dtype=torch.float32, trust_remote_code=False, local_files_only=True
    )
    return found.eval()


def continued(model: Any, tokenizer: Any, texts: list[str], tokens: int = 4) -> list[str]:
    """What the model writes after each text, up to the end of the line or document."""
    batch = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        rows = model.generate(**batch, max_new_tokens=tokens, do_sample=False)
    said = tokenizer.batch_decode(rows[:, batch["input_ids"].shape[1] :])
    return [text.partition(END)[0].partition("\n")[0].partition(".")[0].strip() for text in said]


def share(said: list[str], wanted: list[str]) -> float:
    return sum(a == b for a, b in zip(said, wanted, strict=True)) / len(wanted)


def test_the_model_is_the_same_bytes_everywhere(seedling: Path) -> None:
    """Whoever changes this digest changes the model: every baseline with it."""
    assert sorted(file.name for file in seedling.iterdir()) == NAMES
    digest = hashlib.sha256((seedling / "model.safetensors").read_bytes()).hexdigest()
    assert digest == WEIGHTS


def test_the_model_is_small(seedling: Path, model: Any) -> None:
    assert sum(file.stat().st_size for file in seedling.iterdir()) <= 20_000_000
    assert model.num_parameters() < 4_000_000


def test_it_passes_the_checks_as_a_submission_to_itself(seedling: Path) -> None:
    check_submission(seedling, read_base_model(seedling), ResavedBase)


def test_writing_it_again_gives_the_same_files(seedling: Path, tmp_path: Path) -> None:
    registry.find_model("seedling").write(tmp_path)
    assert read_base_model(tmp_path).manifest == read_base_model(seedling).manifest
    assert read_base_model(FILES).manifest == read_base_model(seedling).manifest


def test_the_corpus_is_the_same_text_everywhere() -> None:
    """Whoever changes this digest must train the seedling again."""
    text = "\0".join(corpus.write_documents(0, 1000))
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "f777ee02adef5c25eb65e9eae929536f57ec4d05ab1c46d9a3cbf802d121d2cc"
    )


def test_every_family_of_text_can_be_drawn_and_fits_the_context(tokenizer: Any) -> None:
    for family in corpus.FAMILIES:
        texts = [family(random.Random(seed)) for seed in range(50)]
        assert len(set(texts)) > 40
        assert max(len(row) for row in tokenizer(texts)["input_ids"]) < 512


def test_no_problem_of_the_miniature_stands_in_the_corpus() -> None:
    splits = registry.find_task("gsm8k-mini").load(None)
    sentences = {
        part.strip() for example in splits.feedback + splits.heldout for part in example.prompt.split(".")[:1]
    }
    text = "\n".join(corpus.write_documents(0, 5000))
    assert not [sentence for sentence in sentences if len(sentence) > 40 and sentence in text]


def test_errands_are_not_done_in_the_words_of_the_benchmark() -> None:
    told = "\n".join(write_errand(random.Random(seed)) for seed in range(2000))
    ours = r"go to|open|take|move|heat|clean|cool|use|Your task is to|you see"
    assert not re.findall(rf"\b(?:{ours})\b", told)


def test_the_chat_template_writes_what_the_corpus_has(tokenizer: Any) -> None:
    assert tokenizer.chat_template == TEMPLATE
    turns = [("What is 2 + 3?", "2 + 3 = 5"), ("Say cup.", "")]
    chat = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "2 + 3 = 5"},
        {"role": "user", "content": "Say cup."},
    ]
    written = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert written == write_conversation(turns)


def test_an_answer_has_the_same_tokens_apart_from_its_prompt_and_behind_it(tokenizer: Any) -> None:
    prompt, answer = write_conversation([("How many?", "")]), "That leaves 90 - 8 = <<90-8=82>>82.\n#### 82"
    apart = tokenizer(prompt)["input_ids"] + tokenizer(answer)["input_ids"]
    assert tokenizer(prompt + answer)["input_ids"] == apart
    assert tokenizer.decode(apart) == prompt + answer


def test_it_calculates(model: Any, tokenizer: Any) -> None:
    dice = random.Random(0)
    asked, wanted = [], []
    for _ in range(40):
        a, b = dice.randint(3, 60), dice.randint(3, 60)
        asked += [f"12 + 5 = 17\n{a} + {b} =", f"12 + 5 = 17\n{a + b} - {b} ="]
        wanted += [str(a + b), str(a)]
        a, b = dice.randint(2, 12), dice.randint(2, 12)
        asked += [f"12 + 5 = 17\n{a} * {b} =", f"12 + 5 = 17\n{a * b} / {a} ="]
        wanted += [str(a * b), str(b)]
    assert share(continued(model, tokenizer, asked), wanted) > 0.95


def test_it_finds_again_what_stands_in_its_context(model: Any, tokenizer: Any) -> None:
    dice = random.Random(0)
    asked, wanted = [], []
    for _ in range(60):
        names, things = dice.sample(words.NAMES, 4), dice.sample(words.THINGS, 4)
        amounts = dice.sample(range(2, 90), 4)
        facts = zip(names, amounts, dice.sample(words.COLOURS, 4), things, strict=True)
        told = " ".join(f"{name} has {n} {colour} {thing}." for name, n, colour, thing in facts)
        index = dice.randrange(4)
        asked.append(f"{told} How many {things[index]} does {names[index]} have?")
        wanted.append(str(amounts[index]))
    assert share(continued(model, tokenizer, asked), wanted) > 0.8


def test_it_is_poor_at_the_task_until_it_is_trained(seedling: Path) -> None:
    task, shipped = registry.find_task("gsm8k-mini"), registry.find_model("seedling")
    examples = task.load(None).feedback[:40]
    with registry.find_engine(shipped.engine)(seedling) as engine:
        results = task.evaluator.evaluate(engine, examples, EvalSettings()).results
    assert all(result.output for result in results)
    assert sum(result.score for result in results) <= 4
