"""The simulator of the page against the Python on the same vectors: to the nanosecond and the last bit of a share."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.costs import Costs, Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.lower import lower
from debubble.core.schedule import KINDS, Shape, peak_activations
from debubble.core.simulate import simulate
from debubble.core.units import percent
from debubble.diagnosis.replay import Replay, answers, slide
from debubble.diagnosis.simulated import simulated
from debubble.schedules.catalog import CATALOG, build
from debubble.verbs.measured import diagnose
from node import ask

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings"

NAMES = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "looped-bfs", "interleaved-zb", "zb-h1", "zb-h2")
LOOPS = ("interleaved", "looped-bfs", "interleaved-zb")

# Costs of which all units are alike, from a duration for each kind and stage, and one delay for every hop.
EVEN = """
    const spread = (line, m) => Float64Array.from(line.flatMap(each => Array(m).fill(each)));
    const even = ({ table, transfer = 0, microbatches: m }) => ({
        columns: m,
        durations: table.map(line => spread(line, m)),
        hops: table.map(line => spread(line.map(() => transfer), m)),
    });
"""
WHAT_IF = f"""{EVEN}
    const order = build(q.schedule, q.ranks, q.microbatches, q.chunks ?? 1);
    if (!order) return null;
    const r = whatIf({{ ...q, order, stages: q.table[0].length, costs: even(q) }});
    return [r.window, r.idleShare, r.bubbleRatio, r.peak];
"""


def numbers(schedule, costs: Costs) -> list[float]:
    spent = account(simulate(lower(schedule), costs))
    return [spent.window, spent.idle_share, spent.bubble_ratio, float(peak_activations(schedule).max())]


def question(rng, name: str) -> tuple[dict, list[float] | None]:
    """A random shape with random costs, and what the Python says; None where the schedule does not take the shape."""
    p, m, v = int(rng.integers(1, 9)), int(rng.integers(1, 25)), int(rng.integers(2, 5)) if name in LOOPS else 1
    m = m if name != "interleaved" or rng.random() < 0.2 else p * (1 + m // 6)
    table, hop = rng.integers(1, 10**9, (KINDS, p * v)), int(rng.integers(0, 10**8)) * int(rng.integers(0, 2))
    asked = {"schedule": name, "ranks": p, "microbatches": m, "chunks": v, "table": table.tolist(), "transfer": hop}
    try:
        schedule = CATALOG[name].build(Shape(p, m, v))  # one chunk is one chunk
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


def base_of(result) -> dict:
    """The what-if data of a result's page, and the run that it starts from."""
    data = json.loads(result.html().split('id="data">')[1].split("</script>")[0])
    return {"base": data["what_if"], "run": data["runs"][data["what_if"]["run"]]}


@cache
def shown(name: str, **rates):
    """A simulated schedule."""
    return simulated(build(name, small(name)), Rates(**rates))


@cache
def measured(name: str):
    """A recording of this repository, diagnosed."""
    return diagnose(RECORDINGS / name)


BASE = "const base = await baseOf(q.base, await unpack(q.run)), now = answerOf(base);"


@pytest.mark.parametrize("name", CATALOG)
def test_every_schedule_is_simulated_again_from_its_own_order_op_by_op(name):
    result = shown(name, forward=1e6, backward=2e6, transfer=3e5)
    script = f"{BASE} return [now.times.flat(), now.peak, base.order.map(row => row.length)];"
    [(times, peak, lengths)] = ask(script, [base_of(result)])
    timeline = result.timeline
    ops = len(result.order)
    expected = np.stack([timeline.start[:ops], timeline.end[:ops]], axis=1)
    assert lengths == np.diff(result.order.offsets).tolist()
    np.testing.assert_array_equal(np.array(times), expected)
    assert peak == max(rank.peak_activations for rank in result.per_rank)


@pytest.mark.parametrize("name", CATALOG)
def test_sliders_that_were_not_moved_show_the_schedule_as_it_is(name):
    result = shown(name, forward=3e6, backward=7e6, transfer=1e5)
    script = f"""{BASE}
        const asked = slide(base, {{ schedule: base.built.includes(base.schedule) ? base.schedule : OWN }});
        const then = answerOf(asked), same = compare(base, asked, then, now);
        return [then.window, then.idleShare, same.speedup, same.perGpu, same.memory];
    """
    [answer] = ask(script, [base_of(result)])
    assert answer == [result.account.window, result.account.idle_share, 1, 1, 1]


