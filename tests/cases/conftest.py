"""Cases distilled from public reports: inputs and expectations by id, from the shared folder."""

from typing import Any

import pytest
import yaml


@pytest.fixture(scope="session")
def cases(shared) -> dict[str, dict[str, Any]]:
    """Each case by its id."""
    found = yaml.safe_load((shared / "cases" / "user-cases.yaml").read_text())
    return {case["id"]: case for case in found}


@pytest.fixture
def near():
    """Compare as the case file asks: relative tolerance .005 unless it gives another."""

    def approximately(expected: Any, tol: float = 0.005) -> Any:
        return pytest.approx(expected, rel=tol)

    return approximately
