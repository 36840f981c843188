"""Whole runs in which the agent submits a LoRA adapter: it scores what the merged model scores."""

import json

import pytest

from agent2rl.grading.verify import verify_run
from tests.helpers.run_launcher import RunLauncher

ADAPT = """
import numpy
from safetensors.numpy import load_file, save_file

whole = trained("whole", problems=400)
before, after = (load_file(where / "model.safetensors") for where in (MODEL, whole))
change = after["head.weight"] - before["head.weight"]
left, lengths, right = numpy.linalg.svd(change, full_matrices=False)
rank = len(lengths)

def save_adapter(name, **settings):
    where = OUTPUT / name
    where.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["head"], **settings}
    (where / "adapter_config.json").write_text(json.dumps(config))
    layers = {
        "head.lora_A.weight": right,
        "head.lora_B.weight": left * lengths,
        "head.base_layer.bias": after["head.bias"],
    }
    layers = {f"base_model.model.{name}": numpy.ascontiguousarray(layer) for name, layer in layers.items()}
    save_file(layers, where / "adapter_model.safetensors")
    (where / "README.md").write_text("library_name: peft")
    return where

adapter = save_adapter("adapter", base_model_name_or_path="/workspace/elsewhere")
say(adapter=submit(adapter), again=submit(adapter), whole=submit(whole))
say(prompt=submit(save_adapter("prompt", peft_type="PROMPT_TUNING")))
"""


@pytest.mark.thorough
def test_an_adapter_scores_what_the_merged_model_scores(launcher: RunLauncher) -> None:
    run = launcher.run(ADAPT, "--budget", "20m")
    assert run.result.ending == "completed", (run.result.reason, run.log)
    adapter, whole = run.said["adapter"], run.said["whole"]
    assert adapter["verdict"] == "scored", adapter
    assert adapter["score"] > adapter["baseline_score"]
    for field in ("score", "ci", "improvement", "lineage"):
        assert adapter[field] == whole[field], field
    assert adapter["left_out"] == ["README.md"]
    assert run.said["again"]["score"] == adapter["score"]
    assert "Same files as submission 1" in run.said["again"]["message"]
    assert run.said["again"]["message"].count("README.md") == 1
    assert run.said["prompt"]["verdict"] == "rejected"
    assert "trains inputs of the model" in run.said["prompt"]["message"]

    first, third = (run.paths.submission_paths(number) for number in (1, 3))
    assert first.results_file("feedback").read_bytes() == third.results_file("feedback").read_bytes()
    kept = {path.name for path in first.model.iterdir()}
    assert kept == {"adapter_config.json", "adapter_model.safetensors"}
    assert run.result.best is not None
    assert run.result.best.id == 1
    assert run.result.heldout is not None
    assert first.results_file("heldout").exists()
    assert not run.paths.scratch.exists()
    assert json.loads(first.lineage.read_text())["tensors"]
    assert verify_run(run.paths).holds
