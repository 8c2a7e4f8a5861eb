"""The strategy's behaviour, without any import of Lightning."""

from __future__ import annotations

from lightning_boa.strategies.behaviour import BoaBehaviour
from lightning_boa.strategies.hand_back import HandsBackResults

__all__ = ["BoaBehaviour", "HandsBackResults"]
