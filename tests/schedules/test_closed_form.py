"""Closed forms against simulation, over random shapes and costs; and that they stand nowhere else."""

import ast
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import debubble
from debubble import InputError, Rates, Shape, account, build, costs_of, lower, lower_bound, peak_activations, simulate
from debubble.core.bounds import counted_bound
from debubble.diagnosis.order import halved
from debubble.schedules.catalog import CATALOG, GENERATED
from debubble.schedules.closed_form import (
    Even,
    activations,
    bubble_ratio,
    bubble_slots,
    closed_form,
    enough,
    even,
    idle_share,
    idle_time,
    idle_times,
    least_idle,
    least_microbatches,
    least_ratio,
    ratio_of_any_costs,
    takes,
)

UNIT = 27_720  # nanoseconds: divides by every number of chunks and slices below


@cache
def built(name, shape):
    """The schedule of a shape, lowered; None where there is none."""
    try:
        return lower(build(name, shape))
    except InputError:
        return None


@st.composite
def shapes(draw):
    """The sizes that formulas speak of are rare among random ones: a multiple of p, a few more than 2p."""
    p = draw(st.integers(1, 9))
    m = draw(st.one_of(st.integers(1, 26), st.sampled_from([p, 2 * p, 3 * p, 2 * p - 1])))
    return Shape(p, m, draw(st.sampled_from([1, 2, 3, 4])))


@st.composite
def times(draw):
    """F, I, W as whole units; often related in the ways that formulas ask for."""
    f, i, w = (draw(st.integers(1, 30)) for _ in range(3))
    small, middle, large = sorted((f, i, w))
    ways = [(f, i, w), (f, f, f), (middle, large, small), (large, middle, small), (i + w, i, w), (f + i, 0, f + i)]
    return tuple(UNIT * time for time in draw(st.sampled_from(ways)))


def sliced(name, shape, slices):
    return Shape(shape.ranks, shape.microbatches, shape.chunks, slices if name == "seq1f1b" else 1)


@given(st.sampled_from(GENERATED), shapes(), st.integers(1, 4), times(), st.sampled_from([None, 0.5, 0.75, 1.0]))
@settings(max_examples=600, deadline=None)
def test_a_formula_that_holds_is_what_simulation_finds(name, shape, slices, costs, saved):
    entry, (f, i, w) = CATALOG[name], costs
    shape = entry.shape(sliced(name, shape, slices))
    program = built(name, shape)
    assume(program is not None)
    rates = Rates(f, input=i, weight=w, pair=None if saved is None else saved * (f + i + w))
    pipeline = even(shape, rates)
    idle = idle_time(entry, pipeline)
    assume(idle is not None)
    spent = account(simulate(program, costs_of(rates, program.schedule)))
    idles = spent.window - spent.compute
    if saved is None or program.schedule.joined is None:
        assert idles == pytest.approx(idle, abs=1e-3)
    else:  # ranks have different numbers of pairs, each rounded to a nanosecond
        assert idles.max() == pytest.approx(idle, abs=2.0 * shape.microbatches)
    if saved is None or program.schedule.joined is None:
        assert idle_share(entry, pipeline) == pytest.approx(spent.idle_share, abs=1e-9)
        assert bubble_ratio(entry, pipeline) == pytest.approx(spent.bubble_ratio, abs=1e-9)


@pytest.mark.parametrize("name", CATALOG)
def test_every_formula_holds_for_some_costs_and_is_none_for_others_if_it_says_so(name):
    entry = CATALOG[name]
    p, m = 8, 32
    met = {(1.0, 1.0, 1.0): True, (3.0, 2.0, 2.0): True, (2.0, 1.0, 1.0): True, (1.0, 5.0, 3.0): True}
    for f, i, w in met:
        met[f, i, w] = idle_time(entry, Even(p, m, entry.chunks, forward=f, input=i, weight=w)) is not None
    if not entry.bubble_holds or entry.bubble_holds.startswith("m >= p"):
        assert all(met.values()) != entry.bubble.startswith("<=")
    else:
        assert any(met.values()) != entry.bubble.startswith("<=")
        assert not met[1.0, 5.0, 3.0]


