"""The exceptions of lightning_boa.

BoaError
├── BoaValueError (ValueError)       the user's mistake
│   ├── OptionError                  an option of BoaStrategy or of the command line
│   ├── PlanError                    a batch size, bounds or granularity that no plan satisfies
│   ├── MeasurementError             times that are NaN, negative or zero, or too few sizes to fit
│   └── LoaderError                  a loader whose rows cannot be split exactly
├── AgreementError (RuntimeError)    ranks disagree; the message names them
└── UnsupportedError (RuntimeError)  something refused because its result would be wrong
"""

from __future__ import annotations


class BoaError(Exception):
    """Base of every exception that lightning_boa raises on purpose."""


class BoaValueError(BoaError, ValueError):
    """A value given by the user that cannot be used."""


class OptionError(BoaValueError):
    """An option is out of range or of the wrong kind; the message begins with its name."""


class PlanError(BoaValueError):
    """No plan satisfies the global batch size, the bounds and the granularity together."""


class MeasurementError(BoaValueError):
    """Measured times or sizes from which no time model can be made."""


class LoaderError(BoaValueError):
    """A data loader whose rows cannot be split exactly among the ranks."""


class AgreementError(BoaError, RuntimeError):
    """The ranks hold different plans, orders or settings; the message names the ranks."""


class UnsupportedError(BoaError, RuntimeError):
    """A combination that is refused because the training would be wrong."""
