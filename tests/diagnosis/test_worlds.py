"""Random worlds with known faults: each is named with its size, and in a clean world nobody is blamed.

A world is simulated with durations that hold the faults, op by op, with noise; they must come out under their names.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from debubble import Observation, Rates, Shape, Timeline, Window, build, costs_of, lower, simulate
from debubble.core.costs import Costs
from debubble.diagnosis.diagnose import diagnose

MS = 1_000_000
SIZE = 0.03  # share by which the size of a fault may be off
BLAMED = {"slow rank", "straggler", "imbalance", "tail", "unexplained"}


@dataclass(frozen=True, slots=True)
class World:
    """What a world is made of: faults are (replica, rank, factor), (stage, factor), (step, replica, rank, factor)."""

    name: str
    shape: Shape
    replicas: int
    steps: int
    noise: float
    slow: tuple | None = None
    heavy: tuple | None = None
    straggler: tuple | None = None

    @property
    def chunks(self):
        return self.shape.chunks


def observed(world: World, rng) -> Observation:
    schedule = build(world.name, world.shape)
    program = lower(schedule)
    even = costs_of(Rates(forward=10 * MS, backward=20 * MS, transfer=0.3 * MS), schedule)
    home, table = schedule.placement[0], (4, schedule.stages, schedule.units)
    windows = []
    for step in range(world.steps):
        runs = []
        for replica in range(world.replicas):
            durations = np.broadcast_to(even.durations, table).astype(float).copy()
            if world.heavy is not None:
                durations[:, world.heavy[0]] *= world.heavy[1]
            if world.slow is not None and world.slow[0] == replica:
                durations[:, home == world.slow[1]] *= world.slow[2]
            if world.straggler is not None and world.straggler[:2] == (step, replica):
                durations[:, home == world.straggler[2]] *= world.straggler[3]
            durations *= 1 + world.noise * rng.uniform(-1, 1, table)
            runs.append(simulate(program, Costs(np.rint(durations).astype(np.int64), even.transfers.copy())))
        whole = max(run.makespan for run in runs) + 5 * MS
        for replica, run in enumerate(runs):
            windows.append(Window(step, replica, Timeline(program, run.start, run.end, "measured"), whole))
    return Observation("world", tuple(windows))


def drawn(rng, *, faults: bool) -> World:
    name = str(rng.choice(["1f1b", "interleaved", "zb-h1"]))
    ranks, replicas = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    microbatches, chunks = int(rng.integers(5, 33)), 1
    if name == "interleaved":
        microbatches, chunks = ranks * max(1, microbatches // ranks), 2
    steps = int(rng.integers(5, 11))

    def factor():
        return float(rng.uniform(1.15, 2))

    slow = heavy = straggler = None
    if faults and replicas > 1 and rng.random() < 0.7:
        slow = (int(rng.integers(replicas)), int(rng.integers(ranks)), factor())
    if faults and rng.random() < 0.7:
        heavy = (int(rng.integers(ranks * chunks)), factor())
    if faults and rng.random() < 0.7:
        straggler = (int(rng.integers(1, steps)), int(rng.integers(replicas)), int(rng.integers(ranks)), factor())
    noise = float(rng.uniform(0, 0.05)) if faults else 0.03
    return World(name, Shape(ranks, microbatches, chunks), replicas, steps, noise, slow, heavy, straggler)


@pytest.mark.parametrize("seed", range(30))
def test_each_fault_is_named_with_its_place_and_its_size_and_no_other_is(seed):
    rng = np.random.default_rng(seed)
    world = drawn(rng, faults=True)
    named = {"slow rank": [], "straggler": [], "imbalance": []}
    for each in diagnose(observed(world, rng)).findings:
        if each.cause in named:
            named[each.cause].append(each)
    if world.slow is not None:
        (found,) = named["slow rank"]
        assert (found.replica, found.rank) == world.slow[:2]
        assert found.size_ratio == pytest.approx(world.slow[2], rel=SIZE)
    if world.straggler is not None:
        (found,) = named["straggler"]
        assert (found.step, found.replica, found.rank) == world.straggler[:3]
        assert found.size_ratio == pytest.approx(world.straggler[3], rel=SIZE)
    if world.heavy is not None:
        (found,) = named["imbalance"]
        assert (found.stage, found.rank) == (world.heavy[0], world.heavy[0] % world.shape.ranks)
        assert found.size_ratio == pytest.approx(world.heavy[1], rel=SIZE)
        assert ("one replica cannot tell" in found.sentence) == (world.replicas == 1)
    expected = [world.slow, world.straggler, world.heavy]
    assert [len(each) for each in named.values()] == [int(fault is not None) for fault in expected]


@pytest.mark.parametrize("seed", range(50))
def test_in_a_clean_world_nobody_is_blamed(seed):
    rng = np.random.default_rng(1000 + seed)
    found = diagnose(observed(drawn(rng, faults=False), rng))
    assert not BLAMED & {each.cause for each in found.findings}


def test_a_slow_rank_of_a_single_replica_is_one_joint_finding():
    rng = np.random.default_rng(0)
    found = diagnose(observed(World("1f1b", Shape(4, 12), 1, 8, 0.02, slow=(0, 1, 1.3)), rng))
    (blamed,) = [each for each in found.findings if each.cause in BLAMED]
    assert (blamed.cause, blamed.rank, blamed.replica) == ("imbalance", 1, None)
    assert blamed.size_ratio == pytest.approx(1.3, rel=SIZE)
    assert "one replica cannot tell more layers from a slow GPU" in blamed.sentence


def test_a_whole_rank_that_is_slow_on_both_chunks_of_a_single_replica_is_named_as_a_rank():
    rng = np.random.default_rng(0)
    found = diagnose(observed(World("interleaved", Shape(4, 8, 2), 1, 8, 0.02, slow=(0, 2, 1.4)), rng))
    (blamed,) = [each for each in found.findings if each.cause in BLAMED]
    assert (blamed.rank, blamed.size_ratio) == (2, pytest.approx(1.4, rel=SIZE))
    assert "rank 2 works 1.40 times" in blamed.sentence


def test_a_tail_is_laid_to_the_slow_rank_or_to_longer_micro_batches():
    rng = np.random.default_rng(0)
    slow = World("1f1b", Shape(4, 12), 2, 8, 0.01, slow=(1, 1, 1.3))
    (tail,) = [each for each in diagnose(observed(slow, rng)).findings if each.cause == "tail"]
    assert tail.replica == 1
    assert tail.remedy == "see to rank 1 of replica 1: most of the tail is its"


def test_a_rank_that_is_slow_in_half_of_the_steps_is_not_said_to_be_so_in_some():
    """Of half and half, neither is what is usual."""
    rng = np.random.default_rng(0)
    windows = []
    for step in range(10):
        world = World("1f1b", Shape(4, 8), 1, 1, 0.01, straggler=(0, 0, 1, 1.5) if step % 2 else None)
        (window,) = observed(world, rng).windows
        windows.append(Window(step, 0, window.timeline, window.step_ns))
    found = diagnose(Observation("run", tuple(windows)))
    assert not {"straggler", "slow rank"} & {each.cause for each in found.findings}


def test_a_rank_that_is_slow_in_4_of_10_steps_is():
    rng = np.random.default_rng(0)
    windows = []
    for step in range(10):
        world = World("1f1b", Shape(4, 8), 1, 1, 0.01, straggler=(0, 0, 1, 1.5) if step % 3 == 0 else None)
        (window,) = observed(world, rng).windows
        windows.append(Window(step, 0, window.timeline, window.step_ns))
    (found,) = [e for e in diagnose(Observation("run", tuple(windows))).findings if e.cause == "slow rank"]
    assert "in step 0, 3, 6, 9 as in the other steps" in found.sentence
    assert (found.rank, found.step, found.size_ratio) == (1, None, pytest.approx(1.5, rel=SIZE))


@pytest.mark.parametrize(("noise", "named"), [(0.03, True), (0.3, False)])
def test_one_window_alone_names_a_heavy_stage_if_its_own_ops_are_steady_enough(noise, named):
    """20 % more than the others, in one window of 8 micro-batches."""
    rng = np.random.default_rng(3)
    found = diagnose(observed(World("1f1b", Shape(4, 8), 1, 1, noise, heavy=(1, 1.2)), rng))
    assert ("imbalance" in {each.cause for each in found.findings}) == named


def test_a_bad_step_of_one_replica_does_not_hide_the_slow_rank_of_the_other():
    """In one of three steps the other replica is slower still at the same place."""
    rng = np.random.default_rng(0)
    world = World("zb-h1", Shape(2, 8), 2, 4, 0.0, slow=(1, 0, 1.41), straggler=(2, 0, 0, 1.64))
    run = observed(world, rng)
    first, *others = run.windows
    found = diagnose(Observation("run", tuple(others))).findings
    assert (first.step, first.replica) == (0, 0)
    assert {(e.cause, e.replica, e.rank, e.step) for e in found if e.size_ratio is not None} == {
        ("slow rank", 1, 0, None),
        ("straggler", 0, 0, 2),
    }
