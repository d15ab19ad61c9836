"""Schedule classes of PyTorch, read without a process: what is right passes our laws, what is wrong is caught."""

import pytest

from debubble.cli.main import main
from debubble.core.costs import Rates, costs_of
from debubble.core.errors import IllegalSchedule, InputError
from debubble.core.laws import violations
from debubble.core.lower import apart, lower
from debubble.core.order_check import verify
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.core.units import MILLISECOND
from debubble.readers import torch_csv
from debubble.schedules.catalog import build

pytest.importorskip("torch", reason="PyTorch is not installed")

from debubble.runner.torch_schedules import read_class

TORCH = "torch.distributed.pipelining.schedules:Schedule"
RATES = Rates(forward=20 * MILLISECOND, backward=40 * MILLISECOND)


def makespan_ms(schedule) -> float:
    return simulate(lower(schedule), costs_of(RATES, schedule)).makespan / MILLISECOND


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [("GPipe", 660), ("Interleaved1F1B", 570), ("ZBVZeroBubble", 510), ("DualPipeV", 540)],
)
def test_ideal_makespans_of_torchs_schedules_at_p4_m8_f20_b40(name, milliseconds):
    assert makespan_ms(read_class(TORCH + name, Shape(4, 8))) == milliseconds


def test_dualpipe_v_takes_510_ms_where_each_half_of_a_pair_sends_at_once():
    assert makespan_ms(apart(read_class("torch:DualPipeV", Shape(4, 8)))) == 510


@pytest.mark.parametrize("name", ["GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 6), (3, 3), (4, 12)])
def test_torchs_static_orders_pass_our_laws(name, p, m):
    assert violations(read_class(f"torch:{name}", Shape(p, m))) == []


def test_torchs_static_1f1b_is_caught_on_the_last_rank():
    found = violations(read_class("torch:1F1B", Shape(4, 8)))
    if not found:
        pytest.skip("this torch has mended the order of Schedule1F1B's last rank")
    assert [str(violation) for violation in found] == [
        "rank 3 position 14: 3F8 does not exist: there are 8 micro-batches, counted from 0",
        "rank 3: 3F0 is missing",
    ]
    with pytest.raises(IllegalSchedule, match="3F0 is missing"):
        lower(read_class("torch:1F1B", Shape(4, 8)))


@pytest.mark.parametrize(
    ("theirs", "ours", "shape"),
    [
        ("GPipe", "gpipe", Shape(4, 8)),
        ("Interleaved1F1B", "interleaved", Shape(4, 8, 2)),
        ("InterleavedZeroBubble", "interleaved-zb", Shape(4, 8, 2)),
        ("ZBVZeroBubble", "zb-v", Shape(4, 8, 2)),
        ("DualPipeV", "dualpipe-v", Shape(4, 8, 2)),
    ],
)
def test_our_schedules_are_torchs_op_for_op(theirs, ours, shape):
    assert build(ours, shape).same_order(read_class(f"torch:{theirs}", shape))


@pytest.mark.parametrize(
    ("spec", "shape", "words"),
    [
        ("torch:1F1B", Shape(4, 3), "must be greater than or equal to the number of stages"),
        ("torch:Interleaved1F1B", Shape(4, 9), "multiple of the number of rounds"),
        ("torch:ZBVZeroBubble", Shape(4, 8, 3), "exactly 2 stages per rank"),
        ("torch:GPipe", Shape(4, 8, 2), "one stage a rank"),
        ("torch:1F1", Shape(4, 8), "no schedule of torch has this name; did you mean 1F1B"),
        ("torch:PipelineScheduleMulti", Shape(4, 8), "keeps no pipeline_order"),
        ("no.such.module:Class", Shape(4, 8), "cannot be imported"),
        ("json:dumps", Shape(4, 8), "it is no schedule class"),
        ("json:Nothing", Shape(4, 8), "it is no schedule class"),
    ],
)
def test_what_torch_or_python_says_against_it_becomes_one_line(spec, shape, words):
    with pytest.raises(InputError) as error:
        read_class(spec, shape)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


USERS_OWN = """
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _Action

class Mine(PipelineScheduleMulti):
    def __init__(self, stages, n_microbatches):
        super().__init__(stages, n_microbatches)
        ops = [f"F{n}" for n in range(n_microbatches)] + [f"B{n}" for n in range(n_microbatches)]
        mine = {rank: [rank, rank + self.pp_group_size] for rank in range(self.pp_group_size)}
        self.pipeline_order = {
            rank: [_Action.from_str(f"{stage}{op}") for way in "FB" for stage in held[:: 1 if way == "F" else -1]
                   for op in ops if op[0] == way]
            for rank, held in mine.items()
        }

    def _step_microbatches(self, *args, **kwargs):
        raise NotImplementedError
"""


def test_the_users_own_class_is_shown_from_the_working_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_schedules.py").write_text(USERS_OWN)
    monkeypatch.chdir(tmp_path)
    assert main(["show", "my_schedules:Mine", "-p", "2", "-m", "4", "--json"]) == 0
    assert '"schedule": "Mine"' in capsys.readouterr().out


def with_torchs_own_transfers(name: str, p: int, m: int, path, *, defer: bool):
    """A schedule with the sends and receives that torch's runtime places, by way of a file."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    rows = get_schedule_ops(name, p, m, 2, with_comms=True, defer_pp_recv=defer)
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return torch_csv.read_with_transfers(path)


@pytest.mark.parametrize(
    ("name", "p", "m", "swapped"),
    [
        ("ZBVZeroBubble", 2, 4, True),
        ("ZBVZeroBubble", 4, 8, True),
        ("DualPipeV", 4, 8, True),
        ("InterleavedZeroBubble", 2, 4, True),
        ("InterleavedZeroBubble", 4, 8, False),
        ("Interleaved1F1B", 4, 8, False),
        ("LoopedBFS", 4, 8, False),
    ],
)
def test_receives_that_torch_defers_are_caught_exactly_where_gradients_were_measured_wrong(
    name, p, m, swapped, tmp_path
):
    assert verify(*with_torchs_own_transfers(name, p, m, tmp_path / "early.csv", defer=False)).broken == ()
    late = verify(*with_torchs_own_transfers(name, p, m, tmp_path / "late.csv", defer=True))
    assert any("first in, first out" in violation.sentence for violation in late.broken) == swapped


@pytest.mark.parametrize(
    "body", ["raise SystemExit(3)", "class Mine(Base):\n    def __init__(*_): raise SystemExit(3)"]
)
def test_a_module_that_leaves_while_it_is_read_is_one_line(tmp_path, monkeypatch, capsys, body):
    base = "from torch.distributed.pipelining.schedules import PipelineScheduleSingle as Base"
    (tmp_path / f"leaves{len(body)}.py").write_text(f"{base}\n{body}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["show", f"leaves{len(body)}:Mine", "-p", "2", "-m", "2"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
