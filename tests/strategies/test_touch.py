"""A rank that takes part in DDP's reduction without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from lightning_boa.strategies.touch import touch

pytestmark = pytest.mark.usefixtures("alone")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "small buckets": {"bucket_cap_mb": 1e-4},
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # DDP would leave its own behind
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Model(nn.Module):
    """Layers of several types, one frozen, one used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.last = nn.Linear(5, 2).double()
        self.again = self.last
        self.forwards = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.forwards += 1
        hidden = self.frozen(self.norm(self.first(rows)).relu())
        outputs: Tensor = self.last(hidden.double())
        return outputs


def rows(number: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(number))


def step(ddp: DistributedDataParallel, number: int) -> None:
    ddp(rows(number)).pow(2).sum().backward()


def gradients(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    return {
        name: each.grad.clone()
        for name, each in ddp.module.named_parameters()
        if each.grad is not None
    }


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_that_are_there_stay_bit_for_bit(options: dict[str, Any]) -> None:
    ddp = DistributedDataParallel(Model(), **options)
    for number in range(3):
        with ddp.no_sync():
            step(ddp, 2 * number)
            step(ddp, 2 * number + 1)
        before = gradients(ddp)
        assert len(before) == 6
        assert all(gradient.any() for gradient in before.values())
        touch(ddp).backward()
        assert same(gradients(ddp), before)
        ddp.zero_grad()


def test_a_ddp_that_moves_its_inputs_to_its_device_is_touched_as_well() -> None:
    ddp = DistributedDataParallel(Model())
    ddp.device_ids = [0]
    touch(ddp).backward()
    assert all(not gradient.any() for gradient in gradients(ddp).values())
    assert len(gradients(ddp)) == 6


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_that_are_missing_become_zeros(options: dict[str, Any]) -> None:
    ddp = DistributedDataParallel(Model(), **options)
    for _ in range(2):
        touch(ddp).backward()
        for parameter in ddp.module.parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None
                assert torch.equal(parameter.grad, torch.zeros_like(parameter))
                assert parameter.grad.stride() == parameter.stride()
        ddp.zero_grad()


def test_what_is_frozen_is_left_alone() -> None:
    ddp = DistributedDataParallel(Model())
    touch(ddp).backward()

    assert all(each.grad is None for each in ddp.module.frozen.parameters())


def test_parameters_and_buffers_stay_and_the_model_does_not_run() -> None:
    ddp = DistributedDataParallel(Model())
    before = {name: each.clone() for name, each in ddp.module.state_dict().items()}
    touch(ddp).backward()

    assert ddp.module.forwards == 0
    assert same(dict(ddp.module.state_dict()), before)


@pytest.mark.parametrize("views", [False, True])
def test_a_communication_hook_sees_every_gradient(views: bool) -> None:
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=1e-4, gradient_as_bucket_view=views)
    ddp.register_comm_hook(None, fp16_compress_hook)
    with ddp.no_sync():
        step(ddp, 0)
    before = gradients(ddp)
    touch(ddp).backward()

    rounded = {name: each.half().to(each.dtype) for name, each in before.items()}
    assert not same(rounded, before)
    assert same(gradients(ddp), rounded)


def test_the_next_steps_are_those_of_a_model_that_was_never_touched() -> None:
    touched, other = (DistributedDataParallel(Model(), bucket_cap_mb=1e-4) for _ in range(2))
    for number in range(3):
        touch(touched).backward()
        step(touched, number)
        step(other, number)
        assert same(gradients(touched), gradients(other))
        touched.zero_grad()
        other.zero_grad()


def test_what_a_module_does_before_and_after_its_forward_is_done() -> None:
    seen: list[str] = []
    model = Model()
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_forward_hook(lambda *_: seen.append("after"))
    touch(DistributedDataParallel(model)).backward()

    assert seen == ["before", "after"]


def test_the_forward_of_the_class_is_back() -> None:
    ddp = DistributedDataParallel(Model())
    touch(ddp)

    assert "forward" not in ddp.module.__dict__
    assert ddp(rows(0)).shape == (4, 2)
    assert ddp.module.forwards == 1


def test_a_forward_of_the_instance_is_back() -> None:
    """As torch.compile and Lightning set one."""
    ddp = DistributedDataParallel(Model())
    own = ddp.module.forward
    calls: list[int] = []

    def compiled(batch: Tensor) -> Any:
        calls.append(len(batch))
        return own(batch)

    ddp.module.forward = compiled
    touch(ddp).backward()
    assert ddp.module.__dict__["forward"] is compiled
    assert calls == []

    step(ddp, 0)
    assert calls == [4]


@pytest.mark.parametrize("is_own", [False, True])
def test_forward_is_back_where_ddp_fails(monkeypatch: pytest.MonkeyPatch, is_own: bool) -> None:
    ddp = DistributedDataParallel(Model())
    own = ddp.module.forward
    if is_own:
        ddp.module.forward = own

    def fail(*arguments: Any) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr(ddp, "_pre_forward", fail)
    with pytest.raises(RuntimeError, match="lost"):
        touch(ddp)
    assert ddp.module.__dict__.get("forward") is (own if is_own else None)


def test_a_window_goes_on_without_a_reduction() -> None:
    """Under no_sync a touch reduces nothing, as any other backward."""
    ddp = DistributedDataParallel(Model())
    reduced: list[int] = []

    def count(bucket: Any) -> Any:
        reduced.append(bucket.index())
        return fp16_compress_hook(dist.group.WORLD, bucket)

    ddp.register_comm_hook(None, lambda _, bucket: count(bucket))
    with ddp.no_sync():
        touch(ddp).backward()
    assert reduced == []
    touch(ddp).backward()
    assert reduced == [0, 1]
