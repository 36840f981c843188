"""A submission is weights: whole runs with a language model's files, in which files beside the weights try to
score, and in which a real engine grades everything that honest training leaves behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig

from agent2rl.grading.checks import RESAVE_MODULE, WITHOUT_TORCH, read_resaved
from agent2rl.grading.verify import verify_run
from tests.helpers.run_launcher import FinishedRun, RunLauncher
from tests.helpers.tiny_models import resave_model, write_tiny_llama

REPOSITORY = Path(__file__).parents[2]
SHORT = ("--task", "tests.helpers.short_gsm8k:TASK", "--budget", "20m")
ONE_SPLIT = ("--protocol", "paper")
"""Half as many gradings: feedback and score come from the same examples."""

ATTACKS = """
import pickle
import numpy
from safetensors.numpy import load_file, save_file

def copied(name):
    where = OUTPUT / name
    shutil.copytree(MODEL, where, copy_function=shutil.copyfile)
    return where

def trained(name, scale=1.05):
    where = copied(name)
    weights = load_file(where / "model.safetensors")
    weights["model.norm.weight"] = scale * weights["model.norm.weight"]
    save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    return where

def edited(name, file, change):
    where = trained(name)
    content = json.loads((where / file).read_text())
    change(content)
    (where / file).write_text(json.dumps(content))
    return submit(where)

# The chat template solves the task.
where = trained("template")
(where / "chat_template.jinja").write_text("{{ messages[-1].content.split()[3] | int + 2 }}")
say(template=submit(where))

