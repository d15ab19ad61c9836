"""Worlds whose truth is known, drawn by chance: schedule, places, windows, messages and clocks come back."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import pytest

from debubble.core.account import account
from debubble.diagnosis.causes import summarise
from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.order import recognise
from debubble.readers.source import read
from worlds import World, drawn, pour

NAMES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved": "interleaved", "zb": "zb-h1"}


def agrees(world: World, folder: Path) -> None:
    """Hold what is read against the truth."""
    truth = pour(world, folder)
    run = read([folder])
    lost = {number % world.data for number in world.missing}
    replicas = set(range(world.data)) - (lost if len(lost) < world.data else set())
    steps = {window.step for window in run.windows}
    _windows_agree(world, run, truth, replicas, steps)
    _clocks_agree(world, run, truth)
    assert run.matched_share == 1
    assert set(run.missing) == set(world.missing)
    assert bool(run.torn) == (bool(world.missing) and replicas == lost)
    alone = world.slow is not None and len(replicas) == 1  # then a slow rank is the same as a heavy stage
    if not run.torn and not alone:
        _faults_agree(world, run, sorted(replicas))


def _windows_agree(world, run, truth, replicas, steps):
    schedule = run.windows[0].timeline.program.schedule
    whole = not run.torn
    assert steps >= set(range(world.cut is not None, world.steps))
    assert len({window.replica for window in run.windows}) == len(replicas)
    assert schedule.microbatches == world.units
    assert schedule.ranks == world.ranks - (0 if whole else 1)
    assert schedule.stages == schedule.ranks * world.chunks
    if not whole:
        return
    assert recognise(schedule).name == NAMES[world.schedule]
    pairs = {(window.step, window.replica) for window in run.windows}
    numbers = dict(zip(sorted({q for _, q in pairs}), sorted(replicas), strict=True))
    for window in run.windows:
        length, share = truth.windows[window.step, numbers[window.replica]]
        measured = account(window.timeline)
        assert measured.idle_share == pytest.approx(share, abs=0.002)
        assert measured.window / 1e9 == pytest.approx(length, rel=0.01)


def _faults_agree(world, run, replicas):
    """Each fault that shows in a replica that is whole is named with its place and its size, and no other is."""
    number = dict(zip(replicas, sorted({window.replica for window in run.windows}), strict=True))
    slow = world.slow if world.slow is not None and world.slow[0] in number else None
    late = world.straggler if world.straggler is not None and world.straggler[1] in number else None
    heavy = max(range(len(world.scale)), key=world.scale.__getitem__) if set(world.scale) - {1.0} else None
    found = {"slow rank": [], "straggler": [], "imbalance": []}
    for each in diagnose(run).findings:
        if each.cause in found:
            found[each.cause].append(each)
    assert [len(some) for some in found.values()] == [slow is not None, late is not None, heavy is not None]
    for each in found["slow rank"]:
        assert (each.replica, each.rank, each.size_ratio) == (
            number[slow[0]],
            slow[1],
            pytest.approx(slow[2], rel=0.03),
        )
    for each in found["straggler"]:
        assert (each.step, each.replica, each.rank) == (late[0], number[late[1]], late[2])
        assert each.size_ratio == pytest.approx(late[3], rel=0.03)
    for each in found["imbalance"]:
        assert (each.stage, each.size_ratio) == (heavy, pytest.approx(world.scale[heavy], rel=0.03))


def _clocks_agree(world, run, truth):
    late = world.early
    for clock in run.clocks:
        if clock.offset_ns is None:
            assert world.missing or world.data > 1
            continue
        begun = 1e-6 * abs(truth.rate[clock.device]) * truth.window(set(range(world.steps)), set(range(world.data)))
        within = 50e-6 + late + (begun if world.cut is not None else 0.0)  # the part of a cut step counts or not
        assert clock.offset_ns / 1e9 == pytest.approx(truth.offset[clock.device], abs=within)
        span = world.steps * (world.gap + 3 * world.forward * world.units)
        assert clock.rate_ppm == pytest.approx(truth.rate[clock.device], abs=5 + 2e6 * late / span)
    if not world.offset and not world.drift:
        assert not any("clock" in remark or "disagree" in remark for remark in run.remarks)


@pytest.mark.parametrize("seed", range(30))
def test_worlds_by_chance_are_read_as_they_are(tmp_path, seed):
    agrees(drawn(seed), tmp_path)


NAMELESS = {
    "cut within a step": World(units=4, steps=6, noise=0.01, gap=20.0, labels=True, cut=(3, 0.41)),
    "cut, and steps counted from there": World(ranks=3, units=7, steps=6, schedule="gpipe", noise=0.05, cut=(2, 0.6)),
    "cut before its mark of a step": World(units=6, steps=5, noise=0.03, gap=20.0, cut=(1, 0.38)),
    "cut behind the launches of a step": World(units=6, steps=5, noise=0.03, cut=(1, 0.26)),
    "cut behind launches of chunks, and steps counted": World(
        "interleaved", 3, 3, chunks=3, steps=5, noise=0.05, gap=0.1, labels=True, cut=(0, 0.33)
    ),
    "cut, of replicas": World(ranks=3, units=5, data=2, steps=5, noise=0.03, labels=True, cut=(4, 0.5)),
}


@pytest.mark.parametrize("name", NAMELESS)
def test_ends_of_messages_that_name_nobody_tell_their_other_side(tmp_path, name):
    """Hosts whose clocks lie seconds apart and drift, and one file that begins within its first step."""
    world = NAMELESS[name]
    devices = range(world.ranks * world.data)
    offset = {i: (-1) ** i * (2.5 + i) for i in devices}
    drift = {i: (37 * i) % 100 - 50 for i in devices}
    marks = "optimizer" if "counted" in name else "profiler"
    agrees(replace(world, peers=False, offset=offset, drift=drift, marks=marks, seed=3), tmp_path)


# The worlds of another generator, beside this project, that shares no line with this one either.

OTHERS = {
    "offsets": "--offset 1=5,2=-9,3=2 --noise 0.03",
    "one far ahead": "--offset 1=40 --noise 0.03",
    "the first far ahead": "--offset 0=60 --noise 0.03",
    "seconds apart": "--offset 1=3200,2=-7100.5,3=20 --noise 0.03",
    "two replicas": "--data 2 --microbatches 8 --offset 1=37,2=-12.5,4=100,5=-40,6=7 --stage-scale 1,1,1,1.4 --hop 0.5",
    "eight ranks": "--ranks 8 --microbatches 16 --noise 0.02 --offset 3=7,5=-20",
    "chunks": "--schedule interleaved --chunks 2 --microbatches 8 --hop 0.4",
    "three chunks": "--schedule interleaved --chunks 3 --ranks 3 --microbatches 9 --hop 0.4 --noise .03 --offset 1=9",
    "named chunks": "--schedule interleaved --chunks 2 --microbatches 8 --hop 0.4 --labels",
    "split backward": "--schedule zb --noise 0.02",
    "named split backward": "--schedule zb --noise 0.02 --labels",
    "all faults": "--data 2 --stage-scale 1,1,1,1.4 --slow 1,1,1.3 --straggler 4,0,2,2 --noise .02 --hop .5",
    "early sends": "--skew 1 --hop 1.5 --offset 1=5,2=-9,3=2 --noise .03",
    "a slow link": "--link-hop 1=6",
    "hours": "--gap 3600000 --drift 1=80 --steps 4",
    "drift": "--drift 1=40,2=-25,3=10 --hop .3 --noise .03",
    "a rank is missing": "--missing 2",
    "a file is cut": "--cut 1=.4",
    "hours apart": "--offset 0=-7200000,1=3600000,2=12 --noise .03 --seed 4",
    "seconds, early sends and drift": "--data 2 --microbatches 8 --steps 6 --gap 30000 --hop 1.2 --skew .8 --noise .03 "
    "--offset 1=5000,2=-9000,4=777,7=-3 --drift 0=30,3=-90,5=60",
    "two micro-batches": "--microbatches 2 --offset 1=4000,2=-2500 --noise .03 --seed 8",
    "four chunks on two ranks": "--schedule interleaved --ranks 2 --chunks 4 --microbatches 8 --offset 1=3000",
    "chunks of replicas": "--schedule interleaved --ranks 6 --chunks 2 --microbatches 12 --data 2 --steps 4 --hop .5 "
    "--noise .02 --offset 3=1000,8=-2000,11=50",
    "chunks, as few micro-batches as ranks": "--schedule interleaved --chunks 2 --microbatches 4 --noise .02",
    "split backward of replicas": "--schedule zb --data 2 --microbatches 8 --skew .5 --hop .8 --offset 5=-4000",
    "split backward, a slow link": "--schedule zb --link-hop 2=4 --noise .02",
    "split backward, a file is cut": "--schedule zb --cut 2=.4 --noise .02",
    "one of two replicas is slow": "--data 2 --slow 1,1,1.3 --noise .02",
    "a replica's file is cut": "--data 2 --cut 5=.5 --noise .02 --offset 5=999",
}


@pytest.fixture(scope="module")
def other(shared):
    return generator(shared)


def generator(shared):
    """The generator beside this project."""
    path = shared / "worlds" / "kineto_worlds.py"
    spec = importlib.util.spec_from_file_location("other_worlds", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", OTHERS)
def test_worlds_of_another_generator_are_read_as_they_are(tmp_path, other, name):
    asked = other.parser().parse_args([str(tmp_path), *OTHERS[name].split()])
    truth = other.world(str(tmp_path), asked)
    run = read([tmp_path])
    found = summarise(run)
    schedule = found.window.timeline.program.schedule
    whole = not truth["missing"]
    shape = (schedule.ranks, schedule.stages // schedule.ranks, schedule.microbatches, found.replicas)
    assert shape == (truth["ranks"] - len(truth["missing"]), truth["chunks"], truth["microbatches"], truth["replicas"])
    assert (run.missing, run.torn) == (tuple(truth["missing"]), () if whole else (1, 3))
    assert recognise(schedule).name == NAMES[truth["schedule"]] or not whole
    kept = [each for each in truth["windows"] if each["step"] or not truth["cut"]]
    if whole:
        assert found.idle_share == pytest.approx(mean(each["idle_share"] for each in kept), abs=0.002)
    assert found.median_ns / 1e6 == pytest.approx(median(each["window_ms"] for each in kept), rel=0.01)
    assert run.matched_share == 1
    offset, drift = truth["offset_ms"], truth["drift_ppm"]
    for clock in run.clocks:
        if clock.offset_ns is not None:
            ahead = offset.get(clock.device, 0) - offset.get(0, 0)
            assert clock.offset_ns / 1e6 == pytest.approx(ahead, abs=0.05 + asked.skew)
            assert clock.rate_ppm == pytest.approx(drift.get(clock.device, 0) - drift.get(0, 0), abs=5)


def is_clean(other, folder, seed):
    """A world without a fault, noise 3 %: nothing is said of it but what its schedule and its hops cost."""
    asked = other.parser().parse_args(
        [str(folder), "--noise", "0.03", "--seed", str(seed), "--data", str(1 + seed % 3)]
    )
    other.world(str(folder), asked)
    run = read([folder])
    assert (run.remarks, run.torn, run.missing, run.matched_share) == ((), (), (), 1)
    assert {each.cause for each in diagnose(run).findings} <= {"schedule", "transfer", "outside"}


@pytest.mark.parametrize("seed", range(10))
def test_clean_worlds_have_no_fault(tmp_path, other, seed):
    is_clean(other, tmp_path, seed)
