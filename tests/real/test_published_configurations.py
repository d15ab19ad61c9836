"""Published runs that finished are legal by our rules: three thousand rows of measured tables, none refused."""

from debubble.config.config import SWITCHES, Config
from debubble.frameworks.catalog import FRAMEWORKS
from debubble.planning.runs import read_runs

OF_NANOTRON = {"ultrascale clean"}


def setup_of(row, nanotron: bool) -> Config:
    layout, model = row.layout, row.model
    even = len(set(layout.split(model.layers))) == 1
    said = {
        "gpus": layout.gpus,
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "micro_batch": layout.micro_batch,
        "microbatches": layout.microbatches,
        "layers": model.layers if even or nanotron else None,
    }
    if nanotron:
        return Config(**said, data=layout.data, schedule="1f1b")
    experts = model.experts.count if model.experts else None
    chunks = layout.chunks if layout.chunks > 1 else None
    more = {"context": layout.context, "expert": layout.expert, "experts": experts, "chunks": chunks}
    more["expert_tensor"] = layout.expert_tensor or None
    more |= {name: getattr(layout, name) for name in SWITCHES}
    if layout.tensor == 1:  # as every launch line is written: these two are of tensor groups
        more |= {"sequence_parallel": False, "tensor_overlap": False}
    own = {"use_distributed_optimizer": layout.zero > 0}
    return Config(**said, **more, sequence=layout.sequence, global_batch=layout.global_batch, own=own)


def test_no_run_that_finished_is_refused(published):
    judged = 0
    for path in published.glob("*.csv"):
        name, rows = path.stem, read_runs(path).runs
        backend = FRAMEWORKS["nanotron" if name in OF_NANOTRON else "nemo"]
        for row in (row for row in rows if row.seconds):
            judged += 1
            assert not backend.broken(setup_of(row, name in OF_NANOTRON)).faults, (row.source, row.layout)
    assert judged > 2000
