"""A campaign's file: what it may say, and what is said of one that is wrong."""

import json
from collections.abc import Sequence

import pytest

from agent2rl.campaign.campaign_file import (
    Cell,
    compute_experiment_id,
    expand_cells,
    expand_experiments,
    make_run_arguments,
    parse_campaign,
)
from agent2rl.core.errors import UserError
from agent2rl.core.records import Budget, RequestedLimits, RunSpec

WHOLE = """
name = "whole"
[axes]
task = ["a", "b"]
agent = ["x", "y"]
driver = ["", "d"]
seed = [0, 1]
[settings]
budget = "4m"
no-report = true
quiet = false
tasks-dir = ["t", "u"]
[[exclude]]
agent = "x"
driver = "d"
[[exclude]]
task = ["a", "b"]
agent = "y"
seed = 1
[[override]]
where = { task = "b" }
set = { budget = "8m", max-usd = 5 }
"""


def test_every_combination_that_is_not_left_out_is_there_once() -> None:
    found = expand_cells(parse_campaign(WHOLE, "whole.toml"))
    assert len(found) == 2 * (2 + 2)
    assert {"task": "a", "agent": "x", "driver": "", "seed": 1} in found
    assert not any(cell["agent"] == "x" and cell["driver"] == "d" for cell in found)


def test_a_combination_is_what_one_would_type_after_agent2rl_run() -> None:
    campaign = parse_campaign(WHOLE, "whole.toml")
    cell: Cell = {"task": "b", "agent": "y", "driver": "d", "seed": 0}
    assert make_run_arguments(campaign, cell) == (
        *("--task=b", "--agent=y", "--driver=d", "--seed=0", "--budget=8m", "--no-report"),
        *("--tasks-dir=t", "--tasks-dir=u", "--max-usd=5"),
    )
    assert "--driver=" not in " ".join(make_run_arguments(campaign, {**cell, "driver": ""}))


