"""All gradients of a module as one vector on the host, and back."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_boa.errors import UnsupportedError


class FlatGradients:
    """The gradients of the parameters that are trained, followed by a number for each: above 0 where it has one.

    In float64 if one of the parameters is, else in float32.

    Args:
        parameters: of a module, in the same order on every rank.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._all = list(parameters)
        self._trained = _trained(self._all)
        is_double = any(each.dtype == torch.float64 for each in self._trained)
        self._kind = torch.float64 if is_double else torch.float32
        self._sizes = [each.numel() for each in self._trained]

    @property
    def empty(self) -> Tensor:
        """A vector of that length and type."""
        return torch.zeros(sum(self._sizes) + len(self._sizes), dtype=self._kind)

    @property
    def bytes(self) -> int:
        """Of all gradients."""
        return sum(each.numel() * each.element_size() for each in self._trained)

    def read(self, weight: float) -> Tensor:
        """The present gradients times a weight.

        Raises:
            UnsupportedError: other parameters are trained now than in the beginning.
        """
        if [id(each) for each in _trained(self._all)] != [id(each) for each in self._trained]:
            raise UnsupportedError(
                "Expected the same parameters to be trained from the first step to the last, got some that were frozen"
                ' or thawed since. Use strategy="boa", or freeze them before the training.'
            )
        gradients = [each.grad for each in self._trained]
        values = [
            torch.zeros(size, dtype=self._kind)
            if gradient is None
            else gradient.detach().to_dense().reshape(-1).to("cpu", self._kind) * weight
            for gradient, size in zip(gradients, self._sizes, strict=True)
        ]
        has_one = [float(gradient is not None) for gradient in gradients]
        return torch.cat([*values, torch.tensor(has_one, dtype=self._kind)])

    def write(self, update: Tensor) -> None:
        """Let a vector be the parameters' gradients; those that no rank has had have none."""
        sizes = [*self._sizes, len(self._sizes)]
        *values, have_one = torch.split_with_sizes(update, sizes)
        for parameter, value, has_one in zip(self._trained, values, have_one.tolist(), strict=True):
            parameter.grad = (
                value.reshape(parameter.shape).to(parameter, copy=True) if has_one else None
            )


def _trained(parameters: list[Parameter]) -> list[Parameter]:
    return [each for each in parameters if each.requires_grad]
