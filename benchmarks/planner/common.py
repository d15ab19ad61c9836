"""What all published tables share: cells as numbers, names of models and devices, and the usual columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from debubble.core.errors import InputError
from debubble.estimate.hardware import read_hardware
from debubble.estimate.read_model import FOLDER

Cells = dict[str, str]
_SIZE = re.compile(r"\d b\b")


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of published table.

    Args:
        columns: by which it is known.
        some_of: further columns, of which it has at least one.
        row: a row of it in the form of tables of measured runs.
        set_of: name of the set that a row belongs to, from the row and the stem of its file.
        prepared: the rows with what only all of them together say.
    """

    columns: frozenset[str]
    row: Callable[[Cells], Cells]
    set_of: Callable[[Cells, str], str]
    prepared: Callable[[list[Cells]], list[Cells]] = list
    some_of: frozenset[str] = frozenset()

    def knows(self, columns: set[str]) -> bool:
        """Whether a table with these columns is of this kind."""
        return self.columns <= columns and (not self.some_of or bool(self.some_of & columns))


def number(cells: Cells, name: str, otherwise: float = 0.0) -> float:
    """A cell as a number; what is empty or no number is ``otherwise``."""
    try:
        return float(cells.get(name) or otherwise)
    except ValueError:
        return otherwise


def whole(cells: Cells, *names: str) -> str:
    """The first of these cells that holds a whole number, as text; empty if none does."""
    for name in names:
        text = cells.get(name) or ""
        try:
            return str(int(float(text)))
        except ValueError:
            continue
    return ""


def text(value: float) -> str:
    """A number as a cell: enough digits that nothing is lost, none for 0."""
    return f"{value:.12g}" if value else ""


def flag(value: bool) -> str:
    """A switch as a cell."""
    return "1" if value else "0"


def usual(cells: Cells) -> Cells:
    """The columns that nearly every table has, by their usual names."""
    found = {
        "layers": whole(cells, "n_layers"),
        "hidden": whole(cells, "hidden"),
        "heads": whole(cells, "n_heads"),
        "kv_heads": whole(cells, "kv_heads", "kv_heads_inferred"),
        "ffn": whole(cells, "ffn"),
        "vocab": whole(cells, "vocab"),
        "gpus": whole(cells, "gpus"),
        "framework": cells.get("framework", ""),
        "precision": precision_of(cells.get("precision") or cells.get("dtype") or ""),
        "sequence": whole(cells, "seq_len"),
        "global_batch": whole(cells, "gbs"),
        "micro_batch": whole(cells, "mbs"),
        "tensor": whole(cells, "tp"),
        "pipeline": whole(cells, "pp"),
        "data": whole(cells, "dp"),
        "context": whole(cells, "cp"),
        "expert": whole(cells, "ep"),
        "expert_tensor": whole(cells, "etp"),
        "chunks": whole(cells, "vp"),
        "zero": whole(cells, "zero_stage"),
        "recompute": recompute_of(cells.get("recompute") or ""),
        "task": cells.get("task", ""),
        "status": cells.get("status") or "ok",
        "step_seconds": text(number(cells, "step_time_s") or number(cells, "step_time_s_derived")),
        "source": cells.get("source", ""),
        "note": noted(cells, "note", "hardware", "release", "container", "variant", "date"),
    }
    if not found["step_seconds"]:
        found["tokens_per_second_per_gpu"] = text(number(cells, "tokens_s_gpu"))
    return found


def noted(cells: Cells, *names: str) -> str:
    """What a source says of a row in columns that have no name here."""
    return "; ".join(f"{name}: {cells[name]}" for name in names if cells.get(name))


def precision_of(title: str) -> str:
    """``bf16``, ``fp16``, ``fp8`` or ``fp4``: NVFP4, MXFP8 and FP8-CS are kinds of the last two."""
    for precision in ("bf16", "fp16", "fp4", "fp8"):
        if precision in title.lower():
            return precision
    return ""


def recompute_of(title: str) -> str:
    """``none``, ``selective`` or ``full``, the first word of what sources write, as in ``selective+SP``."""
    first = re.match(r"[a-z]+", title.lower())
    return first[0] if first and first[0] in ("none", "selective", "full") else ""


def split_of(layers: Iterable[int]) -> str:
    """A split as a cell."""
    return " ".join(map(str, layers))


def gpu_of(title: str) -> str:
    """The device of a title such as ``DGX-GB200`` or ``A100 (8/node; ..)``; the title itself if none is known."""
    for word in re.split(r"[\s(,;]+", re.sub(r"^DGX-|-SXM\b", "", title)):
        name = {"a100": "A100-80GB"}.get(word.lower(), word)
        try:
            return read_hardware(name).name
        except InputError:
            continue
    return title


# Titles of models that do not say their name: NVIDIA calls its GPT-3 benchmark by the framework.
_TITLES = {"nemo megatron": "gpt3-175b"}


def model_of(title: str) -> str:
    """The model that a title names, by the longest name of ours that it holds word by word; else the title itself.

    A size in the title is a part of the name: ``GPT3-5B`` is not ``gpt3``.
    """
    words = f" {_words(title)} "
    for name, file in _model_names():
        if f" {name} " in words and (_SIZE.search(name) or not _SIZE.search(words)):
            return file
    return title


@cache
def _model_names() -> tuple[tuple[str, str], ...]:
    """Every name of a model in words, the longest first, with the model."""
    names = dict(_TITLES)
    for file in FOLDER.glob("*.toml"):
        for name in (file.stem, *_also(file.stem)):
            names[_words(name)] = file.stem
    return tuple(sorted(names.items(), key=lambda item: -len(item[0])))


def _also(name: str) -> tuple[str, ...]:
    import tomllib

    return tuple(tomllib.loads((FOLDER / f"{name}.toml").read_text())["also"])


def _words(title: str) -> str:
    """Lower case, with letters and digits apart: ``LLAMA3_70B`` and ``Llama 3 70b`` are ``llama 3 70 b``."""
    return " ".join(re.findall(r"[a-z]+|\d+(?:\.\d+)?", title.lower()))


def most_common(rows: list[Cells], key: str, value: str) -> dict[str, str]:
    """For each value of one column the value of another that its rows have most often."""
    counts: dict[str, Counter[str]] = {}
    for cells in rows:
        if cells[value]:
            counts.setdefault(cells[key], Counter())[cells[value]] += 1
    return {name: count.most_common(1)[0][0] for name, count in counts.items()}
