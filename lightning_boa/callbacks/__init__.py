"""The callback that feeds the planning loop."""

from __future__ import annotations

from lightning_boa.callbacks.boa_callback import BoaCallbackBehaviour

__all__ = ["BoaCallbackBehaviour"]
