"""The simulator of the page against the Python on the same vectors: to the nanosecond and the last bit of a share."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.costs import Costs, Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.lower import lower
from debubble.core.memory import peak_activations
from debubble.core.op import KINDS
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.core.units import percent
from debubble.diagnosis.simulated import simulated
from debubble.schedules.catalog import CATALOG, build
from node import ask

NAMES = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "looped-bfs", "interleaved-zb", "zb-h1", "zb-h2")
LOOPS = ("interleaved", "looped-bfs", "interleaved-zb")

WHAT_IF = "const r = whatIf(q); return r && [r.window, r.idleShare, r.bubbleRatio, r.peak];"


def numbers(schedule, costs: Costs) -> list[float]:
    spent = account(simulate(lower(schedule), costs))
    return [spent.window, spent.idle_share, spent.bubble_ratio, float(peak_activations(schedule).max())]


def question(rng, name: str) -> tuple[dict, list[float] | None]:
    """A random shape with random costs, and what the Python says; None where the schedule does not take the shape."""
    p, m, v = int(rng.integers(1, 9)), int(rng.integers(1, 25)), int(rng.integers(1, 5)) if name in LOOPS else 1
    m = m if name != "interleaved" or rng.random() < 0.2 else p * (1 + m // 6)
    table, hop = rng.integers(1, 10**9, (KINDS, p * v)), int(rng.integers(0, 10**8)) * int(rng.integers(0, 2))
    asked = {"schedule": name, "ranks": p, "microbatches": m, "chunks": v, "table": table.tolist(), "transfer": hop}
    try:
        schedule = build(name, Shape(p, m, v))
    except InputError:
        return asked, None
    return asked, numbers(schedule, Costs(table[:, :, None], np.full((KINDS, p * v, 1), hop)))


@pytest.mark.parametrize("name", NAMES)
def test_makespan_idle_share_bubble_ratio_and_peak_of_random_shapes_and_costs(name):
    rng = np.random.default_rng(7)
    asked, expected = zip(*(question(rng, name) for _ in range(150)), strict=True)
    assert list(ask(WHAT_IF, list(asked))) == list(expected)
    assert sum(numbers is not None for numbers in expected) > 50


def test_1f1b_of_4_ranks_and_8_microbatches_takes_33_ms_and_idles_3_elevenths():
    table = np.outer([1e6, 1e6, 1e6, 2e6], np.ones(4)).tolist()
    asked = {"schedule": "1f1b", "ranks": 4, "microbatches": 8, "table": table}
    [(window, idle, ratio, peak)] = ask(WHAT_IF, [asked])
    assert (window, peak) == (33_000_000, 4)
    assert (idle, ratio) == (pytest.approx(3 / 11), pytest.approx(3 / 8))


def small(name: str) -> Shape:
    return Shape(4, 8, CATALOG[name].chunks, 3 if name == "seq1f1b" else 1)


@cache
def base_of(name: str, **rates) -> tuple[dict, dict]:
    """The what-if data and the run of a page, and the expected numbers."""
    shown = simulated(build(name, small(name)), Rates(**rates))
    page = shown.html()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    return {"base": data["what_if"], "run": data["runs"][0]}, shown


@pytest.mark.parametrize("name", CATALOG)
def test_every_schedule_is_simulated_again_from_its_own_order_op_by_op(name):
    asked, shown = base_of(name, forward=1e6, backward=2e6, transfer=3e5)
    script = "const run = await unpack(q.run), order = orderOf(run), r = whatIf({...q.base, order});"
    script += "return [r.times.flat(), r.peak, order.map(row => row.length)];"
    [(times, peak, lengths)] = ask(script, [asked])
    timeline = shown.timeline
    ops = len(shown.order)
    expected = np.stack([timeline.start[:ops], timeline.end[:ops]], axis=1)
    assert lengths == np.diff(shown.order.offsets).tolist()
    np.testing.assert_array_equal(np.array(times), expected)
    assert peak == max(rank.peak_activations for rank in shown.per_rank)


@pytest.mark.parametrize("name", CATALOG)
def test_sliders_that_were_not_moved_show_the_schedule_as_it_is(name):
    asked, shown = base_of(name, forward=3e6, backward=7e6, transfer=1e5)
    script = """
        const run = await unpack(q.run), base = {...q.base, order: orderOf(run)};
        const own = !(base.schedule in BUILDERS), wish = {...base, schedule: own ? OWN : base.schedule, imbalance: 1};
        const then = whatIf(ask(base, wish)), same = compare(base, base, then, then);
        return [then.window, then.idleShare, same.speedup, same.perGpu, same.memory];
    """
    [answer] = ask(script, [asked])
    assert answer == [shown.account.window, shown.account.idle_share, 1, 1, 1]


def test_more_microbatches_on_more_ranks_with_chunks_equal_the_python_at_the_same_work():
    asked, _ = base_of("1f1b", forward=8e6, backward=16e6, transfer=1e6)
    wish = {
        "schedule": "interleaved",
        "microbatches": 24,
        "ranks": 8,
        "chunks": 2,
        "transfer": 1_000_000,
        "imbalance": 1,
    }
    script = "const then = whatIf(ask(q.base, q.wish)), now = whatIf(ask(q.base, {...q.base, imbalance: 1}));"
    script += "const c = compare(q.base, q.wish, then, now);"
    script += "return [c.window, c.idleShare, c.bubbleRatio, c.peak, c.speedup, c.perGpu, c.memory];"
    [(*same, speedup, per_gpu, memory)] = ask(script, [asked | {"wish": wish}])
    schedule = build("interleaved", Shape(8, 24, 2))
    expected = numbers(schedule, costs_of(Rates(forward=4e6, backward=8e6, transfer=1e6), schedule))
    assert same == expected
    before = simulated(build("1f1b", small("1f1b")), Rates(forward=8e6, backward=16e6, transfer=1e6)).account.window
    assert speedup == pytest.approx(before / 8 / (expected[0] / 24))
    assert per_gpu == pytest.approx(speedup / 2)
    assert memory == pytest.approx(expected[3] / 4 / 2)  # half as many layers on a rank


@pytest.mark.parametrize(
    ("hop", "says"),
    [
        (0, "No time passes, so samples per second cannot be compared"),
        (1_000_000, "1.00 times the samples per second of a GPU"),
    ],
)
def test_a_change_without_any_work_is_said_in_words(hop, says):
    base = {"schedule": "1f1b", "ranks": 2, "microbatches": 4, "table": [[0, 0]] * 4, "transfer": hop}
    script = "const now = whatIf(q), c = compare(q, q, now, now); return [now.window, now.idleShare, sentence(c)];"
    [(window, idle, sentence)] = ask(script, [base])
    schedule = build("1f1b", Shape(2, 4))
    spent = account(simulate(lower(schedule), costs_of(Rates(0, 0, transfer=hop), schedule)))
    assert (window, idle) == (spent.window, spent.idle_share)
    assert sentence.startswith(says)
    assert sentence.endswith(f"idle share 100.0 %, bubble ratio {percent(spent.bubble_ratio)}.")
    assert "none: no work" in sentence


@settings(max_examples=20, deadline=None)
@given(work=st.lists(st.integers(0, 10**9), min_size=1, max_size=12), stages=st.integers(1, 24), kept=st.floats(0, 1))
def test_cutting_anew_and_balancing_keep_the_work(work, stages, kept):
    [(cut, even)] = ask("return [recut(q[0], q[1]), balance(q[0], q[2])];", [[work, stages, kept]])
    assert len(cut) == stages
    assert sum(cut) == pytest.approx(sum(work), abs=stages)
    assert sum(even) == pytest.approx(sum(work), abs=len(work))
    assert max(even) - min(even) <= kept * (max(work) - min(work)) + 1


def test_ranks_that_wait_for_each_other_are_refused():
    order = [[[3, 0, 0]], [[0, 1, 0], [3, 1, 0]]]  # B of stage 0 before its F was run
    script = "try { simulate(q, 2, Array(4).fill([1, 1])); return 'ran'; } catch (error) { return error.message; }"
    assert ask(script, [order]) == ["ranks wait for each other for ever"]


@pytest.mark.parametrize(("x", "even"), [(0.5, 0), (1.5, 2), (2.5, 2), (2.4999, 2), (2.5001, 3)])
def test_rounding_is_half_to_even(x, even):
    assert ask("return roundEven(q);", [x]) == [even]
