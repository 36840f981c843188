"""Processes that train one model together."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.training import models
from agent2rl.training.data_parallel import DataParallelWorkers
from tests.helpers.tiny_models import write_tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    return models.load(write_tiny_llama(tmp_path / "base"))[0]


def gradient(model: PreTrainedModel) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def work(model: PreTrainedModel) -> dict[str, Any]:
    def loss(token: int) -> Tensor:
        logits: Tensor = model(input_ids=torch.tensor([[token, 5, 6]])).logits
        return logits[0, -1, 7]

    def refuse(_: object) -> None:
        raise UserError("Not today.")

    return {
        "loss": loss,
        "who": lambda job: (job, os.getpid()),
        "weight": lambda _: next(model.parameters()).detach().flatten()[0].item(),
        "refuse": refuse,
        "die": lambda caller: os.getpid() == caller or os._exit(1),
    }


@pytest.mark.parametrize("size", [2, 3])
def test_a_crew_has_the_gradient_of_one(model: PreTrainedModel, size: int) -> None:
    found = []
    for many in (1, size):
        with DataParallelWorkers(model, work(model), many) as crew:
            [loss] = crew.accumulate_gradients(
                "loss", [[10, 11, 12, 13, 14][place::many] for place in range(many)]
            )
        found.append((loss, gradient(model)))
        model.zero_grad()
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-4)


def test_gradients_of_one_call_are_not_left_for_the_next(model: PreTrainedModel) -> None:
    with DataParallelWorkers(model, work(model), 2) as crew:
        crew.accumulate_gradients("loss", [[10], [11]])
        first = gradient(model)
        model.zero_grad()
        crew.accumulate_gradients("loss", [[10], [11]])
        torch.testing.assert_close(gradient(model), first)
        model.zero_grad()
        assert crew.accumulate_gradients("loss", [[], []]) == [0]
        assert not gradient(model).any()


def test_jobs_come_back_in_order_and_from_all_members(model: PreTrainedModel) -> None:
    with DataParallelWorkers(model, work(model), 3) as crew:
        answers = crew.map_jobs("who", list(range(8)))
    assert [job for job, _ in answers] == list(range(8))
    assert len({process for _, process in answers}) == 3


def test_members_see_the_weights_as_they_are_trained(model: PreTrainedModel) -> None:
    with DataParallelWorkers(model, work(model), 2) as crew, torch.no_grad():
        next(model.parameters()).fill_(0.25)
        assert crew.map_jobs("weight", [0, 1]) == [0.25, 0.25]
    assert next(model.parameters()).flatten()[0] == 0.25


def test_a_fault_in_a_member_is_the_callers(model: PreTrainedModel) -> None:
    with pytest.raises(UserError, match="Not today"), DataParallelWorkers(model, work(model), 2) as crew:
        crew.map_jobs("refuse", [0, 1])


def test_a_member_that_dies_ends_the_training_with_a_reason(model: PreTrainedModel) -> None:
    with pytest.raises(Agent2RLError, match="has died"), DataParallelWorkers(model, work(model), 2) as crew:
        crew.map_jobs("die", [os.getpid()] * 2)


def test_nobody_is_left_behind_and_threads_are_as_before(model: PreTrainedModel) -> None:
    threads = torch.get_num_threads()
    with DataParallelWorkers(model, work(model), 3) as crew:
        processes = {process for _, process in crew.map_jobs("who", [0, 1, 2])} - {os.getpid()}
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_members_end_when_their_caller_is_killed(model: PreTrainedModel) -> None:
    read, write = os.pipe()
    caller = os.fork()
    if caller == 0:
        with DataParallelWorkers(model, work(model), 3) as crew:
            found = sorted({process for _, process in crew.map_jobs("who", [0, 1, 2])} - {os.getpid()})
            os.write(write, " ".join(map(str, found)).encode())
            time.sleep(60)
        os._exit(0)
    members = [int(process) for process in os.read(read, 100).split()]
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    until = time.monotonic() + 120
    while any(Path(f"/proc/{process}/cmdline").exists() and alive(process) for process in members):
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