def test_more_microbatches_on_more_ranks_with_chunks_equal_the_python_at_the_same_work():
    result = shown("1f1b", forward=8e6, backward=16e6, transfer=1e6)
    script = f"""{BASE}
        const sizes = {{ microbatches: 24, ranks: 8, chunks: 2, transfer: 1000000 }};
        const asked = slide(base, {{ schedule: "interleaved", ...sizes }});
        const c = compare(base, asked, answerOf(asked), now);
        return [c.window, c.idleShare, c.bubbleRatio, c.peak, c.speedup, c.perGpu, c.memory];
    """
    [(*same, speedup, per_gpu, memory)] = ask(script, [base_of(result)])
    schedule = build("interleaved", Shape(8, 24, 2))
    expected = numbers(schedule, costs_of(Rates(forward=4e6, backward=8e6, transfer=1e6), schedule))
    assert same == expected
    assert speedup == pytest.approx(result.account.window / 8 / (expected[0] / 24))
    assert per_gpu == pytest.approx(speedup / 2)
    assert memory == pytest.approx(expected[3] / 4 / 2)  # half as many layers on a rank


RUNS = {
    "measured, 2 ranks": lambda: measured("four"),
    "measured, 4 ranks": lambda: measured("eight"),
    "a slow stage": lambda: shown("1f1b", forward=3e6, backward=7e6, transfer=1e5, stage_scale=(1, 1, 1.7, 1)),
    "unequal micro-batches": lambda: shown("gpipe", microbatch_scale=(1, 1, 2, 1, 1, 3, 1, 1), transfer=2e5),
    "stated halves": lambda: shown("1f1b", forward=3e6, input=4e6, weight=2e6),
    "split": lambda: shown("zb-h1", forward=3e6, input=4e6, weight=2e6, transfer=1e5),
    "pairs": lambda: shown("dualpipe-v", transfer=1e5, pair=2.5e6),
    "two copies": lambda: shown("chimera", stage_scale=(1, 1.3, 1, 1)),
    "a V": lambda: shown("zb-v", rank_scale=(1, 1.2, 1, 1)),
    "slices": lambda: shown("seq1f1b", transfer=1e5),
}


def wishes(rng, base: dict) -> list[dict]:
    """Where a person may move the sliders: schedules that the page builds for any sizes, others at the run's own."""
    drawn = []
    for name in base["built"]:
        for _ in range(4):
            chunks = int(rng.integers(1, 5)) if name in LOOPS else 1
            sizes = {"ranks": int(rng.integers(1, 9)), "microbatches": int(rng.integers(1, 25)), "chunks": chunks}
            drawn.append({"schedule": name, **(sizes if rng.random() < 0.8 else {"chunks": chunks})})
    drawn += [{"schedule": order["name"]} for order in base["orders"]]
    drawn += [{}] * 3
    for wish in drawn:
        if rng.random() < 0.5:
            wish["imbalance"] = float(rng.integers(0, 100)) / 100
        if rng.random() < 0.5:
            wish["transfer"] = int(rng.integers(0, 10**8))
    return drawn


def python_answer(replay: Replay, base: dict, wish: dict) -> list[float] | None:
    """What ``replay.slide`` says to the same wish."""
    given = {order["name"]: order for order in base["orders"]}
    asked = dict(wish)
    if (order := given.get(wish.get("schedule"))) is not None:
        asked |= {"schedule": order["catalog"], "chunks": order["chunks"]}
    changed = slide(replay, **asked)
    if changed is None:
        return None
    (answer,) = answers(replay, [changed])
    return [answer.makespan_ns, answer.idle_share, answer.peak_activations, answer.speedup, answer.activations_ratio]


@pytest.mark.parametrize("name", RUNS)
def test_sliders_say_what_the_edits_of_the_diagnosis_say(name):
    result = RUNS[name]()
    start = result.sliders
    page = base_of(result)
    asked = wishes(np.random.default_rng(11), page["base"])
    script = f"""{BASE}
        return q.wishes.map(wish => {{
            const asked = slide(base, wish);
            if (!asked) return null;
            const c = compare(base, asked, answerOf(asked), now);
            return [c.window, c.idleShare, c.peak, c.speedup, c.memory];
        }});
    """
    [found] = ask(script, [page | {"wishes": asked}])
    expected = [python_answer(start.replay, page["base"], wish) for wish in asked]
    assert [each is None for each in found] == [each is None for each in expected]
    assert sum(each is not None for each in found) >= (3 if name == "slices" else 10)  # no other order takes slices
    for wish, ours, theirs in zip(asked, found, expected, strict=True):
        assert ours is None or ours[:3] == theirs[:3], wish
        assert ours is None or ours[3:] == pytest.approx(theirs[3:], rel=1e-12), wish


