"""``run --profile``: one layer of a model timed on the device that is there, written as factors for ``plan``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from ..verbs.needs import needed, unused
from .console import say, warn, wrote
from .options import COUNT, together

if TYPE_CHECKING:
    from ..config.layout import Layout
    from ..estimate.constants import Calibration
    from ..estimate.hardware import Hardware
    from ..estimate.model import Model
    from ..planning.calibrate_layer import LayerRun
    from ..runner.layer import LayerSizes
    from ..runner.profile import Timed

Command = Callable[..., Any]

_SIZES = {"tensor": 1, "expert": 1, "micro_batch": 1, "sequence": 4096, "repeats": 20}
_OPTIONS = (
    ("--gpu", str, "the device here: its name, or your own TOML file of it."),
    ("--tensor", COUNT, "devices that share each layer.  [default: 1]"),
    ("--expert", COUNT, "devices over which experts are spread.  [default: 1]"),
    ("--micro-batch", COUNT, "samples in a micro-batch.  [default: 1]"),
    ("--sequence", COUNT, "tokens in a sample.  [default: 4096]"),
    ("--repeats", COUNT, "how often the layer is timed.  [default: 20]"),
)
_FLAGS = (
    ("--profile", "Time one layer of --model (a name or config.json) and write factors for plan to --out."),
    ("--force", "With --profile: take what is here for the device of --gpu."),
)
_OWN, _LOOKS = ("model", "out", "device"), ("as_json", "ascii", "no_color")  # options of ``run`` that it has too


def profile_options(command: Command) -> Command:
    """Add ``--profile`` and what goes with it; the command takes them as ``layer``, a dictionary."""
    names = [option[2:].replace("-", "_") for option, *_ in (*_FLAGS, *_OPTIONS)]

    @wraps(command)
    def with_layer(*args: Any, **given: Any) -> Any:
        return command(*args, layer={name: given.pop(name) or None for name in names}, **given)

    for option, kind, sentence in reversed(_OPTIONS):
        with_layer = click.option(option, type=kind, help=f"With --profile: {sentence}")(with_layer)
    for option, sentence in reversed(_FLAGS):
        with_layer = click.option(option, is_flag=True, help=sentence)(with_layer)
    return with_layer


def refuse_layer(layer: dict[str, Any]) -> None:
    """Without ``--profile``: refuse what goes with it.

    Raises:
        InputError: all that was given.
    """
    unused(layer, *layer, why="it goes with --profile")


def profile(layer: dict[str, Any], run: dict[str, Any], *, as_json: bool) -> None:
    """Time a layer, write the factors, and print both.

    Args:
        layer: options of ``profile_options``.
        run: those of ``run``, of which a profile has ``model``, ``out`` and ``device``, and refuses the rest.
        as_json: whether to print JSON.

    Raises:
        InputError: what is missing or wrong on the command line, or a device that is not the one named.
        Refusal: the device has no room for one layer.
    """
    from ..estimate.hardware import cluster_of, read_hardware
    from ..estimate.read_model import read_model
    from ..planning.calibrate_layer import LayerRun, calibrate_layer
    from .profiled import document, text

    said: dict[str, Any] = layer | {name: layer[name] or usual for name, usual in _SIZES.items()}
    said |= {name: run[name] or None for name in _OWN}
    together(lambda: needed(said, "model", "gpu", "out"), lambda: _refuse_others(layer))
    model, device, _ = together(
        lambda: read_model(said["model"]), lambda: read_hardware(said["gpu"]), lambda: _can_write(said["out"])
    )
    layout = _layout(said)
    sizes = layer_sizes(model, layout)
    here, name = _device(said["device"])
    if layer["force"] is None:
        _refuse_other(device, said["gpu"], name)
    empty = LayerRun(model, cluster_of(device, 1), layout, 0.0, 0.0)
    runs, ends = _timed(empty, sizes, here, said["repeats"])
    calibration = calibrate_layer(runs, f"one layer of {model.name} on {name}")
    _write(calibration, said["out"])
    found = document(calibration, runs, ends) | {"device": name, "calibration": said["out"]}
    if as_json:
        from .report import emit

        emit(found)
    else:
        say(text(found))


def _refuse_others(layer: dict[str, Any]) -> None:
    context = click.get_current_context()
    typed = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    others = [name for name in typed if name not in (*_OWN, *_LOOKS, *layer)]
    unused(typed, *others, why="--profile times a layer and no pipeline")


def _can_write(path: str) -> None:
    if Path(path).suffix.lower() != ".toml":
        rule = "factors are saved as TOML, by which plan --calibrate knows them"
        raise InputError(Fault(f"out = {path}", rule, "give a name that ends in .toml"))
    if Path(path).is_dir() or not Path(path).resolve().parent.is_dir():
        raise InputError(Fault(f"out = {path}", "no file can be written there", "give a name in a folder that exists"))


def _layout(said: dict[str, Any]) -> Layout:
    """A layer by itself: eager kernels, and the whole residual on each device of a tensor group."""
    from ..config.layout import Layout

    sizes = {name: said[name] for name in ("tensor", "expert", "micro_batch", "sequence")}
    return Layout(**sizes, sequence_parallel=False, fused_kernels=False)


def layer_sizes(model: Model, layout: Layout) -> LayerSizes:
    """What one device of the groups holds of a layer and of the vocabulary.

    Raises:
        InputError: heads, widths or experts that the groups cannot share out.
    """
    from ..estimate.model import LatentAttention
    from ..runner.layer import Experts, Latent, LayerSizes

    tensor, expert, kind = layout.tensor, layout.expert, model.last_kind
    mixer, e = kind.mixer, kind.experts
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
    from ..runner.preflight import device_for
    from ..runner.profile import name_of

    here = device_for(wanted, 1, stretched=False)
    return here, name_of(here)


def _refuse_other(device: Hardware, asked: str, name: str) -> None:
    """Refuse where another device is here: its factors would be taken for those of the one that is named.

    A file of the user's own is taken to describe what is here.
    """
    from ..estimate.hardware import known_hardware

    words = set(name.lower().replace("-", " ").split())
    named = {known for known in known_hardware() if known.lower().split("-")[0] in words}
    if Path(asked).suffix == ".toml" or device.name in named:
        return
    if named or name == "CPU":
        remedy = "name that, give a TOML file of your own that describes it, or --force"
        raise InputError(Fault(f"gpu = {asked}", f"the device here is: {name}", remedy))
    warn(f"the device here calls itself {name}; whether it is {device.name} cannot be told")


def _timed(
    empty: LayerRun, sizes: LayerSizes, here: str, repeats: int
) -> tuple[tuple[LayerRun, ...], dict[str, Timed]]:
    """The layer as it is and a narrow one beside it; embedding and head, where there is room for logits."""
    from ..planning.calibrate_layer import TINY, tiny
    from ..runner.profile import Shape, time_ends, time_layer

    layout = empty.layout
    shape = Shape(layout.micro_batch, layout.sequence, repeats)
    narrow = replace(
        empty, model=tiny(empty.model), layout=replace(layout, tensor=1, expert=1, micro_batch=1, sequence=TINY)
    )
    issued = time_layer(layer_sizes(narrow.model, narrow.layout), Shape(1, TINY, repeats), here)
    whole, ends = time_layer(sizes, shape, here), time_ends(sizes, shape, here)
    runs = tuple(
        replace(run, forward=timed.forward, backward=timed.backward, spread=timed.spread)
        for run, timed in ((empty, whole), (narrow, issued))
    )
    return runs, dict(zip(("embedding", "head"), ends, strict=True)) if ends else {}


def _write(calibration: Calibration, path: str) -> None:
    from ..core.atomic import replacing
    from ..planning.calibration_file import written

    with replacing(path) as stream:
        stream.write(written(calibration).encode())
    wrote(path)
