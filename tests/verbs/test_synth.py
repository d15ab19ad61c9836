"""``synth``: options, refusals, and answers that hold by closed forms; budgets are counts of evaluations."""

import json
from pathlib import Path

import numpy as np
import pytest

import debubble
from debubble import InputError, Shape, build, lower, simulate, violations
from debubble.cli.main import main
from debubble.core.observation import Observation, Window
from debubble.verbs.synth import _megatron_flags

TEN = {"forward": 10, "input": 10, "weight": 10}


def synth(ranks, microbatches, evaluations=3_000, **given):
    return debubble.synth(ranks=ranks, microbatches=microbatches, evaluations=evaluations, **{**TEN, **given})


def test_the_founding_instance():
    """p 8, m 16, 10/10/10, cap 6: zb-auto takes 1,070, and 610 is optimal."""
    found = synth(8, 16, cap=6)
    assert (found.makespan_ms, found.lower_bound_ms, found.status, found.gap_share) == (610, 610, "optimal", 0)
    assert (found.best_known, found.best_known_ms) == ("zb-auto", 1070)
    assert max(found.peak_activations) <= 6
    assert violations(found.order, in_order=True) == []
    assert simulate(lower(found.order), _even_costs(8)).makespan == 610_000_000


def _even_costs(ranks):
    table = np.zeros((4, ranks, 1), np.int64)
    table[:3], table[3] = 10_000_000, 20_000_000
    return debubble.Costs(table, np.zeros_like(table))


def test_even_stages_with_memory_enough_are_zb_h1():
    """(p-1) F + m T, attained by ZB-H1 for F = I = W: nothing to gain, and that is proved."""
    found = synth(4, 8)
    assert found.makespan_ms == 3 * 10 + 8 * 30
    assert found.status == "optimal"


def test_the_span_may_be_the_work_alone():
    """ZB-H2: no rank idles between its first and last op, if 2p - 1 fit."""
    assert synth(4, 8, objective="span", cap=7).span_ms == 240


@pytest.mark.parametrize(
    ("placement", "chunks", "name"), [("v", 2, "zb-v"), ("loop", 2, "interleaved-zb"), ("linear", 1, "zb-h1")]
)
def test_no_worse_than_the_catalog_on_every_placement(placement, chunks, name):
    found = synth(4, 8, chunks=chunks, placement=placement)
    known = debubble.show(name, ranks=4, microbatches=8, chunks=chunks, **TEN)
    assert found.makespan_ms <= known.makespan_ms
    assert found.best_known_ms <= known.makespan_ms


@pytest.mark.parametrize("engine", ["megatron", "torch", "deepspeed", "torch-1f1b"])
def test_an_engine_s_own_1f1b_is_never_lost(engine):
    """Link 1-2 takes three forwards: orders for sends that wait for nobody are slower there than 1F1B."""
    found = synth(4, 8, engine=engine, transfer="1-2=30ms", evaluations=300)
    own = debubble.show("1f1b", ranks=4, microbatches=8, forward=10, backward=20, transfer="1-2=30ms", engine=engine)
    assert found.makespan_ms <= own.makespan_ms
    assert found.per_engine_ms[engine] == found.makespan_ms


def test_a_slow_link_under_megatron():
    """p 8, m 24, link 0-1 at 30 ms: 1F1B takes 1,680; fewer warm-ups and W behind F take 1,600 or less."""
    found = synth(8, 24, engine="megatron", transfer="0-1=30ms", evaluations=30_000)
    assert found.best_known_ms == 1680
    assert found.makespan_ms <= 1600
    assert found.lower_bound_ms >= 24 * 60


def test_a_cap_in_bytes_is_what_is_left_over_what_a_micro_batch_keeps():
    by_bytes = synth(8, 16, cap="80GB", activation="10GB", static="15GB")
    assert by_bytes.caps == (6.5,) * 8
    assert by_bytes.makespan_ms == synth(8, 16, cap=6.5).makespan_ms


