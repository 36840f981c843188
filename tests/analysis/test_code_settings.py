"""Hyperparameters and data, as the code that ran has them."""

from pydantic import JsonValue

from agent2rl.analysis import attempt_training
from agent2rl.analysis.attempts import AgentSourceFile
from agent2rl.analysis.findings import EvidenceBook
from tests.analysis.labelled_scripts import load_cases, make_span


def found(text: str, *commands: str, path: str = "code/train.py") -> dict[str, JsonValue]:
    span = make_span([AgentSourceFile(1, path, text)], commands or ["python code/train.py"])
    return {each.name: each.value for each in attempt_training.find_settings(span, EvidenceBook())}


def of(name: str) -> dict[str, JsonValue]:
    case = next(case for case in load_cases() if case.name == name)
    return {each.name: each.value for each in attempt_training.find_settings(case.span(), EvidenceBook())}


def test_what_a_trainer_is_given_has_its_usual_name() -> None:
    assert of("trl_grpo") == {
        "batch_size": 16,
        "beta": 0.02,
        "data": "data/train.jsonl",
        "group_size": 8,
        "learning_rate": 1e-6,
        "lora_alpha": 64,
        "lora_rank": 32,
        "max_tokens": 384,
        "steps": 300,
        "temperature": 0.9,
    }


def test_the_command_line_goes_before_a_default() -> None:
    case = next(case for case in load_cases() if case.name == "torch_sft")
    book = EvidenceBook()
    said = {each.name: each for each in attempt_training.find_settings(case.span(), book)}
    assert (said["learning_rate"].value, said["learning_rate"].source) == (3e-5, "command")
    assert (said["epochs"].value, said["epochs"].source) == (2, "code")
    assert (said["optimizer"].value, said["batch_size"].value) == ("AdamW", 4)
    cited = {piece.id: piece.where for piece in book.pieces}
    assert cited[said["epochs"].evidence[0]] == "revision 1, code/finetune.py:41"
    assert "process 100" in [cited[name] for name in said["learning_rate"].evidence]


def test_what_the_optimiser_has_counts_more_than_a_constant_of_that_name() -> None:
    text = "import torch\nLR = 1.0\nopt = torch.optim.SGD(net.parameters(), lr=LR / 100)\n"
    assert found(text) == {"learning_rate": 0.01, "optimizer": "SGD"}
    assert found("LR = 0.5\nEPOCHS = 3\n") == {"learning_rate": 0.5, "epochs": 3}


def test_what_is_not_reached_is_no_setting() -> None:
    text = "from trl import SFTConfig\ndef unused():\n    SFTConfig(learning_rate=1.0)\nEPOCHS = 2\n"
    assert found(text) == {"epochs": 2}


def test_a_multi_line_call_is_cited_by_the_line_of_the_keyword() -> None:
    text = "from trl import GRPOConfig\nGRPOConfig(\n    'output/x',\n    beta=0.1,\n)\n"
    book = EvidenceBook()
    span = make_span([AgentSourceFile(4, "code/train.py", text)], ["python code/train.py"])
    assert [each.name for each in attempt_training.find_settings(span, book)] == ["beta"]
    assert book.pieces[0].where == "revision 4, code/train.py:4"
    assert book.pieces[0].text == "beta=0.1,"


def test_configurations_of_tools_are_read() -> None:
    assert of("llamafactory_dpo")["learning_rate"] == 5e-6
    assert of("axolotl_sft")["lora_rank"] == 32
    assert of("verl_grpo") == {"batch_size": 256, "group_size": 8, "learning_rate": 1e-6, "temperature": 1.0}
    assert of("hydra_dispatch")["learning_rate"] == 1e-6


def test_each_of_two_stages_has_its_own() -> None:
    case = next(case for case in load_cases() if case.name == "shell_sft_grpo")
    rates = [
        each.value
        for each in attempt_training.find_settings(case.span(), EvidenceBook())
        if each.name == "learning_rate"
    ]
    assert sorted(map(str, rates)) == ["1e-05", "1e-06"]
