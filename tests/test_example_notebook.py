"""The example notebook is executed from top to bottom, and says what it said when it was committed."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "the-bubble-in-a-notebook.ipynb"


def said(notebook) -> list[str]:
    """All text that the cells print and return."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.text if output.output_type == "stream" else output.data["text/plain"] for output in outputs]


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    """As committed, and as executed now."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):  # nothing is written at home
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        fresh = nbformat.read(NOTEBOOK, as_version=4)
        nbclient.NotebookClient(fresh, timeout=120, kernel_name="python3").execute()
    return nbformat.read(NOTEBOOK, as_version=4), fresh


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of Jupyter's own


def test_it_says_what_it_said_when_it_was_committed(notebooks):
    committed, fresh = notebooks
    assert said(fresh) == said(committed)


def test_a_timeline_comes_as_figure_and_as_page(notebooks):
    bundles = [output.data for cell in notebooks[1].cells for output in cell.get("outputs", []) if "data" in output]
    timeline = next(data for data in bundles if "image/svg+xml" in data)
    assert timeline["text/html"].startswith('<iframe sandbox="allow-scripts allow-downloads"')


def test_the_figure_is_committed_so_that_a_forge_shows_it(notebooks):
    bundles = [output.data for cell in notebooks[0].cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/svg+xml" in data and "text/html" not in data for data in bundles)