@pytest.mark.parametrize(
    ("name", "shape", "costs"),
    [
        ("looped-bfs", (8, 7), (1, 1, 1)),  # m < p
        ("zb-h1", (8, 32), (1, 1, 2)),  # W > F
        ("zb-h1", (8, 7), (1, 1, 1)),
        ("zb-h2", (8, 14), (1, 1, 1)),  # m < 2p-1
        ("interleaved-zb", (8, 32), (2, 1, 1)),
        ("zb-v", (8, 14), (1, 1, 1)),
        ("zb-v", (8, 32), (1, 2, 1)),
        ("1f1b-v", (8, 32), (1, 1, 1)),  # only a bound is known
        ("v-half", (7, 32), (1, 1, 1)),  # odd p
        ("v-half", (8, 9), (1, 1, 1)),
        ("v-min", (6, 32), (1, 1, 1)),  # p a multiple of 3
        ("v-min", (8, 32), (1, 2, 1)),
        ("dualpipe", (8, 32), (1, 2, 1)),  # I > F
        ("chimera", (8, 32), (1, 1, 1)),  # B = 2F
        ("hanayo", (8, 32), (1, 1, 1)),
        ("hanayo", (8, 12), (2, 1, 1)),  # m % p > 0
        ("forward-only", (8, 7, 2), (1, 1, 1)),
    ],
)
def test_beyond_its_conditions_a_formula_says_nothing(name, shape, costs):
    f, i, w = costs
    p, m, *chunks = shape
    pipeline = Even(p, m, *(chunks or [CATALOG[name].chunks]), forward=f, input=i, weight=w)
    assert idle_time(CATALOG[name], pipeline) is None
    assert closed_form(CATALOG[name], pipeline) is None
    assert bubble_ratio(CATALOG[name], pipeline) is None


def test_another_cap_than_p_is_another_schedule():
    assert idle_time(CATALOG["zb-auto"], Even(8, 32)) == 7.0
    assert idle_time(CATALOG["zb-auto"], Even(8, 32, cap=16)) is None


@pytest.mark.parametrize("name", CATALOG)
def test_one_rank_never_waits(name):
    assert idle_time(CATALOG[name], Even(1, 3, CATALOG[name].chunks, forward=2, input=5, weight=1)) == 0.0


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        ("1f1b", 21.0),
        ("gpipe", 21.0),
        ("interleaved", 10.5),
        ("zb-h1", 7.0),
        ("zb-h2", 7.0),
        ("zb-auto", 7.0),
        ("zb-v", 3.5),
        ("interleaved-zb", 3.5),
        ("v-half", 8.5),
        ("v-min", 13.5),
        ("chimera", None),
        ("hanayo", None),
    ],
)
def test_the_figures_of_p8_m32_with_f_i_w_of_1(name, idle):
    """As published and simulated by the original tools: 1F1B (p-1)T, ZB-H1 p-1, V-Half 1.5p-3.5, V-Min 2p-2.5."""
    assert idle_time(CATALOG[name], Even(8, 32, CATALOG[name].chunks)) == idle
    if idle is not None:
        program = built(name, Shape(8, 32, CATALOG[name].chunks))
        spent = account(simulate(program, costs_of(Rates(2e6, input=2e6, weight=2e6), program.schedule)))
        assert set((spent.window - spent.compute).tolist()) == {int(2e6 * idle)}


