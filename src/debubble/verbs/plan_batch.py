"""``plan`` without a model: micro-batches, bubbles and how many GPUs' worth of work is done, by arithmetic alone."""

from __future__ import annotations

from ..config.config import Config
from ..config.plan import Question
from ..core.errors import Fault, InputError
from ..planning.arithmetic import Bubbled, Growth, Placed, batch_table, growth_table, orders
from ..planning.batch_plan import BatchPlan, GrowthPlan, batch_plan, growth_plan
from ..planning.launch import Rejected
from .plan_options import PlanOptions

OF_MODELS = (
    *("calibrate", "save_calibration", "launched", "framework", "emit", "price", "precision", "nic", "zero"),
    *("expert", "expert_tensor"),
)


def plan_batch(asked: PlanOptions) -> BatchPlan | GrowthPlan:
    """The table of a batch, or of one that grows.

    Raises:
        InputError: options that need a model, or too little to say anything.
    """
    asked.refuses(*OF_MODELS, why="it needs --model and --gpu")
    questions = [_question(asked, gpus) for gpus in asked.gpus or (None,)]
    if asked.rampup is not None:
        asked.needs("global_batch", "pipeline")
        return growth_plan(sizes_of_growth(asked, questions[0]))
    found: list[Bubbled] = []
    refused: list[Rejected] = []
    for question in questions:
        some, others = batch_table(question)
        found += some
        refused += others
    if not asked.pipeline:  # those that were listed stay in the order of the question
        found.sort(key=lambda one: (one.layout.gpus, one.layout.global_batch, one.idle_share))
    return batch_plan(found, refused, _orders(asked, found))


def sizes_of_growth(asked: PlanOptions, question: Question) -> list[Growth]:
    """The sizes that ``rampup`` asks for, up to the one global batch.

    Raises:
        InputError: not three numbers, several global batches, or a batch that is not reached.
    """
    rampup, batches = asked.rampup or (), asked.global_batch or ()
    if len(rampup) != 3 or len(batches) != 1:
        rule = "it is start,increment,samples up to one global batch"
        raise InputError(Fault(f"rampup = {','.join(map(str, rampup))}", rule, "give three"))
    return growth_table(question, *rampup)


def _question(asked: PlanOptions, gpus: int | None) -> Question:
    """What the options fix, and the values that they list; a micro-batch is one sample if nothing is said."""
    for name in ("tensor", "context"):
        listed = getattr(asked, name)
        if listed is not None and len(listed) > 1:
            raise InputError(Fault(f"{name} = {listed}", "without a model one value will do", "give one"))
    fixed = Config(
        gpus=gpus,
        tensor=(asked.tensor or (1,))[0],
        context=(asked.context or (1,))[0],
        data=asked.data,
        schedule=asked.schedule,
    )
    tries = {"chunks": asked.chunks or (1,), "micro_batch": asked.micro_batch or (1,)}
    listed = {name: getattr(asked, name) for name in ("pipeline", "global_batch", "microbatches")}
    return Question(fixed, tries | {name: values for name, values in listed.items() if values})


def _orders(asked: PlanOptions, found: list[Bubbled]) -> list[Placed]:
    """Which axes cross nodes, if hosts are given and one layout is asked for."""
    if asked.nodes is None or not found:
        return []
    layout = found[0].layout
    if layout.gpus % asked.nodes:
        rule = f"it does not divide {layout.gpus} GPUs"
        raise InputError(Fault(f"nodes = {asked.nodes}", rule, "give hosts with equally many devices"))
    sizes = {"pipeline": layout.pipeline, "data": layout.data, "context": layout.context, "tensor": layout.tensor}
    return orders(sizes, layout.gpus // asked.nodes)
