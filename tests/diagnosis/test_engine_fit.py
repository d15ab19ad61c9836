"""Which engine a window fits: windows made by hand-known engines are told by their ops; real ones by what was read."""

import numpy as np
import pytest

import debubble
from debubble.core.costs import Costs
from debubble.core.errors import Refusal
from debubble.core.lower import lower
from debubble.core.observation import Observation, Window
from debubble.core.program import Timeline
from debubble.core.schedule import KINDS, Kind, Shape
from debubble.core.simulate import simulate
from debubble.diagnosis.replay import fit_engines, least_hops
from debubble.frameworks.engines import ENGINES, executing
from debubble.schedules.catalog import build

MS = 1_000_000


def measured(name: str, chunks: int, engine: str, seed: int = 0) -> Timeline:
    """A window as a trace shows it: ops that differ a little, 4 ms a hop, run by one engine, sends not seen."""
    schedule = build(name, Shape(4, 8, chunks))
    dice = np.random.default_rng(seed)
    spent = np.zeros((KINDS, schedule.stages, 8), np.int64)
    for kind, length in ((Kind.F, 10), (Kind.B, 20), (Kind.I, 10), (Kind.W, 10)):
        spent[kind] = (length * MS / chunks * dice.uniform(0.95, 1.05, spent[kind].shape)).astype(np.int64)
    ran = simulate(lower(schedule, ENGINES[engine]), Costs(spent, np.full_like(spent, 4 * MS)))
    ops = len(schedule)
    return Timeline(lower(schedule), ran.start[:ops].copy(), ran.end[:ops].copy(), "measured")


@pytest.mark.parametrize(
    ("name", "chunks", "engine"),
    [
        ("1f1b", 1, "ideal"),
        ("1f1b", 1, "megatron"),
        ("1f1b", 1, "deepspeed"),
        ("interleaved", 2, "megatron"),
        ("interleaved", 2, "megatron-overlap"),
        ("interleaved", 2, "torch:one-lane"),
        ("interleaved", 2, "torch"),
        ("zb-h1", 1, "zero-bubble"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_engine_that_ran_reproduces_its_window_best(name, chunks, engine, seed):
    fits = {fit.engine: fit for fit in fit_engines(measured(name, chunks, engine, seed))}
    least = min(fit.start_error_share for fit in fits.values())
    assert fits[engine].start_error_share == least < 1e-6
    assert fits[engine].resim_ratio == pytest.approx(1, abs=1e-6)


def test_engines_that_cannot_run_an_order_are_not_asked():
    names = {fit.engine for fit in fit_engines(measured("1f1b", 1, "megatron"))}
    assert "megatron-overlap" not in names
    assert {fit.engine for fit in fit_engines(measured("1f1b", 1, "megatron"), "megatron")} == {"megatron"}


def test_a_hop_is_the_least_that_was_seen_on_its_link():
    costs = least_hops(measured("1f1b", 1, "megatron"))
    assert (costs.transfers[Kind.F, 1:] == 4 * MS).all()
    assert (costs.transfers[Kind.B, :-1] == 4 * MS).all()
    assert not costs.transfers[Kind.F, 0].any()


def test_what_if_is_simulated_under_the_engine_that_fits_where_hops_matter():
    timeline = measured("1f1b", 1, "megatron")
    found = debubble.diagnose(Observation("x", (Window(0, 0, timeline),)))
    assert found.engine in ("megatron", "torch-1f1b")  # which differ by a lane that this order never needs
    assert found.resim_ratio_by_engine[found.engine] == pytest.approx(1, abs=1e-6)
    assert found.sliders is None
    assert "Simulated again under each engine" in str(found)
    (free,) = [change for change in found.what_if if change.change == "free transfers"]
    by_hand = simulate(
        lower(timeline.program.schedule), Costs(least_hops(timeline).durations, np.zeros((4, 4, 8), int))
    )
    assert free.makespan_ms == pytest.approx(by_hand.makespan / MS)


def test_small_hops_leave_the_plain_replay_and_an_engine_that_is_asked_for_is_used():
    timeline = measured("1f1b", 1, "ideal")
    quiet = simulate(lower(timeline.program.schedule), Costs(least_hops(timeline).durations, np.zeros((4, 4, 8), int)))
    run = Observation("x", (Window(0, 0, Timeline(quiet.program, quiet.start, quiet.end, "measured")),))
    assert debubble.diagnose(run).engine == "ideal"
    assert debubble.diagnose(run, engine="deepspeed").engine == "deepspeed"
    with pytest.raises(debubble.InputError, match="did you mean megatron"):
        debubble.diagnose(run, engine="megatrn")
    with pytest.raises(debubble.InputError, match="2 chunks a rank or more"):
        debubble.diagnose(run, engine="megatron-overlap")


def test_an_order_that_an_engine_cannot_run_is_executed_by_one_that_would_be_used_instead():
    overlap = ENGINES["megatron-overlap"]
    assert executing(build("interleaved", Shape(4, 8, 2)), overlap).engine == overlap
    assert executing(build("1f1b", Shape(4, 8)), overlap).engine.name == "megatron"
    with pytest.raises(Refusal):
        lower(build("zb-h2", Shape(4, 8)), ENGINES["megatron"])
    assert executing(build("zb-h2", Shape(4, 8)), ENGINES["megatron"]).engine.name == "torch"


def test_megatronapp_is_explained_by_megatrons_overlap_without_a_fitted_hop(shared):
    """Its interleaved order with overlap_p2p_comm: .995 of the window, where hops fitted one by one give .992."""
    found = debubble.diagnose(shared / "traces" / "megatronapp-pp")
    assert found.engine == "megatron-overlap"
    assert found.resim_ratio_by_engine["megatron-overlap"] == pytest.approx(0.995, abs=0.002)
    assert abs(found.resim_ratio_by_engine["megatron-overlap"] - 1) <= abs(found.resim_ratio - 1)
    best, *others = found.engine_fits
    assert best.engine == "megatron-overlap"
    assert all(other.start_error_share > 2 * best.start_error_share for other in others)


def test_why_compares_each_recording_under_the_engine_that_fits_it_as_diagnose_does():
    """A run that 1F1B without an engine explains, and one in which Megatron's sends keep both ranks."""
    runs = []
    for engine in ("ideal", "megatron"):
        timeline = measured("1f1b", 1, engine)
        runs.append(Observation(engine, (Window(0, 0, timeline, timeline.makespan),), samples=8))
    compared = debubble.why(*runs)
    for run, side in zip(runs, (compared.a, compared.b), strict=True):
        alone = debubble.diagnose(run)
        assert [(cause.cause, cause.cost_ms) for cause in side.causes] == [
            (cause.cause, cause.cost_ms) for cause in alone.causes
        ]
    assert "engine" not in [cause.cause for cause in compared.a.causes]
    (engine,) = [cause for cause in compared.b.causes if cause.cause == "engine"]
    assert engine.cost_ms > 0