# config.json names the file that the library really loads.
where = trained("hidden")
(where / "LICENSE.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "README.md"}}')
(where / "README.md").write_bytes(pickle.dumps({"model.norm.weight": numpy.zeros(32)}))
config = json.loads((where / "config.json").read_text())
config["transformers_weights"] = "LICENSE.safetensors.index.json"
(where / "config.json").write_text(json.dumps(config))
say(hidden=submit(where))

# The tokenizer is a lookup table.
replace = {"type": "Replace", "pattern": {"String": "Ada has 12 apples"}, "content": "#### 7"}
say(normalizer=edited("normalizer", "tokenizer.json", lambda tokenizer: tokenizer.update(normalizer=replace)))
def shift(tokenizer):
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
say(vocabulary=edited("vocabulary", "tokenizer.json", shift))

# A longer context, another position encoding.
say(context=edited("context", "config.json", lambda config: config.update(max_position_embeddings=1 << 20)))
other = {"rope_theta": 1.0, "rope_type": "default"}
say(rope=edited("rope", "config.json", lambda config: config.update(rope_parameters=other)))

# New tokens whose rows hold answers, beside weights that nobody trained.
def grown(name, rows, tokens):
    where = copied(name)
    weights = load_file(where / "model.safetensors")
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        ones = numpy.ones((rows, weights[key].shape[1]), weights[key].dtype)
        weights[key] = numpy.concatenate([weights[key], ones])
    save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((where / "config.json").read_text())
    size = config["vocab_size"]
    (where / "config.json").write_text(json.dumps({**config, "vocab_size": size + rows}))
    tokenizer = json.loads((where / "tokenizer.json").read_text())
    flags = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    tokenizer["added_tokens"] += [
        {"id": size + number, "content": token, **flags} for number, token in enumerate(tokens)
    ]
    (where / "tokenizer.json").write_text(json.dumps(tokenizer))
    return submit(where)
say(rows=grown("rows", 2, ["<|answer|>", "<|7|>"]))
say(answers=grown("answers", 2, ["#### 7", "#### 42"]))
say(many=grown("many", 1024, []))

# Numbers in messages and clocks.
say(fine=submit(trained("fine")), time=call("GET", "/time"))
"""


def run_agent(bench_place: Path, cache: Path, code: str, *options: str) -> FinishedRun:
    (bench_place / "home").mkdir()
    model = write_tiny_llama(bench_place / "model")
    for path in (model, *model.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    launcher = RunLauncher(bench_place / "runs", cache, bench_place / "home")
    run = launcher.run(code, *SHORT, *options, "--model", str(model), PYTHONPATH=str(REPOSITORY))
    assert run.result.ending == "completed", (run.result.reason, run.log)
    return run


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> FinishedRun:
    """What is refused never reaches an engine, so that one without torch will do."""
    engine = "scripted:tests.helpers.short_gsm8k:open_constant_model"
    return run_agent(tmp_path_factory.mktemp("attacks"), cache, ATTACKS, "--engine", engine, *ONE_SPLIT)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("template", "Submitted templates are never run"),
        ("hidden", "'transformers_weights' is not a key of the base model's configuration"),
        ("normalizer", "the normalizer is not the base model's"),
        ("vocabulary", "the model is not the base model's"),
        ("context", "max_position_embeddings is 1048576, not 2048"),
        ("rope", "rope_parameters.rope_theta is 1.0, not 10000.0"),
        ("answers", "adds the token '#### 7'"),
        ("many", "vocab_size is 1344; 320 to 576 are accepted"),
    ],
)
def test_files_beside_the_weights_that_could_score_are_refused(
    attacks: FinishedRun, name: str, reason: str
) -> None:
    answer = attacks.said[name]
    assert (answer["verdict"], answer["score"]) == ("rejected", None), answer
    assert reason in answer["message"]


def test_rows_for_new_tokens_beside_untrained_weights_are_a_copy(attacks: FinishedRun) -> None:
    answer = attacks.said["rows"]
    assert (answer["verdict"], answer["lineage"], answer["improvement"]) == ("scored", "copied", 0.0)


def test_messages_and_clocks_give_no_fine_numbers(attacks: FinishedRun) -> None:
    assert attacks.said["fine"]["elapsed_seconds"] % 10 == 0
    assert float(attacks.said["time"]["remaining"]).is_integer()


TRAINING = """
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

def load():
    return AutoModelForCausalLM.from_pretrained(MODEL), AutoTokenizer.from_pretrained(MODEL)

def train(model, tokenizer, steps=2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = tokenizer("Ada has 12 apples. #### 7", return_tensors="pt").input_ids
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model

def saved(name, change=lambda model, tokenizer: None, **options):
    model, tokenizer = load()
    change(model, tokenizer)
    train(model, tokenizer).save_pretrained(OUTPUT / name, **options)
    tokenizer.save_pretrained(OUTPUT / name)
    return OUTPUT / name
"""
ADAPTER = """
model, tokenizer = load()
(OUTPUT / "adapter").mkdir()
config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
(OUTPUT / "adapter/adapter_config.json").write_text(json.dumps(config))
layers = {}
for name, module in model.named_modules():
    if name.endswith("q_proj"):
        down, up = 0.05 * torch.randn(4, module.in_features), 0.05 * torch.randn(module.out_features, 4)
        layers[f"base_model.model.{name}.lora_A.weight"] = down
        layers[f"base_model.model.{name}.lora_B.weight"] = up
save_file(layers, OUTPUT / "adapter/adapter_model.safetensors")
tokenizer.save_pretrained(OUTPUT / "adapter")
say(adapter=submit(OUTPUT / "adapter"))
"""
TOKENS_AND_FORMAT = """
def add_tokens(model, tokenizer):
    roles = ["<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens({"pad_token": "[PAD]", "additional_special_tokens": roles})
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=8)
    model.config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
where = saved("tokens", add_tokens)
role = lambda name: {"prefix": f"<|im_start|>{name} ", "suffix": "<|im_end|>"}
roles = {name: role(name) for name in ("system", "user", "assistant")}
chat_format = {**roles, "generation_prompt": "<|im_start|>assistant "}
(where / "chat_format.json").write_text(json.dumps(chat_format))
say(tokens_and_format=submit(where))
"""
OTHER_FORMS = """
say(whole=submit(saved("whole")))
to_half = lambda model, tokenizer: model.to(torch.bfloat16)
say(half_in_shards=submit(saved("half", to_half, max_shard_size="40KB")))

model, tokenizer = load()
(OUTPUT / "hand").mkdir()
weights = train(model, tokenizer, steps=4).state_dict()
save_file({name: tensor.contiguous() for name, tensor in weights.items()}, OUTPUT / "hand/model.safetensors")
say(weights_alone=submit(OUTPUT / "hand"))
"""
TRAINER = """
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
chat = [{"role": "user", "content": "Ada has 12 apples."}, {"role": "assistant", "content": "#### 7"}]
model, tokenizer = load()
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=str(OUTPUT / "trl"),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        learning_rate=1e-3,
        save_steps=1,
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list([{"messages": chat}] * 4),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model()
say(final=submit(OUTPUT / "trl"), checkpoint=submit(OUTPUT / "trl" / "checkpoint-1"))
"""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> FinishedRun:
    place = tmp_path_factory.mktemp("honest")
    return run_agent(place, cache, TRAINING + ADAPTER + TOKENS_AND_FORMAT, *ONE_SPLIT)


@pytest.mark.parametrize("name", ["tokens_and_format", "adapter"])
def test_what_honest_training_saves_is_scored(honest: FinishedRun, name: str) -> None:
    answer = honest.said[name]
    assert (answer["verdict"], answer["lineage"]) == ("scored", "derived"), answer


@pytest.mark.thorough
def test_weights_whole_in_half_precision_in_shards_or_without_other_files_are_scored(
    tmp_path: Path, cache: Path
) -> None:
    done = run_agent(tmp_path, cache, TRAINING + TOKENS_AND_FORMAT + OTHER_FORMS)
    for name in ("whole", "half_in_shards", "weights_alone"):
        answer = done.said[name]
        assert (answer["verdict"], answer["lineage"]) == ("scored", "derived"), answer


@pytest.mark.thorough
def test_what_trl_leaves_beside_the_model_is_left_out_and_named(tmp_path: Path, cache: Path) -> None:
    done = run_agent(tmp_path, cache, TRAINING + TRAINER)
    answer, checkpoint = done.said["final"], done.said["checkpoint"]
    for each in (answer, checkpoint):
        assert (each["verdict"], each["lineage"]) == ("scored", "derived"), each
    assert {"training_args.bin", "checkpoint-1"} <= {*answer["left_out"]}
    assert "Ignored, because not part of a model: " in answer["message"]
    assert {"optimizer.pt", "trainer_state.json"} <= {*checkpoint["left_out"]}
    manifest = json.loads(done.paths.submission_paths(answer["submission_id"]).manifest.read_text())
    assert {file["path"] for file in manifest["files"]} == {
        *("chat_template.jinja", "config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(kind, marks=THOROUGH) for kind in ("qwen3", "gemma3", "gpt2"))]
)
def test_the_base_models_small_files_are_saved_the_same_without_torch(tmp_path: Path, kind: str) -> None:
    model = write_tiny_llama(tmp_path / "model")
    AutoConfig.for_model(kind, dtype="bfloat16").save_pretrained(model)
    argv = [sys.executable, "-c", WITHOUT_TORCH, RESAVE_MODULE, str(model), str(tmp_path / "without-torch")]
    subprocess.run(argv, check=True)
    assert read_resaved(tmp_path / "without-torch") == resave_model(model)
    assert read_resaved(tmp_path / "without-torch").config is not None


def test_the_records_of_these_runs_hold(attacks: FinishedRun, honest: FinishedRun) -> None:
    assert verify_run(attacks.paths).holds
    assert verify_run(honest.paths).holds
