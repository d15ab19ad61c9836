"""``run --engine``: torch's fused and unbatched orders on real processes, over a link that is slow."""

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")

ASKED = ("--schedule", "1f1b", "-p", 4, "-m", 8, "--pace", "F=10ms,B=20ms", "--transfer", "2-3=15ms", "--steps", 3)


# Twice as long each, 930 and 1,090 ms: a batch of both directions is on the link once, and one by one they take turns.
@pytest.mark.parametrize(("engine", "predicted"), [("torch-1f1b", 465), ("torch", 545)])
def test_an_engines_posts_and_waits_take_as_long_as_predicted_and_train_the_same_model(
    engine, predicted, cli, tmp_path
):
    found = cli("run", *ASKED, "--engine", engine, "--check", "--out", tmp_path / "out", "--json")
    assert found.status == 0, found.err
    assert "predicted under" not in found.err
    assert found.json["executed_engine"] == engine
    assert found.json["gradient_error"] < 1e-6
    assert found.json["predicted_ms"] == predicted
    assert found.json["measured_ms"] >= 0.98 * predicted


def test_an_engine_that_cannot_be_executed_is_predicted_and_that_is_said(cli, tmp_path):
    small = ("--schedule", "1f1b", "-p", 2, "-m", 2, "--pace", "F=5ms,B=10ms", "--steps", 1, "--out", tmp_path / "o")
    found = cli("run", *small, "--engine", "torch:one-lane", "--json")
    assert found.json["executed_engine"] == "ideal"
    assert "predicted under torch:one-lane, executed by torch's runtime in our order" in found.err
    assert "take turns at both of their ranks" in found.err