def test_nothing_fits_below_one_micro_batch(capsys):
    found = synth(4, 8, cap=0.5)
    assert (found.status, found.least_cap, found.exit_status) == ("infeasible", 1, 1)
    assert main(["synth", "-p", "4", "-m", "8", "--cap", "0.5", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["status"], said["least_cap"], said["makespan_ms"]) == ("infeasible", 1, None)
    assert synth(4, 8, cap=found.least_cap).makespan_ms == 8 * (4 * 20 + 10)  # one after the other


def test_where_bytes_are_too_few_the_rank_and_the_bytes_are_named():
    """Rank 3 keeps 90 GB a micro-batch beside 5 GB: 75 GB of the 80 are left, for .833 of one."""
    memory = {"activation": "20GB,30GB,30GB,90GB", "static": "5GB"}
    found = synth(4, 8, cap="80GB", **memory)
    assert found.status == "infeasible"
    said = " ".join(str(found).split())
    assert "room on rank 3 for 0.5" in said  # halves of activations are what a backward frees
    assert "rank 3 needs most: --cap 95GB would do" in said
    assert synth(4, 8, cap="95GB", **memory).caps[3] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": None}, "--ranks"),
        ({"weight": None}, "--weight would have to be guessed"),
        ({"forward": "1,2,3"}, "one for each of the 4 stages"),
        ({"cap": "80GB"}, "what a micro-batch keeps has to be known"),
        ({"cap": 6, "activation": "1GB"}, "this cap is a number of them"),
        ({"placement": "v"}, "it has two"),
        ({"placement": "ring"}, "no such placement"),
        ({"engine": "magatron"}, "megatron"),
        ({"objective": "speed"}, "no such objective"),
        ({"jitter": "5"}, "5%"),
        ({"budget": "0s"}, "a search takes some time"),
        ({"transfer": "0-3=1ms"}, "hands nothing"),
        ({"split_layers": "1,1,1"}, "4 stages hold one at least"),
        ({"forward": 0, "input": 0, "weight": 0}, "where nothing takes time"),
    ],
)
def test_bad_input_is_named(given, said):
    with pytest.raises(InputError, match=said):
        debubble.synth(**{"ranks": 4, "microbatches": 8, "evaluations": 10, **TEN, **given})


