"""The catalog: names, what it says of each schedule, how it fills in what was not asked for, and what adds one."""

import re
import subprocess
import sys
import textwrap

import pytest

from debubble import InputError, Rates, Shape, build
from debubble.schedules.catalog import CATALOG, GENERATED, TRAINING, called, entry_of

NAMES = [
    "1f1b",
    "1f1b-v",
    "chimera",
    "dualpipe",
    "dualpipe-v",
    "eager-1f1b",
    "forward-only",
    "gpipe",
    "hanayo",
    "interleaved",
    "interleaved-zb",
    "looped-bfs",
    "seq1f1b",
    "v-half",
    "v-min",
    "zb-auto",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "zb-v-auto",
]


def test_the_names_are_those_of_the_command_line():
    assert sorted(CATALOG) == NAMES
    assert set(CATALOG) - set(GENERATED) == {"zb-auto", "zb-v-auto"}
    assert set(CATALOG) - set(TRAINING) == {"forward-only"}


def test_schedules_are_listed_in_the_order_of_their_papers():
    papers = [entry.paper for entry in CATALOG.values()]
    assert papers[0] == "arXiv:1811.06965"
    assert papers[:-1] == sorted(papers[:-1])
    assert papers[-1] == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_is_called_as_in_the_catalog(name):
    assert build(name, Shape(2, 4)).name == CATALOG[name].name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_published_schedule_cites_its_paper(name):
    assert name == "forward-only" or re.fullmatch(r"arXiv:\d{4}\.\d{5}", CATALOG[name].paper)


@pytest.mark.parametrize("name", NAMES)
def test_what_an_entry_says_of_an_order_is_so(name):
    entry = CATALOG[name]
    schedule = build(name, Shape(2, 4))
    assert schedule.splits == entry.splits
    assert schedule.forward_only != entry.trains
    assert schedule.stages == 2 * entry.chunks
    assert (schedule.placement.shape[0] == 2) == entry.placement.startswith("two-way")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        # torch.distributed.pipelining, as a class and as torchtitan's option
        ("GPipe", "gpipe"),
        ("ScheduleGPipe", "gpipe"),
        ("1F1B", "1f1b"),
        ("Schedule1F1B", "1f1b"),
        ("Interleaved1F1B", "interleaved"),
        ("ScheduleInterleaved1F1B", "interleaved"),
        ("LoopedBFS", "looped-bfs"),
        ("InterleavedZeroBubble", "interleaved-zb"),
        ("ZBVZeroBubble", "zb-v"),
        ("scheduledualpipev", "dualpipe-v"),
        # papers
        ("ZB-H1", "zb-h1"),
        ("ZBH2", "zb-h2"),
        ("ZB-V", "zb-v"),
        ("ZB-1p", "zb-auto"),
        ("V-Half", "v-half"),
        ("v_min", "v-min"),
        ("DualPipe", "dualpipe"),
        ("DualPipeV", "dualpipe-v"),
        ("Chimera", "chimera"),
        ("Hanayo", "hanayo"),
        ("Seq1F1B", "seq1f1b"),
        ("DAPPLE", "1f1b"),
        ("PipeDream-Flush", "1f1b"),
        ("1F1B-I", "interleaved"),
        ("Eager 1F1B", "eager-1f1b"),
        ("AFAB", "gpipe"),
    ],
)
def test_the_names_of_torch_and_of_papers_work_in_any_case(theirs, ours):
    assert entry_of(theirs).name == entry_of(theirs.upper()).name == ours
    assert build(theirs, Shape(2, 4)).name == ours


def test_no_two_schedules_share_a_name():
    names = [(re.sub(r"[^a-z0-9]", "", name.lower()), entry.name) for entry in CATALOG.values() for name in entry.names]
    assert len({name for name, _ in names}) == len(set(names))


def test_torch_has_a_class_of_each_name_and_no_other():
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    theirs = {name.removeprefix("Schedule") for name in dir(pipelining) if name.startswith("Schedule")}
    assert theirs == {entry.torch for entry in CATALOG.values() if entry.torch}


