"""``show`` of searched schedules: costs and a memory cap decide the order."""

import pytest

COSTS = ("--forward", "10ms", "--input", "12ms", "--weight", "6ms", "--transfer", "1ms")
SIZE = ("-p", 4, "-m", 8)


def peaks(document):
    return [rank["peak_activations"] for rank in document["per_rank"]]


@pytest.mark.parametrize("release", ["w", "half", "i"])
@pytest.mark.parametrize("cap", ["1", "3", "1p", "1.5p", "2p"])
def test_the_cap_holds_by_the_rule_that_is_printed(cli, cap, release):
    shown = cli("show", "zb-auto", *SIZE, *COSTS, "--memory", cap, "--release", release, "--json").json
    most = float(cap.removesuffix("p")) * (4 if cap.endswith("p") else 1)
    assert max(peaks(shown)) <= most


def test_more_memory_makes_it_no_slower(cli):
    spans = [cli("show", "zb-auto", *SIZE, *COSTS, "--memory", cap, "--json").json["makespan_ms"] for cap in "1234"]
    assert spans == sorted(spans, reverse=True)


def test_each_rank_may_have_its_own_cap(cli):
    shown = cli("show", "zb-auto", *SIZE, "--memory", "2,3,3,2", "--json").json
    assert all(peak <= cap for peak, cap in zip(peaks(shown), (2, 3, 3, 2), strict=True))


def test_zb_auto_with_p_micro_batches_equals_zb_h1_where_stages_are_even(cli):
    auto, h1 = (cli("show", name, *SIZE, *COSTS[:-2], "--json").json for name in ("zb-auto", "zb-h1"))
    assert auto["makespan_ms"] == h1["makespan_ms"]
    assert auto["evidence"] == "exact"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("zb-auto", "--memory", "0.5"), "the least cap is 1; give 1 or more"),
        (("zb-v-auto", "--memory", "2"), "give 4 or more, or take v-half or v-min"),
        (("zb-auto", "--memory", "lots"), "give it as in 6, 1p or 4,6,6,4"),
        (("zb-auto", "--memory", "1,2"), "give 1 or 4 of them"),
        (("1f1b", "--memory", "2"), "leave it out, or take zb-auto or zb-v-auto"),
        (("mine.csv", "--memory", "2"), "takes no cap; leave it out"),
        (("zb-aut", "--memory", "2"), "did you mean zb-auto"),
    ],
)
def test_a_cap_that_cannot_be_kept_says_what_can(cli, args, says):
    ran = cli("show", *args, *SIZE)
    assert ran.status == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["zb-auto", "zb-v-auto", "v-half", "v-min"])
def test_the_picture_has_a_line_for_each_rank(cli, name):
    lines = cli("show", name, *SIZE).out.splitlines()
    assert sum(line.startswith(" rank ") for line in lines) == 4
