from __future__ import annotations

import pytest

from lightning_boa import errors


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("OptionError", (errors.BoaValueError, ValueError)),
        ("PlanError", (errors.BoaValueError, ValueError)),
        ("MeasurementError", (errors.BoaValueError, ValueError)),
        ("LoaderError", (errors.BoaValueError, ValueError)),
        ("AgreementError", (errors.BoaError, RuntimeError)),
        ("UnsupportedError", (errors.BoaError, RuntimeError)),
    ],
)
def test_every_error_is_of_boa_and_of_a_builtin_kind(name, bases):
    error = getattr(errors, name)
    assert issubclass(error, (errors.BoaError,))
    assert all(issubclass(error, base) for base in bases)
    assert name in errors.__doc__