@pytest.mark.parametrize("name", ["", "-", "schedule", "1f1", "zb", "interleave"])
def test_what_is_no_name_is_none(name):
    assert called(name) is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dualpip", "dualpipe"),
        ("zb-aut", "zb-auto"),
        ("Interleaved1F1", "interleaved"),
        ("ZBVZeroBuble", "ZBV"),
    ],
)
def test_a_mistyped_name_gets_the_nearest(typed, meant):
    with pytest.raises(InputError, match=f"did you mean {meant}"):
        build(typed, Shape(2, 4))


def test_a_name_like_no_other_gets_all():
    with pytest.raises(InputError, match="known: gpipe, 1f1b, interleaved, "):
        build("xyzzy", Shape(2, 4))


@pytest.mark.parametrize(
    ("name", "chunks"),
    [("zb-v", 2), ("hanayo", 2), ("interleaved", 2), ("looped-bfs", 2), ("interleaved-zb", 2), ("gpipe", 1)],
)
def test_chunks_that_were_not_asked_for_are_filled_in(name, chunks):
    """Interleaving with one chunk is 1F1B in another order: who asks for it without a number means the least, 2."""
    assert build(name, Shape(2, 4)).stages == 2 * chunks


def test_chunks_that_were_asked_for_are_kept():
    assert build("interleaved", Shape(2, 4, 3)).stages == 6
    with pytest.raises(InputError, match="gpipe has 1 on each rank"):
        build("gpipe", Shape(2, 4, 3))


@pytest.mark.parametrize("name", NAMES)
def test_another_number_of_chunks_may_be_asked_for_where_the_entry_says_so(name):
    entry = CATALOG[name]
    assert entry.any_chunks == (name in ("interleaved", "looped-bfs", "interleaved-zb", "hanayo", "forward-only"))
    if entry.any_chunks:
        assert build(name, Shape(2, 4, 4)).stages == 8
    else:
        with pytest.raises(InputError, match="chunks = 4"):
            build(name, Shape(2, 4, 4))


def test_what_torch_cannot_run_says_why():
    cannot = {name for name in NAMES if CATALOG[name].not_on_torch}
    for name in NAMES:
        schedule = build(name, Shape(2, 4, slices=2 if name == "seq1f1b" else 1))
        assert (name in cannot) == (schedule.placement.shape[0] > 1 or schedule.slices > 1)
        assert not (CATALOG[name].torch and CATALOG[name].not_on_torch)


@pytest.mark.parametrize("name", ["zb-auto", "zb-v-auto"])
def test_a_search_without_costs_is_that_for_the_default_costs_and_cap(name):
    entry = CATALOG[name]
    built = entry.build(Shape(2, 4, entry.chunks))
    assert built.same_order(build(name, Shape(2, 4)))
    assert built.same_order(build(name, Shape(2, 4), Rates(), cap="1p"))


def test_a_search_takes_costs_and_a_cap():
    slow = Rates(1e6, input=1e6, weight=1e6, transfer=5e5)
    even = build("zb-auto", Shape(4, 8))
    told = build("zb-auto", Shape(4, 8), slow)
    roomy = build("zb-auto", Shape(4, 8), slow, cap="2p")
    assert not even.same_order(told)
    assert not told.same_order(roomy)


def test_a_cap_for_an_order_that_takes_none_is_refused_with_those_that_take_one():
    with pytest.raises(InputError, match=r"cap = 1: zb-h1 .* take zb-auto or zb-v-auto"):
        build("ZB-H1", Shape(2, 4), cap=1)


def test_a_cap_of_0_is_not_taken_for_none():
    with pytest.raises(InputError, match="cap = 0"):
        build("zb-auto", Shape(2, 4), cap=0)


def test_a_schedule_is_added_by_adding_its_file(tmp_path):
    """Beside the package's own folder, as if the file lay in it."""
    (tmp_path / "backwards_first.py").write_text(
        textwrap.dedent(
            """
            from debubble.schedules.entry import Entry
            from debubble.schedules.loops import gpipe

            ENTRY = Entry(name="mine", build=gpipe, other_names=("My Own",), paper="arXiv:1901.00001",
                          placement="linear", bubble="(p-1)(F+B)", activations="m")
            """
        )
    )
    code = f"""
import debubble, debubble.schedules
debubble.schedules.__path__.append({str(tmp_path)!r})
from debubble.schedules.catalog import CATALOG
print(list(CATALOG)[:3], debubble.build("MyOwn", debubble.Shape(2, 4)).name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "['gpipe', 'mine', '1f1b'] gpipe\n", done.stderr
