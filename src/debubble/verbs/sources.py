"""What a path holds, told by its content: a measurement (``read``), jobs of a TOML or a launch script, or a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from ..config.config import Config
from ..config.derive import settled
from ..core.errors import Fault, InputError
from ..core.observation import Observation
from ..diagnosis.fit import Fit, Sizes, fit_of
from ..diagnosis.log_run import LoggedRun, logged_run
from ..frameworks.catalog import FRAMEWORKS, configurations_of
from ..frameworks.keys import dump_pairs, read_config
from ..frameworks.megatron import MEGATRON
from ..readers.columns import parse_mapping
from ..readers.files import first_bytes, place
from ..readers.job_toml import is_job, read_jobs
from ..readers.kineto import in_processes, on_ray
from ..readers.source import Ask, is_log
from ..readers.source import read as read_source
from ..readers.steplog import read_steps
from ..reconstruct.positions import Said
from .arguments import steps as as_steps

AnyPath = str | PathLike[str]
Steps = str | tuple[int, int]  # ``"10:20"``: the first and the last


def read(
    run: AnyPath | Sequence[AnyPath],
    *,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
) -> Observation:
    """Read what was measured of one run.

    Args:
        run: a recording, a trace, a table of ops, a folder of them, or several of one run.
        ranks: positions in the pipeline, if the files do not tell.
        data: data-parallel replicas, if they do not tell.
        chunks: stages on a rank, if they do not tell.
        steps: the first and the last to use, both included.
        columns: what a table's columns are called, ours to theirs: ``"rank=worker,.."``.
        ray: read the ranks of recordings, Kineto and Chrome traces as Ray tasks.

    Raises:
        InputError: nothing is there, nothing of it is known, several runs are mixed, or no window is whole.
        Refusal: there is no pipeline in it.
    """
    asked = ask_of(ranks=ranks, data=data, chunks=chunks, steps=steps, columns=columns, ray=ray)
    return read_source(paths_of(run), asked)


def ask_of(
    *,
    ranks: int | None,
    data: int | None,
    chunks: int | None,
    steps: Steps | None,
    columns: str | Mapping[str, str] | None,
    ray: bool,
) -> Ask:
    """What the user says beside the paths, as readers take it."""
    if isinstance(steps, str):
        steps = as_steps(steps)
    if isinstance(columns, str):
        columns = parse_mapping(columns)
    named = None if columns is None else dict(columns)
    spread = on_ray if ray else in_processes  # ranks of a folder are read side by side either way
    return Ask(Said(ranks, data, chunks, steps), named, spread, ray)


def paths_of(run: AnyPath | Sequence[AnyPath]) -> list[Path | str]:
    """One path or several, as a list; addresses such as ``s3://`` stay as they are."""
    if isinstance(run, Path):
        return [run]
    if isinstance(run, str | PathLike):
        return [fspath(run)]
    paths: list[Path | str] = []
    for path in run:
        paths += paths_of(path)
    return paths


# Suffixes of launch configurations: no trace, log or table of ops ends so.
LAUNCHERS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".py", ".yaml", ".yml"})
# Bytes of a log in which its arguments are: warnings of launchers and of every rank may come first.
HEAD = 4_000_000

Source = Observation | AnyPath


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run that a source holds.

    Args:
        what: stated or measured.
        fit: of its step times, if it is a log of several.
    """

    what: Config | Observation | LoggedRun
    fit: Fit | None = None


def read_runs(sources: Sequence[Source], ask: Ask, micro_batch: int | None = None) -> list[Run]:
    """Every run that the sources hold, in their order: a job file may hold a series, a folder holds one measured run.

    Args:
        sources: observations, job files, launch configurations, recordings, traces, logs of steps.
        ask: what traces and logs do not tell.
        micro_batch: samples in one, which logs do not tell either.

    Raises:
        InputError: what is wrong with any of them, all at once.
    """
    runs: list[Run] = []
    faults: list[Fault] = []
    for source in sources:
        if isinstance(source, Observation):
            runs.append(Run(source))
            continue
        try:
            runs += _runs_of(source, ask, micro_batch)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*faults)
    return runs


def _runs_of(source: AnyPath, ask: Ask, micro_batch: int | None) -> list[Run]:
    (path,) = (place(each) for each in paths_of(source))
    # The suffix goes first: the words of a launch script would pass for a log, and its YAML for a table.
    if path.suffix.lower() in {".toml", *LAUNCHERS}:
        return [Run(job) for job in jobs_of_file(Path(path))]
    if path.exists() and is_log(path, ask):
        return [_run_of_log(path, ask.said, micro_batch)]
    return [Run(read_source([path], ask))]


def jobs_of_file(path: Path) -> tuple[Config, ...]:
    """The runs of a job TOML, or those that a launch configuration describes; its content decides.

    Raises:
        InputError: what cannot be read, of no known framework, or contradicts itself; all of it.
    """
    # A function of a Python file is named after a colon, as in ``recipe.py:pretrain``.
    plain = path if path.exists() else path.with_name(path.name.rsplit(":", 1)[0])
    if not plain.is_file():
        raise InputError(Fault(str(path), "no such file", "give a job TOML, a launch script, a recording or traces"))
    if plain.suffix.lower() not in LAUNCHERS and is_job(plain):
        return read_jobs(plain)
    jobs = []
    for config in configurations_of(path):
        framework = FRAMEWORKS[config.framework or ""]  # which it was recognised by
        # What the framework would fill in is filled in: a script leaves most of its launch to defaults.
        jobs.append(settled(framework.filled(config)))
    return tuple(jobs)


def _run_of_log(path: Path, said: Said, micro_batch: int | None) -> Run:
    """A job whose step and batch are those of most steps in a log; with sizes, also the fit of all its settings.

    Args:
        path: of the log, or of a table of step times.
        said: ranks of a pipeline, replicas and chunks, if the log does not begin with its arguments.
        micro_batch: samples in one; None if unknown.

    Raises:
        InputError: no step time is in it, or the sizes do not fit its batches.
    """
    log = read_steps(path)
    sizes = config_of_log(path).filled(pipeline=said.ranks, data=said.data, micro_batch=micro_batch, chunks=said.chunks)
    run = logged_run(log, sizes)
    job = run.job
    if job.pipeline is None or job.microbatches is None:
        return Run(run)  # without them no step time can be parted into slots and bubble
    return Run(run, fit_of(log, Sizes(job.pipeline, job.data, job.micro_batch)))


def config_of_log(path: Path) -> Config:
    """What a log says of its own launch: the arguments that Megatron-LM prints before its first step.

    Returns:
        All of it absent if the log does not begin with arguments.

    Raises:
        InputError: the file cannot be read, or arguments are not what their key takes; all of them.
    """
    if path.is_dir():  # structured logs of torchtitan, which say nothing of their launch
        return Config(name=path.name)
    try:
        # Only the head: logs of weeks have gigabytes, and arguments are printed first.
        text = first_bytes(place(path), HEAD).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a log")) from error
    pairs = dump_pairs(text, path.name)
    if not pairs:
        return Config(name=path.name)
    # A dump is whole: an argument that it does not hold is absent, not left to a default.
    return MEGATRON.filled(read_config(MEGATRON, pairs, path.name, whole=True))