@given(st.sampled_from(sorted(CATALOG)), st.lists(st.tuples(shapes(), times()), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_arrays_give_for_each_pipeline_what_its_numbers_give(name, pipelines):
    entry = CATALOG[name]
    rows = [(s.ranks, s.microbatches, s.chunks, 1, s.ranks, s.ranks, *t) for s, t in pipelines]
    together = Even(*np.array(rows, float).T)
    for found, least, exists, row in zip(
        idle_times(entry, together),
        least_idle(entry, together),
        takes(entry, together) & np.ones(len(rows), bool),
        rows,
        strict=True,
    ):
        alone = Even(*row)
        assert idle_time(entry, alone) == (None if np.isnan(found) else found)
        assert least_idle(entry, alone) == least
        assert takes(entry, alone) == exists


@given(st.sampled_from(GENERATED), shapes(), st.integers(1, 4), times(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_least_idle_time_is_the_lower_bound_of_even_stages(name, shape, slices, costs, split):
    entry, (f, i, w) = CATALOG[name], costs
    shape = entry.shape(sliced(name, shape, slices))
    program = built(name, shape)
    assume(program is not None)
    assume(not split or slices == 1)  # W of a slice
    schedule = halved(program.schedule) if split else program.schedule
    rates = Rates(f, input=i, weight=w)
    busy = shape.microbatches * (f + i + w if entry.trains else f)
    pipeline = even(shape, rates)
    least = float(least_idle(entry, pipeline, split=True if split else None))
    spent = costs_of(rates, schedule)
    counted = counted_bound(schedule, spent)
    if schedule.joined is None:
        assert busy + least == pytest.approx(counted)
    else:  # it splits some backwards and not others; least is that of any order
        assert busy + least <= counted * (1 + 1e-9)
    assert counted <= lower_bound(schedule, spent)  # heads and tails op by op (``core.bounds``) see no less
    if schedule.joined is None and not schedule.splits and shape.chunks == 1 and shape.microbatches >= shape.ranks:
        assert busy + least == pytest.approx(lower_bound(schedule, spent))
    assert least_ratio(entry, pipeline, split=True if split else None) == pytest.approx(least / busy)


@given(st.sampled_from(GENERATED), shapes(), st.integers(1, 4), times())
@settings(max_examples=400, deadline=None)
def test_no_formula_goes_below_the_least(name, shape, slices, costs):
    entry, (f, i, w) = CATALOG[name], costs
    pipeline = even(entry.shape(sliced(name, shape, slices)), Rates(f, input=i, weight=w))
    idle = idle_time(entry, pipeline)
    assume(takes(entry, pipeline) and idle is not None)
    assert idle >= float(least_idle(entry, pipeline)) * (1 - 1e-9)


@given(st.sampled_from(GENERATED), shapes(), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_activations_are_those_of_the_order(name, shape, slices):
    entry = CATALOG[name]
    shape = entry.shape(sliced(name, shape, slices))
    program = built(name, shape)
    assume(program is not None)
    held = peak_activations(program.schedule)
    pipeline = Even(shape.ranks, shape.microbatches, shape.chunks, shape.slices)
    said = np.broadcast_to(activations(entry, pipeline, np.arange(shape.ranks)), held.shape)
    assert held.max() == pytest.approx(said.max())
    if re.search(r"\br\b", entry.activations):
        assert held == pytest.approx(said)


@given(st.sampled_from(sorted(CATALOG)), shapes(), st.sampled_from([None, 4, 5, 7]))
@settings(max_examples=400, deadline=None)
def test_a_schedule_exists_where_its_needs_are_met(name, shape, group):
    entry = CATALOG[name]
    shape = entry.shape(
        Shape(shape.ranks, shape.microbatches, shape.chunks, 1, group if name == "interleaved" else None)
    )
    if not entry.any_chunks:
        assume(shape.chunks == entry.chunks)
    pipeline = Even(shape.ranks, shape.microbatches, shape.chunks, group=shape.group)
    assert takes(entry, pipeline) == (built(name, shape) is not None)


# Micro-batches for an idle share


@pytest.mark.parametrize(
    ("slots", "share", "many"),
    [
        (3, 0.10, 27),  # 1F1B, p = 4: m >= (p-1)(1-s)/s
        (3, 0.20, 12),  # not 15, which is 3/s
        (3, 0.50, 3),
        (1, 0.25, 3),
        (7, 0.09, 71),  # 70.8
        (7, 1 / 11, 70),  # to the digit
        (0, 0.1, 1),
    ],
)
def test_enough_is_a_bubble_over_the_step_and_not_over_its_work(slots, share, many):
    assert enough(slots, share) == many
    assert slots / (many + slots) <= share + 1e-12


@given(st.floats(0.1, 500), st.floats(0.005, 0.9))
@settings(deadline=None)
def test_enough_is_the_least(slots, share):
    many = enough(slots, share)
    assert slots / (many + slots) <= share + 1e-9
    assert many == 1 or slots / (many - 1 + slots) > share - 1e-9


@pytest.mark.parametrize(
    ("name", "pipeline", "share", "many"),
    [
        ("1f1b", Even(4, 1), 0.10, 27),
        ("interleaved", Even(4, 1, 2), 0.10, 16),  # 13.5, in groups of 4
        ("interleaved", Even(4, 1, 2, group=6), 0.10, 16),  # 14 would leave a last group of 2; 16 leaves 4
        ("interleaved", Even(8, 1, 4), 0.10, 16),  # 15.75
        ("zb-h1", Even(4, 1), 0.10, 9),  # (p-1)/(3m + p-1)
        ("zb-h1", Even(4, 1), 0.40, 4),  # 1.5, and the formula holds from p on
        ("zb-v", Even(4, 1, 2), 0.05, 10),  # (p-1)/2 / (3m + (p-1)/2)
        ("zb-v", Even(4, 1, 2), 0.10, 7),  # 4.5, and the formula holds from 2p-1 on
        ("dualpipe", Even(4, 1), 0.10, 8),
        ("seq1f1b", Even(4, 1, 1, 3), 0.10, 9),
        ("chimera", Even(4, 1, forward=2), 0.10, 12),  # 9, a multiple of 4
        ("chimera", Even(4, 1), 0.10, None),
        ("1f1b-v", Even(4, 1, 2), 0.10, None),
        ("v-half", Even(5, 1, 2), 0.10, None),
        ("gpipe", Even(1, 1), 0.10, 1),
    ],
)
def test_micro_batches_for_an_idle_share(name, pipeline, share, many):
    assert least_microbatches(CATALOG[name], pipeline, share) == many


@given(st.sampled_from(sorted(CATALOG)), st.integers(2, 12), times(), st.floats(0.01, 0.6))
@settings(max_examples=200, deadline=None)
def test_so_many_are_enough_and_fewer_are_not_or_have_no_formula(name, p, costs, share):
    entry, (f, i, w) = CATALOG[name], costs
    sizes = {"chunks": entry.chunks, "forward": f, "input": i, "weight": w}
    many = least_microbatches(entry, Even(p, 1, **sizes), share)
    assume(many is not None)
    at = Even(p, many, **sizes)
    assert takes(entry, at)
    assert idle_share(entry, at) <= share + 1e-9
    for fewer in range(max(1, many - 2 * p), many):
        at = Even(p, fewer, **sizes)
        idle = idle_share(entry, at)
        assert not takes(entry, at) or idle is None or idle > share - 1e-9


# Text


@pytest.mark.parametrize(
    ("name", "share", "ratio", "half"),
    [
        ("1f1b", "(p-1)/(m+p-1)", "(p-1)/m", 19),  # 3/11 at m = 8; 3/22 at 19
        ("interleaved", "(p-1)/(v m+p-1)", "(p-1)/(v m)", 20),  # 17.5, a multiple of 4
        ("seq1f1b", "(p-1)/(s m+p-1)", "(p-1)/(s m)", 19),
        ("forward-only", "(p-1)/(m+p-1)", "(p-1)/m", 19),  # one chunk
        ("zb-h1", "(p-1)(F+I-W) / makespan", "(p-1)(F+I-W) / busy", 17),  # 1/9 at m = 8; 1/18 at 17
        ("interleaved-zb", "(p-1)F/v / makespan", "(p-1)F/v / busy", 20),  # 16.25, and 4 rounds of equal size
    ],
)
def test_texts_and_what_halves_the_idle_share_at_p4_m8(name, share, ratio, half):
    found = closed_form(CATALOG[name], Even(4, 8, CATALOG[name].chunks))
    assert (found.share_text, found.ratio_text, found.half_at) == (share, ratio, half)


def test_there_is_nothing_to_halve_on_one_rank_or_without_work():
    assert closed_form(CATALOG["1f1b"], Even(1, 8)).half_at is None
    assert closed_form(CATALOG["1f1b"], Even(4, 8, forward=0, input=0, weight=0)).half_at is None


def test_pairs_that_save_time_have_an_idle_time_and_no_common_busy_time():
    pipeline = Even(4, 8, forward=2, input=2, weight=1, pair=4)
    assert idle_time(CATALOG["dualpipe"], pipeline) == 4.0  # (p/2-1)(F&B+F-2W)
    assert bubble_slots(CATALOG["dualpipe"], pipeline) is None
    assert bubble_slots(CATALOG["1f1b"], Even(4, 8, pair=2)) == 3.0  # which runs no pairs


def test_a_ratio_of_any_costs_is_one_in_which_they_cancel():
    by_shape = {name for name, entry in CATALOG.items() if ratio_of_any_costs(entry, Even(4, 8, entry.chunks))}
    assert by_shape == {"gpipe", "1f1b", "eager-1f1b", "interleaved", "looped-bfs", "seq1f1b", "forward-only"}
    assert ratio_of_any_costs(CATALOG["interleaved"], Even(4, 8, 2)) == 3 / 16


@pytest.mark.parametrize(
    "rates",
    [
        Rates(transfer=1),
        Rates(stage_scale=(1, 2)),
        Rates(microbatch_scale=(1, 2)),
        Rates(rank_scale=(2, 1)),
        Rates(payload=1, link=1),
    ],
)
def test_uneven_costs_and_hops_have_no_closed_form(rates):
    assert even(Shape(2, 2), rates) is None


def test_scales_of_one_are_even():
    assert even(Shape(2, 2), Rates(stage_scale=(1, 1), rank_scale=(1, 1))) is not None


# Nowhere else

SOURCE = Path(debubble.__file__).parent
RANKS = {"p", "ranks", "pipeline"}
# p-1 is also the hops from the first rank to the last, and more; each place says why it is no bubble.
NO_BUBBLE = {
    "diagnosis/evidence.py": "the spread of a difference from the mean of the other ranks",
    "planning/judge.py": "hops there and back, and the hops that a micro-batch waits for in the steady state",
}
FORMULA = re.compile(r"[-+*/()\d\s,&pmvsNrFIWB]*p-1[-+*/()\d\s,&pmvsNrFIWB]*")


def name_of(node):
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_fill(node):
    """p - 1 or p + 1, half of p, of two p."""
    if not isinstance(node, ast.BinOp):
        return False
    left, right = node.left, node.right
    if isinstance(node.op, ast.Sub) and isinstance(right, ast.Constant) and right.value == 1:
        if isinstance(left, ast.BinOp):  # m + p - 1, p / 2 - 1, 2p - 1
            return any(name_of(part) in RANKS for part in (left.left, left.right))
        return name_of(left) in RANKS
    return False


def formulas_in(text):
    """Products and quotients with p-1 in them, and texts that read like a formula."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            found += [ast.unparse(node)] * (is_fill(node.left) or is_fill(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value] * bool(FORMULA.fullmatch(node.value))
    return found


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("(ranks - 1) * slot", 1),
        ("(p - 1) * (f + b) / v", 1),
        ("(size.ranks - 1) / size.microbatches", 1),
        ("(p - 1) / (m + p - 1)", 1),
        ("share = work / (m + ranks - 1)", 1),
        ("np.maximum(p / 2 - 1, 0) * f", 0),
        ("(p / 2 - 1) * f", 1),
        ("'(p-1)(F+B)/v'", 1),
        ("'see p-1 of them'", 0),
        ("range(ranks - 1)", 0),
        ("lane * (rank - 1)", 0),
    ],
)
def test_what_reads_like_a_formula(text, many):
    assert len(formulas_in(text)) == many


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_no_formula_stands_outside_the_schedules(file):
    place = str(file.relative_to(SOURCE))
    if not place.startswith("schedules/") and place not in NO_BUBBLE:
        assert formulas_in(file.read_text()) == []