def test_it_writes_what_torch_reads(tmp_path, capsys):
    path = tmp_path / "found.csv"
    words = ["synth", "-p", "4", "-m", "8", "--cap", "3", "--evaluations", "2000", "--torch-csv", str(path), "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert path.read_text().split() == said["torch_csv"].split("\n")
    shown = debubble.show(str(path), forward=1, input=1, weight=1)
    assert shown.makespan_ms == said["makespan_ms"]


@pytest.mark.parametrize("release", ["w", "half", "i"])
def test_a_page_counts_memory_by_the_rule_that_the_order_was_found_under(release, tmp_path):
    """Else its curve would pass the cap that the order keeps: a half freed at I is gone before W."""
    path = tmp_path / "found.html"
    words = ["synth", "-p", "3", "-m", "6", "--cap", "2", "--release", release, "--evaluations", "200"]
    assert main([*words, "--html", str(path)]) == 0
    assert f'"release":"{release}"' in path.read_text().replace(" ", "")


def test_jitter_is_chosen_on_one_set_and_reported_on_another():
    found = synth(4, 8, cap=3, jitter="5%,1-2=30ms@10%")
    held = found.robust
    assert held.steps == 1000
    assert found.lower_bound_ms < held.mean_ms < held.p95_ms
    assert held.p95_ms <= 1.01 * held.best_nominal_p95_ms
    assert "as ops vary" in str(found)
    assert "if nothing varies" in str(found)


def test_layers_are_split_with_the_schedule():
    """16 layers and a head of 3 on 4 ranks: the even split gives the last rank 7 of 19; 5,5,5,1+head is lighter."""
    found = debubble.synth(
        ranks=4, microbatches=8, forward=1, input=1, weight=1, split_layers="1*16,3", evaluations=10_000
    )
    assert sum(found.split) == 17
    assert found.makespan_ms < found.even_ms
    assert found.makespan_ms >= 8 * 3 * 19 / 4
    assert found.split_gain_ratio == found.even_ms / found.makespan_ms
    assert "split" in str(found)


def test_costs_come_from_a_recording():
    """Its own order costs what was measured under these costs; a search for the same ops finds no longer step."""
    folder = Path(__file__).parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"
    with pytest.raises(InputError, match="the measurement does not say which ran"):
        debubble.synth(from_=folder, evaluations=10)
    found = debubble.synth(from_=folder, engine="ideal", evaluations=2_000)
    seen = debubble.diagnose(folder)
    assert found.measured_ms == pytest.approx(seen.makespan_ms)
    assert found.measured_again_ms == pytest.approx(found.measured_ms, rel=0.02)
    assert found.lower_bound_ms <= found.makespan_ms <= found.measured_again_ms
    assert not found.order.splits  # nobody measured the halves of its backwards
    assert "the same order simulated" in str(found)


def test_measured_jitter_is_the_spread_that_was_measured():
    """A run whose ops vary by 4 % (lognormal): that is what is drawn, and steps vary less than with 20 %."""
    draw = np.random.default_rng(0)
    order = build("1f1b", Shape(4, 64))
    durations = np.rint(1e7 * np.exp(0.04 * draw.standard_normal((4, 4, 64)))).astype(np.int64)
    timeline = simulate(lower(order), debubble.Costs(durations, np.zeros_like(durations)))
    observation = Observation(source="drawn", windows=(Window(0, 0, timeline),), engine="ideal")
    measured, wide = (debubble.synth(from_=observation, jitter=share, evaluations=200) for share in ("measured", "20%"))
    assert measured.robust.sigma == pytest.approx(0.04, rel=0.1)
    assert measured.robust.mean_ms < measured.robust.p95_ms < wide.robust.p95_ms
    with pytest.raises(InputError, match="nothing was measured; give --from"):
        synth(4, 8, jitter="measured")


def test_a_measurement_limits_memory_to_what_is_known_to_fit():
    """1F1B held 4, 3, 2 and 1: so does what is found, unless a cap says that more fits."""
    folder = Path(__file__).parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"
    found = debubble.synth(from_=folder, engine="ideal", evaluations=500)
    assert found.peak_activations == found.caps == (4, 3, 2, 1)
    assert "no rank holds more activations than the run did" in found.notes[-1]
    roomy = debubble.synth(from_=folder, engine="ideal", evaluations=500, cap=8)
    assert roomy.caps is None
    assert max(roomy.makespan_ms, found.makespan_ms) <= found.measured_again_ms


def test_megatron_launches_its_own_two_orders():
    """1F1B and interleaved 1F1B in groups, recognised by their order and not by the name of what found them."""
    line = "--pipeline-model-parallel-size 4"
    loop = line + " --num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage "
    assert _megatron_flags(build("1f1b", Shape(4, 8))) == line
    assert _megatron_flags(build("interleaved", Shape(4, 8))) == loop + "4"
    assert _megatron_flags(build("interleaved", Shape(4, 12, 2, group=6))) == loop + "6"
    for other in ("zb-h1", "eager-1f1b", "gpipe", "zb-v", "looped-bfs", "hanayo", "v-half"):
        assert _megatron_flags(build(other, Shape(4, 8))) == "", other


def test_the_answer_says_whether_megatron_launches_it():
    found = synth(4, 8, cap=3)
    assert found.on_megatron.startswith("No option of Megatron-LM launches this order")
    assert "No option of Megatron-LM" in str(found)


def test_the_report_says_what_ended_the_search():
    text = str(synth(8, 16, cap=6))
    assert "it meets a bound that no order is below" in text
    assert "best known   1.07 s = zb-auto, 1.754 x" in text
    assert build("zb-h1", Shape(2, 2)).name not in text
