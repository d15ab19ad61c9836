"""The drawings of a generated schedule."""

import pytest

from debubble import build
from debubble.schedules.catalog import CATALOG
from drawn import draw, written


@pytest.fixture
def drawings():
    """Both drawings of a schedule: what its file shows, and what it is; the tests ask that they are the same."""

    def both(name, shape, backward=2):
        return written(CATALOG[name].build), draw(build(name, shape), backward)

    return both
