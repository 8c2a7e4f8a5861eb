"""pytorch_lightning and lightning.pytorch do not know each other's classes: one sentence for who mixes them.

A Trainer refuses a strategy of the other package before it asks it anything, since it is no instance of its own
abstract class `Strategy`. Our class is registered there as a virtual subclass, so that it is asked and can say what is
wrong. A Trainer does not look at callbacks.
"""

from __future__ import annotations

from typing import Any

import wrapt

from lightning_boa.errors import UnsupportedError

CLASSES_FOR = {
    "pytorch_lightning": "lightning_boa.for_pytorch_lightning",
    "lightning.pytorch": "lightning_boa.for_lightning",
}


def let_others_ask(strategy_class: type[Any]) -> None:
    """Let the Trainer of every other Lightning accept the class, so that `refuse_mix` is reached."""
    for package in CLASSES_FOR:
        if package != package_of(strategy_class):

            def accept(strategies: Any) -> None:
                strategies.Strategy.register(strategy_class)

            wrapt.register_post_import_hook(accept, f"{package}.strategies.strategy")


def refuse_mix(what: Any, beside: Any) -> None:
    """Refuse an object of ours whose Lightning is not that of the trainer, or of a part of it.

    Raises:
        UnsupportedError: where each comes from, and what to import instead.
    """
    wanted, found = package_of(type(beside)), package_of(type(what))
    if wanted is not None and found is not None and wanted != found:
        name = type(what).__name__
        raise UnsupportedError(
            f"Expected a {name} of {wanted}, where the Trainer comes from, got one of {found}. Import it with"
            f" `from {CLASSES_FOR[wanted]} import {name}`, or take the Trainer from {found}."
        )


def package_of(kind: type[Any]) -> str | None:
    """The Lightning that a class comes from, by the first of its bases that lies in one; None if there is none."""
    for base in kind.__mro__:
        for package in CLASSES_FOR:
            if f"{base.__module__}.".startswith(f"{package}."):
                return package
    return None
