"""The examples of ``on_step`` put into each tracker, offline, what ``watch`` prints of the same recording."""

import importlib.util
from pathlib import Path

import pytest

import debubble
from debubble.recorder.follow import follow

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own-job"
RECORDING = EXAMPLE / "recordings" / "m8"
WATCHED = [step.document() for step in debubble.watch(RECORDING)]


@pytest.fixture(scope="module")
def trackers():
    spec = importlib.util.spec_from_file_location("trackers", EXAMPLE / "trackers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def followed(on_step) -> None:
    """Call it as a recording does, from a thread, with each step of one that is finished."""
    said: list[str] = []
    follow(RECORDING, on_step, said.append)()
    assert said == []


def test_tensorboard_has_every_figure_of_every_step(trackers, tmp_path):
    pytest.importorskip("torch")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    followed(trackers.tensorboard(str(tmp_path)))
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    for name in trackers.FIGURES:
        found = [(each.step, each.value) for each in read.Scalars(f"pipeline/train/{name}")]
        assert found == [(step["step"], pytest.approx(step[name], rel=1e-5, abs=1e-7)) for step in WATCHED]


def test_wandb_has_the_last_figures_in_its_summary(trackers, tmp_path):
    library = pytest.importorskip("wandb")
    run = library.init(mode="offline", dir=tmp_path, settings=library.Settings(silent=True, console="off"))
    try:
        followed(trackers.wandb())
        for name in ("step", *trackers.FIGURES):
            assert run.summary[f"pipeline/{name}"] == WATCHED[-1][name]
    finally:
        run.finish()
        library.teardown()  # it reads its environment once in a process, which other tests set otherwise
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_opentelemetry_has_a_gauge_for_every_figure(trackers):
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    followed(trackers.opentelemetry(sdk.MeterProvider([reader])))
    (resource,) = reader.get_metrics_data().resource_metrics
    metrics = {metric.name: metric.data.data_points for metric in resource.scope_metrics[0].metrics}
    by_rank = {step["slowest_rank"]: step for step in WATCHED}  # a gauge keeps the latest of each set of attributes
    for name in trackers.FIGURES:
        found = {point.attributes["slowest_rank"]: point.value for point in metrics[f"pipeline.{name}"]}
        assert found == {rank: step[name] for rank, step in by_rank.items()}
