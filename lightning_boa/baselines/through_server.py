"""Strategies whose gradients go through a parameter server on rank 0, for whichever Lightning."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS
from typing_extensions import override

from lightning_boa.baselines.flat_gradients import FlatGradients
from lightning_boa.baselines.links import NEVER, Link, LocalLink, RemoteLink
from lightning_boa.baselines.rules import Gradient, Rule, Update
from lightning_boa.baselines.server import Server
from lightning_boa.data import is_stream
from lightning_boa.emulation import EmulatedClusterBehaviour, rows_of_batch
from lightning_boa.errors import OptionError, UnsupportedError
from lightning_boa.profiling import check_same
from lightning_boa.strategies import process_group, roll_call, trainer_seam
from lightning_boa.strategies.meeting_place import refuse_elsewhere
from lightning_boa.strategies.roll_call import RollCall
from lightning_boa.wrong_lightning import refuse_mix

if TYPE_CHECKING:
    from pytorch_lightning.strategies import DDPStrategy as _Base
else:
    _Base = object

GO_ON = "The last checkpoint goes on where it was saved (ckpt_path)."
ALIKE = ("max_epochs", "max_steps", "limit_train_batches", "val_check_interval", "precision")


class ThroughServerBehaviour(_Base):
    """Training step k of the trainer is update k of the weights, on every rank.

    Every rank applies each update itself, so weights, optimizer, schedules and checkpoints are the same on all ranks at
    the same step. A rank that is behind goes through the updates that it has missed without computing; its loss is zero
    there.
    """

    def __init__(self, **ddp_kwargs: Any) -> None:
        super().__init__(**ddp_kwargs)
        asked = [*_asked_of_ddp(self._ddp_kwargs)]
        if self._ddp_comm_hook is not None:
            asked.append("ddp_comm_hook")
        if asked:
            raise OptionError(
                f"{', '.join(asked)}: expected options of a strategy without DistributedDataParallel, which has no part"
                f" in {type(self).__name__}. Leave it out."
            )
        self._server: Server | None = None
        self._link: Link | None = None
        self._group: Any = None
        self._gradients: FlatGradients | None = None
        self._emulated: EmulatedClusterBehaviour | None = None
        self._roll_call: RollCall | None = None
        self._known: deque[Tensor] = deque()
        self._step = 0
        self._batch_rows = 0
        self._computes = True
        self._is_inside_step = False
        self._has_failed = False

    @property
    def updates(self) -> tuple[Update, ...]:
        """On rank 0: which gradients entered each of the latest updates."""
        return () if self._server is None else tuple(self._server.updates)

    @property
    def dropped(self) -> tuple[Gradient, ...]:
        """On rank 0: the latest gradients that came too late."""
        return () if self._server is None else tuple(self._server.dropped)

    @property
    def rows_of_pass(self) -> int | None:
        """0 in a step in which this rank computes nothing, else None; emulated devices ask for it."""
        return None if self._computes else 0

    @property
    def updates_per_step(self) -> int:
        """Updates in which a global batch is used."""
        return 1

    @property
    def emulated_step(self) -> int | None:
        """By which step emulated devices change, None for the trainer's own."""
        return None

    @abstractmethod
    def make_rule(self, workers: int) -> Rule:
        """Which gradients enter which update."""

    @abstractmethod
    def weight(self, rows: int) -> float:
        """What a gradient over so many rows counts in an update, which is a sum."""

    @override
    def set_world_ranks(self) -> None:
        refuse_mix(self, self.accelerator)
        super().set_world_ranks()
        refuse_elsewhere(self)

    @override
    def connect(self, model: Any) -> None:
        super().connect(model)
        trainer = model.trainer
        self._has_failed = False
        trainer_seam.divert_loaders(trainer, self._prepare_loader)
        trainer_seam.announce_loaders(trainer, self._refuse_several_loaders, lambda number: None)
        trainer_seam.stop_apart(trainer)

    @override
    def setup_environment(self) -> None:
        made_here = not dist.is_initialized()
        super().setup_environment()
        if made_here:
            process_group.leave_at_exit()
        if self._is_fit:
            self._refuse_what_is_not_supported()
            check_same(
                {
                    "strategy": type(self).__name__,
                    **self.facts,
                    **{name: getattr(self._trainer, name) for name in ALIKE},
                }
            )
            self._begin_roll_call()

    @property
    def facts(self) -> dict[str, Any]:
        """What all ranks must have in common."""
        return {}

    @override
    def configure_ddp(self) -> None:
        """The model stays as it is; all ranks begin with rank 0's."""
        assert self.model is not None
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if not self._is_fit:
            return
        for optimizer in self.optimizers:
            if isinstance(optimizer, LBFGS):
                raise UnsupportedError(
                    "Expected an optimizer that computes a step's gradient once, got LBFGS. Take another one, or"
                    ' strategy="boa".'
                )
        self._emulated = next(
            (each for each in trainer.callbacks if isinstance(each, EmulatedClusterBehaviour)), None
        )
        self._gradients = FlatGradients(self._module.parameters())
        self._known.clear()
        self._step = 0
        self._open_link(self._gradients.empty)

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        if trainer_seam.is_inside_epoch(self._trainer):
            raise UnsupportedError(
                f"Expected a checkpoint of an epoch's end under {type(self).__name__}, got one of its middle: which"
                ' rows of the epoch were used is not in it. Use strategy="boa", or a checkpoint of an epoch\'s end.'
            )
        check_same({"training batches of an epoch": self._trainer.num_training_batches})

    @override
    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._take_buffers_of_rank_0()

    @override
    def on_train_end(self) -> None:
        super().on_train_end()
        self._take_buffers_of_rank_0()

    def _take_buffers_of_rank_0(self) -> None:
        """BatchNorm's statistics, each rank's own in training, become those of a checkpoint."""
        for buffer in self._module.buffers():
            dist.broadcast(buffer, src=0)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._computes = self._is_to_compute(batch, is_first=batch_idx == 0)

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if not self._computes:
            return torch.zeros((), device=self.root_device, requires_grad=True)
        self._is_inside_step = True
        try:
            with self.precision_plugin.train_step_context():
                return self._forward_redirection(
                    self._module, self._module, "training_step", *args, **kwargs
                )
        finally:
            self._is_inside_step = False

    @override
    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], *args: Any, **kwargs: Any
    ) -> Any:
        through_server = partial(self._through_server, closure)
        return super().optimizer_step(optimizer, through_server, *args, **kwargs)

    @override
    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any | None = "mean") -> Any:
        self._refuse_inside_step("self.log(…, sync_dist=True)")
        return super().reduce(tensor, group, reduce_op)

    @override
    def all_gather(
        self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False
    ) -> Tensor:
        self._refuse_inside_step("self.all_gather")
        return super().all_gather(tensor, group, sync_grads)

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        if not self._has_failed:
            self._refuse_inside_step("a barrier")
            super().barrier(*args, **kwargs)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if self._has_failed:
            return obj
        self._refuse_inside_step("a broadcast")
        return super().broadcast(obj, src)

    @override
    def on_exception(self, exception: BaseException) -> None:
        process_group.do_not_leave()
        super().on_exception(exception)
        if self._roll_call is not None:
            self._roll_call.explain(exception, GO_ON)
        if self._link is not None and not self._has_failed:
            self._link.fail(exception)
        self._has_failed = True

    @override
    def teardown(self) -> None:
        if self._link is not None and self._has_failed:
            self._link.leave()
        elif self._link is not None:
            self._link.close()
            if self._group is not None:
                dist.destroy_process_group(self._group)
        self._link = self._group = None
        if self._roll_call is not None:
            self._roll_call.close()
            self._roll_call = None
        super().teardown()

    @property
    def _trainer(self) -> Any:
        return self._module.trainer

    @property
    def _module(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _is_fit(self) -> bool:
        return bool(self._trainer.state.fn.value == "fit")

    @property
    def _server_link(self) -> Link:
        assert self._link is not None
        return self._link

    @property
    def _is_behind(self) -> bool:
        """Whether this rank has updates to go through that have been made already."""
        return bool(self._known)

    def _open_link(self, example: Tensor) -> None:
        workers = self.world_size
        if workers > 1:
            self._group = dist.new_group(backend="gloo", timeout=NEVER)
        if self.global_rank == 0:
            patience = None if self._timeout is None else self._timeout.total_seconds()
            self._server = Server(self.make_rule(workers), workers, patience)
            self._link = LocalLink(self._server, self._group, example, workers)
        else:
            self._link = RemoteLink(self._group, example)

    def _begin_roll_call(self) -> None:
        assert self.cluster_environment is not None
        address = None if self.num_nodes == 1 else self.cluster_environment.main_address
        trainer = self._trainer
        self._roll_call = roll_call.begin(
            self.global_rank,
            self.world_size,
            lambda: f"after step {trainer.global_step}",
            self.broadcast,
            address,
        )

    def _refuse_what_is_not_supported(self) -> None:
        trainer, module = self._trainer, self._module
        wanted = {
            "automatic optimisation": module.automatic_optimization,
            "accumulate_grad_batches=1": trainer.accumulate_grad_batches == 1,
            "no SyncBatchNorm": self._layer_sync is None
            and not any(isinstance(each, nn.SyncBatchNorm) for each in module.modules()),
            "another precision than 16-mixed": getattr(self.precision_plugin, "scaler", None)
            is None,
        }
        for name, is_so in wanted.items():
            if not is_so:
                raise UnsupportedError(
                    f"Expected {name} under {type(self).__name__}, a baseline that supports no more."
                    ' Use strategy="boa" or "ddp".'
                )

    def _refuse_several_loaders(self, number: int) -> None:
        if number != 1:
            raise UnsupportedError(
                f"Expected a single training loader under {type(self).__name__}, got {number}. Use"
                ' strategy="boa" or "ddp".'
            )

    def _prepare_loader(self, loader: Any, stage: str) -> Any:
        if stage == trainer_seam.TRAIN and is_stream(loader):
            raise UnsupportedError(
                f"Expected a loader of a data set with numbered rows under {type(self).__name__}, got a stream. Use"
                ' strategy="boa" or "ddp".'
            )
        return None

    def _is_to_compute(self, batch: Any, *, is_first: bool) -> bool:
        """Every rank computes in the first step of an epoch, so that all have logged the same values at its end."""
        self._batch_rows = rows_of_batch(batch)
        return is_first or not self._is_behind

    def _through_server(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        assert self._gradients is not None
        if self._computes:
            values = self._gradients.read(self.weight(self._batch_rows))
            self._pass_transfer()
            self._known += self._server_link.push(self._step, self._batch_rows, values)
            self._pass_transfer()
        elif not self._is_behind:
            self._known += self._server_link.wait(self._step)
        self._gradients.write(self._known.popleft())
        self._step += 1
        return loss

    def _pass_transfer(self) -> None:
        if self._emulated is not None:
            assert self._gradients is not None
            self._emulated.transfer(self._gradients.bytes)

    def _refuse_inside_step(self, what: str) -> None:
        if self._is_inside_step:
            raise UnsupportedError(
                f"Expected no communication over ranks inside training_step under {type(self).__name__}, whose ranks"
                f" are in different steps, got {what}. Leave it out, or log with on_step=False."
            )


def _asked_of_ddp(options: Mapping[str, Any]) -> Iterator[str]:
    """The options that say something else than what DistributedDataParallel does by itself (LightningCLI gives all)."""
    defaults = signature(DistributedDataParallel.__init__).parameters
    for name, value in options.items():
        if name not in defaults or value != defaults[name].default:
            yield name
