"""``profile``: one layer of a model timed on the device that is here, written as factors for ``plan --calibrate``."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.layout import Layout
from ..core.errors import Fault, InputError
from ..core.safe_output import replacing
from ..estimate.constants import Calibration
from ..estimate.hardware import Hardware, cluster_of, known_hardware, read_hardware
from ..estimate.model import Model
from ..estimate.read_model import read_model
from ..planning.calibrate_layer import TINY, LayerRun, calibrate_layer, tiny
from ..planning.calibration_file import written
from ..planning.layer_profile import LayerProfile, Timed, layer_profile
from .arguments import together
from .telling import tell

if TYPE_CHECKING:
    from ..runner.profile import LayerSizes


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
    from ..runner.world import device_for

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