def test_levels_of_expert_help_are_an_axis() -> None:
    text = 'name = "n"\n[axes]\ntask = ["alfworld-mini"]\nagent = ["x"]\nexpert = ["none", "96", "full"]'
    campaign = parse_campaign(text, "n.toml")
    assert [make_run_arguments(campaign, cell)[-1] for cell in expand_cells(campaign)] == [
        "--expert=none",
        "--expert=96",
        "--expert=full",
    ]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("name = 3", "name"),
        ('name = "n"', "axes: Field required"),
        ('name = "n"\n[axes]\ntask = ["a"]', "axes.agent: Field required"),
        ('nmae = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]', "name"),
        ('name = "n"\ncolour = 1\n[axes]\ntask = ["a"]\nagent = ["x"]', "Known keys: name, about, axes"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\nsize = [1]', "axes.size: there is no such key"),
        ('name = "n"\n[axes]\ntask = []\nagent = ["x"]', "axes.task"),
        ('name = "n"\n[axes]\ntask = ["a", "a"]\nagent = ["x"]', "is listed twice"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\nseed = ["0"]', "axes.seed.1"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[settings]\nseed = {a = 1}', "settings.seed"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[settings]\ntask = "b"', "is already an axis"),
        (
            'name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[settings]\njson = true',
            "is set by the campaign itself",
        ),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[resources]\nmemory = "4"', "not a valid size"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[resources]\ncpus = 0', "resources.cpus"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[[exclude]]\ntask = "c"', "not on the axis task"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[[exclude]]\nseed = 1', "no axis 'seed'"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[[exclude]]\ntsk = "a"', "exclude 1: tsk"),
        (
            'name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[[override]]\nwhere = {task = "b"}\nset = {}',
            "override 1: where",
        ),
        ("name =", "is not TOML"),
        ("name = " + "[" * 5000, "is not TOML"),
        ("name = " + "9" * 5000, "is not TOML"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[[exclude]]', "exclude 1: it has no value"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[[exclude]]\ntask = []', "it has no value"),
        ('name = "n"\n[axes]\ntask = ["a"]\nagent = ["x"]\n[resources]\ncpus = true', "resources.cpus"),
        ('name = "../n"\n[axes]\ntask = ["a"]\nagent = ["x"]', "name"),
    ],
)
def test_a_wrong_file_is_an_error_that_says_where(wrong: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_campaign(wrong, "wrong.toml")
    assert says in str(caught.value)
    assert "wrong.toml" in caught.value.message


def test_a_billion_combinations_are_refused_at_once() -> None:
    axis = json.dumps([f"v{number}" for number in range(1000)])
    text = f'name = "n"\n[axes]\ntask = {axis}\nagent = {axis}\nmodel = {axis}\n'
    with pytest.raises(UserError, match="1,000,000,000 combinations"):
        expand_cells(parse_campaign(text, "n"))


def spec(arguments: Sequence[str], gpus: bool) -> RunSpec:
    said = dict(each.removeprefix("--").partition("=")[::2] for each in arguments)
    if said["task"] == "bad":
        raise UserError("There is no task 'bad'.", "Known tasks: good.")
    return RunSpec(
        task=said["task"],
        agent=said["agent"],
        model="m",
        engine="vllm" if gpus else "transformers",
        seed=int(said.get("seed", 0)),
        budget=Budget(wall_seconds=60),
    )


def campaign(text: str) -> str:
    return f'name = "n"\n[axes]\n{text}'


def test_an_experiment_is_the_same_wherever_its_specification_is_made() -> None:
    one = spec(["--task=a", "--agent=x"], False)
    limits = RequestedLimits(memory_bytes=1)
    assert compute_experiment_id(one) == compute_experiment_id(one.model_copy(update={"limits": limits}))
    assert compute_experiment_id(one) == compute_experiment_id(
        RunSpec.model_validate_json(one.model_dump_json())
    )
    assert compute_experiment_id(one) != compute_experiment_id(one.model_copy(update={"seed": 1}))
    assert compute_experiment_id(one) != compute_experiment_id(one.model_copy(update={"clock": "training"}))
    whole = {"memory_bytes": 1, "disk_bytes": 2, "processes": 3}
    assert compute_experiment_id(one) == compute_experiment_id(
        RunSpec.model_validate({**one.model_dump(), "limits": whole})
    )


def test_gpus_under_resources_decide_the_engine_and_not_the_machine_that_plans() -> None:
    text = campaign('task = ["a"]\nagent = ["x"]')
    (without,) = expand_experiments(parse_campaign(text, "n"), spec)
    (with_one,) = expand_experiments(parse_campaign(text + "\n[resources]\ngpus = 1", "n"), spec)
    assert without.arguments[-1] == "--engine=transformers"
    assert with_one.arguments[-1] == "--engine=vllm"
    assert without.id != with_one.id


def test_an_error_of_run_says_which_combination_it_is_about() -> None:
    with pytest.raises(UserError, match="task=bad agent=x: There is no task 'bad'"):
        expand_experiments(parse_campaign(campaign('task = ["good", "bad"]\nagent = ["x"]'), "n"), spec)


def test_two_combinations_that_are_the_same_experiment_are_refused() -> None:
    text = campaign('task = ["a"]\nagent = ["x"]\nmode = ["free", "multi"]')
    with pytest.raises(UserError, match="are the same experiment"):
        expand_experiments(parse_campaign(text, "n"), spec)


def test_a_campaign_that_leaves_everything_out_is_refused() -> None:
    text = campaign('task = ["a"]\nagent = ["x"]\n[[exclude]]\ntask = "a"')
    with pytest.raises(UserError, match="nothing is left"):
        expand_experiments(parse_campaign(text, "n"), spec)


def test_a_run_whose_sandbox_was_chosen_is_the_same_experiment_as_with_the_former_default() -> None:
    spec = RunSpec(
        task="gsm8k-mini", agent="nop", model="abacus", engine="scripted", budget=Budget(wall_seconds=1)
    )
    chosen, other = (spec.model_copy(update={"sandbox": name}) for name in ("auto", "local"))
    assert compute_experiment_id(chosen) == compute_experiment_id(spec)
    assert compute_experiment_id(other) != compute_experiment_id(spec)
