"""LARS and LAMB, as the package pytorch_optimizer has them."""

from __future__ import annotations

from lightning_boa.errors import OptionError

try:
    from pytorch_optimizer import LARS, Lamb
except ModuleNotFoundError as error:
    raise OptionError(
        'optimizer: lars and lamb need pytorch_optimizer: pip install "lightning-boa[optimizers]".'
    ) from error

__all__ = ["LARS", "Lamb"]