def test_every_schedule_that_the_ranks_and_micro_batches_allow_is_offered():
    found = measured("eight")
    base = base_of(found)["base"]  # 1F1B on 4 ranks with 4 micro-batches
    offered = {*base["built"], *(order["catalog"] for order in base["orders"])}
    legal = set()
    for name in CATALOG:
        for chunks in (1, 2):
            with suppress(InputError):
                schedule = build(name, Shape(4, 4, chunks))
                if not schedule.forward_only and not schedule.same_order(found.timeline.program.schedule):
                    legal.add(name)
    assert legal <= offered
    assert {"zb-v", "v-half", "chimera", "hanayo"} <= {order["catalog"] for order in base["orders"]}


def test_the_page_says_of_a_change_what_the_verdict_says():
    found = measured("eight")
    first = found.what_if[0]
    page = base_of(found)
    names = [*page["base"]["built"], *(order["name"] for order in page["base"]["orders"])]
    script = f"""{BASE}
        return q.names.flatMap(schedule => [1, 2].map(chunks => slide(base, {{ schedule, chunks }})))
            .filter(Boolean).map(asked => compare(base, asked, answerOf(asked), now).speedup);
    """
    [speedups] = ask(script, [page | {"names": names}])
    alone = [each for each in found.what_if if each.change.split(" with ")[0] in CATALOG and " + " not in each.change]
    assert alone
    assert first.speedup >= max(each.speedup for each in alone)
    for each in alone:
        assert any(speedup == pytest.approx(each.speedup, rel=1e-12) for speedup in speedups), each.change


@pytest.mark.parametrize(
    ("hop", "says"),
    [
        (0, "No time passes, so samples per second cannot be compared"),
        (1_000_000, "1.00 times the samples per second of a GPU"),
    ],
)
def test_a_change_without_any_work_is_said_in_words(hop, says):
    result = simulated(build("1f1b", Shape(2, 4)), Rates(0, 0, transfer=hop))
    script = f"{BASE} return [now.window, now.idleShare, sentence(compare(base, base, now, now))];"
    [(window, idle, sentence)] = ask(script, [base_of(result)])
    spent = result.account
    assert (window, idle) == (spent.window, spent.idle_share)
    assert sentence.startswith(says)
    assert sentence.endswith(f"idle share 100.0 %, bubble ratio {percent(spent.bubble_ratio)}.")
    assert "none: no work" in sentence


@settings(max_examples=20)
@given(work=st.lists(st.integers(0, 10**9), min_size=1, max_size=12), ranks=st.integers(1, 24), left=st.floats(0, 1))
def test_cutting_anew_and_balancing_keep_the_work(work, ranks, left):
    script = """
        const linear = ranks => ({ stages: ranks, ranks, placement: [Array.from({ length: ranks }, (_, s) => s)] });
        const line = Float64Array.from(q.work), here = linear(q.work.length), there = linear(q.ranks);
        const order = q.work.map((_, s) => [[F, s, 0]]), zero = line.map(() => 0);
        const costs = { columns: 1, durations: [line, zero, zero, zero] };
        return [[...onStages(line, here, there, 1)], [...balanced({ order, stages: here.stages, costs }, q.left)[F]]];
    """
    [(cut, even)] = ask(script, [{"work": work, "ranks": ranks, "left": left}])
    assert len(cut) == ranks
    assert sum(cut) == pytest.approx(sum(work), abs=ranks)
    assert sum(even) == pytest.approx(sum(work), abs=len(work))
    assert max(even) - min(even) <= left * (max(work) - min(work)) + 1


def test_ranks_that_wait_for_each_other_are_refused():
    order = [[[3, 0, 0]], [[0, 1, 0], [3, 1, 0]]]  # B of stage 0 before its F was run
    script = "const costs = { columns: 1, durations: Array(4).fill([1, 1]), hops: Array(4).fill([0, 0]) };"
    script += "try { simulate(q, 2, costs); return 'ran'; } catch (error) { return error.message; }"
    assert ask(script, [order]) == ["ranks wait for each other for ever"]


@pytest.mark.parametrize(("x", "even"), [(0.5, 0), (1.5, 2), (2.5, 2), (2.4999, 2), (2.5001, 3)])
def test_rounding_is_half_to_even(x, even):
    assert ask("return roundEven(q);", [x]) == [even]
