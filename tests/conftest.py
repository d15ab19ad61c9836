"""What several tests need: the folder of third-party data, where it is there."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Nothing here goes by the clock: on a loaded machine an example may take any time.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of third-party data beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("no shared data")
    return folder


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command line did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object that ``--json`` prints."""
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run ``debubble`` in this process: ``cli("show", "1f1b", "-p", 4, "-m", 8).status``."""
    from debubble.cli.main import main

    def run(*args: object) -> Ran:
        capsys.readouterr()
        status = main([str(arg) for arg in args])
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def published(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published tables of runs, in the form that ``validate`` reads: a folder with a CSV for each set."""
    tool = Path(__file__).resolve().parents[1] / "benchmarks" / "planner" / "published.py"
    folder = tmp_path_factory.mktemp("published")
    source = shared / "data" / "throughput"
    subprocess.run([sys.executable, tool, source, "--out", folder], check=True, capture_output=True)
    return folder
