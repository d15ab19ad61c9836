"""The planner beside ``plan``: ``split`` of blocks, ``profile`` of a layer here, ``validate`` on measured runs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.config import Layout
from ..core.errors import Fault, InputError
from ..core.safe_output import replacing
from ..estimate.hardware import Hardware, cluster_of, known_hardware, read_hardware
from ..estimate.model import Model
from ..estimate.read_model import read_model
from ..estimate.setting import Calibration
from ..planning.calibrate import TINY, LayerProfile, LayerRun, Timed, calibrate_layer, layer_profile, tiny, written
from ..planning.runs import GIB, RunTable, read_runs
from ..planning.splits import Splits, splits_of
from ..planning.validate import ScoredRun, Validation
from ..planning.validate import validate as score_tables
from ..schedules.catalog import entry_of
from .arguments import Counts, Factors, block_list, counts, tell, together, weight_list

if TYPE_CHECKING:
    from ..runner.profile import LayerSizes


SplitLists = Sequence[str | Sequence[int]]  # each ``"8,8,7,7"``


def split(
    *,
    weights: Factors,
    pipeline: int,
    microbatches: Counts,
    schedule: str = "1f1b",
    split: SplitLists = (),
) -> Splits:
    """Split weighted blocks over the ranks of a pipeline, and simulate each split.

        >>> debubble.split(weights="1.5,1*70,1.5", pipeline=12, microbatches=64).splits[0].split

    Splits with the same heaviest stage are not equally fast, so none is told from its weights alone.

    Args:
        weights: of the blocks in order; ``1*70`` is seventy of weight 1.
        pipeline: ranks.
        microbatches: per step; several to compare.
        schedule: by name.
        split: splits to compare with the best, in blocks of each rank.

    Raises:
        InputError: what cannot be read, all at once; or blocks that cannot fill the ranks.
    """
    # All at once, so that one run tells every option that is wrong.
    listed, many, *asked = together(
        lambda: weight_list(weights, "weights"),
        lambda: counts(microbatches, "microbatches"),
        *(lambda one=one: block_list(one, "split") for one in split),
    )
    return splits_of(listed, pipeline, many, asked, entry_of(schedule).name)


def profile(
    *,
    model: str | os.PathLike[str],
    gpu: str | os.PathLike[str],
    out: str | os.PathLike[str],
    tensor: int = 1,
    expert: int = 1,
    micro_batch: int = 1,
    sequence: int = 4096,
    repeats: int = 20,
    device: str = "auto",
    force: bool = False,
) -> LayerProfile:
    """Time one layer of a model on the device that is here, and write factors for ``plan``. Needs the extra ``torch``.

    Args:
        model: its name, or a config.json.
        gpu: the device here: its name, or your own TOML file of it.
        out: the TOML file of the factors.
        tensor: devices that share each layer.
        expert: devices over which experts are spread.
        micro_batch: samples in a micro-batch.
        sequence: tokens in a sample.
        repeats: how often the layer is timed.
        device: ``auto``, ``cpu`` or ``cuda``.
        force: take what is here for the device that is named.

    Raises:
        InputError: what cannot be read or written, all at once; or a device that is not the one named.
        Refusal: the device has no room for one layer.
    """
    if find_spec("torch") is None:  # finding it is quick, importing it takes seconds
        raise InputError(Fault("torch", "profile needs it and it is not installed", "pip install 'debubble[torch]'"))
    path = os.fspath(out)
    described, hardware, _ = together(
        lambda: read_model(os.fspath(model)), lambda: read_hardware(os.fspath(gpu)), lambda: _can_write(path)
    )
    # A layer by itself: eager kernels, and the whole residual on each device of a tensor group.
    layout = Layout(
        tensor=tensor,
        expert=expert,
        micro_batch=micro_batch,
        sequence=sequence,
        sequence_parallel=False,
        fused_kernels=False,
    )
    sizes = layer_sizes(described, layout)
    here, name = _device(device)
    if not force:
        refuse_other_device(hardware, os.fspath(gpu), name)
    runs, ends = _timed(LayerRun(described, cluster_of(hardware, 1), layout, 0.0, 0.0), sizes, here, repeats)
    calibration = calibrate_layer(runs, f"one layer of {described.name} on {name}")
    _write(calibration, path)
    return layer_profile(calibration, runs, ends, device=name, out=path)


def _can_write(path: str) -> None:
    if Path(path).suffix.lower() != ".toml":
        rule = "factors are saved as TOML, by which plan --calibrate knows them"
        raise InputError(Fault(f"out = {path}", rule, "give a name that ends in .toml"))
    if Path(path).is_dir() or not Path(path).resolve().parent.is_dir():
        raise InputError(Fault(f"out = {path}", "no file can be written there", "give a name in a folder that exists"))


def layer_sizes(model: Model, layout: Layout) -> LayerSizes:
    """What one device of the groups holds of a layer and of the vocabulary.

    Raises:
        InputError: heads, widths or experts that the groups cannot share out.
    """
    from ..estimate.model import LatentAttention
    from ..runner.profile import Experts, Latent, LayerSizes

    tensor, expert, kind = layout.tensor, layout.expert, model.whole_kind
    mixer, e = kind.attention, kind.experts
    if mixer is None or kind.feed_forward is None:
        rule = "none of its layers has attention, or none a feed-forward, and other kinds are not built here"
        raise InputError(Fault(f"model = {model.name}", rule, "calibrate with measured steps instead"))
    width, shared = (e.width, e.shared) if e else (kind.feed_forward.width, 0)
    faults = []
    for name, size in (("heads", mixer.heads), ("ffn", width), ("shared", shared)):
        if size % tensor:
            faults.append(Fault(f"tensor = {tensor}", f"it does not divide {name} {size}", "give one that does"))
    if expert > 1 and (e is None or e.count % expert):
        faults.append(Fault(f"expert = {expert}", f"it does not divide {e.count if e else 'no'} experts", "give one"))
    if faults:
        raise InputError(*faults)
    latent, experts = None, None
    if isinstance(mixer, LatentAttention):
        latent = Latent(mixer.kv, mixer.query, mixer.rotary, mixer.value)
    if e:
        experts = Experts(e.count, e.count // expert, e.active, e.width // tensor, e.shared // tensor)
    return LayerSizes(
        hidden=model.hidden,
        heads=mixer.heads // tensor,
        kv_heads=max(mixer.kv_heads // tensor, 1),
        head=mixer.head_width,
        ffn=model.ffn // tensor,
        vocab=-(-model.vocab // tensor),
        gated=kind.feed_forward.gated,
        biases=model.biases,
        rotary=model.positions == 0,
        latent=latent,
        experts=experts,
    )


def _device(wanted: str) -> tuple[str, str]:
    """Which kind of device is there, and what it calls itself; imports torch."""
    from ..runner.profile import name_of
    from ..runner.worker import device_for

    here = device_for(wanted, 1, stretched=False)
    return here, name_of(here)


def refuse_other_device(device: Hardware, asked: str, name: str) -> None:
    """Refuse where another device is here: its factors would be taken for those of the one that is named.

    A file of the user's own is taken to describe what is here.
    """
    # A driver says "NVIDIA H100 80GB HBM3"; our names begin with the same word, and say the variant after a dash.
    words = set(name.lower().replace("-", " ").split())
    named = {known for known in known_hardware() if known.lower().split("-")[0] in words}
    if Path(asked).suffix == ".toml" or device.name in named:
        return
    if named or name == "CPU":  # surely another one
        remedy = "name that, give a TOML file of your own that describes it, or --force"
        raise InputError(Fault(f"gpu = {asked}", f"the device here is: {name}", remedy))
    tell(f"the device here calls itself {name}; whether it is {device.name} cannot be told")


def _timed(
    empty: LayerRun, sizes: LayerSizes, here: str, repeats: int
) -> tuple[tuple[LayerRun, LayerRun], dict[str, Timed]]:
    """The layer as it is and a narrow one beside it; embedding and head, if there is room for logits."""
    from ..runner.profile import Shape, time_ends, time_layer

    layout = empty.layout
    shape = Shape(layout.micro_batch, layout.sequence, repeats)
    # So narrow that its kernels take no time: what is left is how long they take to be issued.
    alone = replace(layout, tensor=1, expert=1, micro_batch=1, sequence=TINY)
    narrow = replace(empty, model=tiny(empty.model), layout=alone)
    issued = time_layer(layer_sizes(narrow.model, narrow.layout), Shape(1, TINY, repeats), here)
    whole, ends = time_layer(sizes, shape, here), time_ends(sizes, shape, here)
    runs = (
        replace(empty, forward=whole.forward, backward=whole.backward, spread=whole.spread),
        replace(narrow, forward=issued.forward, backward=issued.backward, spread=issued.spread),
    )
    if ends is None:
        return runs, {}
    embedding, head = (Timed(end.forward, end.backward, end.spread) for end in ends)
    return runs, {"embedding": embedding, "head": head}


def _write(calibration: Calibration, path: str) -> None:
    with replacing(path) as stream:
        stream.write(written(calibration).encode())
    tell(f"wrote {path}")


# Columns as a table of runs has them, so that what is written can be read again; ours are last.
_HEAD = (
    *("set", "source", "model", "gpu", "gpus", "framework", "precision", "tensor", "pipeline", "data", "context"),
    *("expert", "chunks", "schedule", "micro_batch", "microbatches", "sequence", "recompute", "zero", "status"),
    *("step_seconds", "predicted_step_seconds", "error_percent", "peak_gib", "predicted_peak_gib", "time_doubt"),
)


def validate(*tables: str | PathLike[str], rows: str | PathLike[str] | None = None) -> Validation:
    """Hold the planner against tables of measured runs; each is a set by itself.

        >>> debubble.validate("runs.csv").sets[0].mape_percent

    Nothing is fitted on rows that are tested: calibrated errors are means over 20 draws of 5 rows, tested on the rest.

    Args:
        tables: CSV files, or folders of them, in the form that the documentation of ``validate`` gives.
        rows: where to write every run, predicted beside measured, as CSV.

    Raises:
        InputError: what cannot be read; all faults of all tables at once.
    """
    # Before anything is scored: scoring takes minutes, and one table that cannot be read spoils it.
    paths = list(_files(tables))
    readable: list[RunTable] = together(*(partial(read_runs, path) for path in paths))
    found, runs = score_tables(readable)
    if rows is not None:
        with replacing(Path(rows)) as stream:
            stream.write(rows_as_csv(runs).encode())
    return found


def _files(tables: Sequence[str | PathLike[str]]) -> Iterator[Path]:
    """Every CSV that is named, or lies in a folder that is."""
    if not tables:
        raise InputError(Fault("RUNS.csv", "it is required", "give tables of measured runs"))
    for path in map(Path, tables):
        if not path.is_dir():
            yield path
            continue
        inside = sorted(path.glob("*.csv"))  # so that sets come in one order on every file system
        if not inside:
            raise InputError(Fault(str(path), "it holds no CSV file", "give tables of measured runs"))
        yield from inside


def rows_as_csv(runs: Sequence[ScoredRun]) -> str:
    """Predicted beside measured, one line a run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    for scored_run in runs:
        run, layout = scored_run.run, scored_run.run.layout
        error = ""
        if run.seconds:  # a run that did not fit has no step to be off
            error = f"{100 * (scored_run.step_seconds / run.seconds - 1):.2f}"
        cells = {
            **{name: getattr(layout, name) for name in _HEAD if hasattr(layout, name)},
            "set": scored_run.set,
            "source": run.source,
            "model": run.model.name,
            "gpu": run.cluster.device.name,
            "framework": run.framework,
            "status": run.status,
            "step_seconds": _figure(run.seconds),
            "predicted_step_seconds": _figure(scored_run.step_seconds),
            "error_percent": error,
            "peak_gib": _figure(run.memory / GIB),
            "predicted_peak_gib": _figure(scored_run.peak_bytes / GIB),
            "time_doubt": run.time_doubt,
        }
        writer.writerow([cells[name] for name in _HEAD])
    return text.getvalue()


def _figure(value: float) -> str:
    """Empty for what was not measured: a table has no other word for it."""
    return f"{value:.6g}" if value else ""
