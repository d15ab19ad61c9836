"""One Chromium for all tests of the page."""

import pytest

from chromium import chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A window of Chromium."""
    with chromium(tmp_path_factory.mktemp("chromium")) as window:
        yield window
