"""``show``: simulate a schedule, draw it, and say how big its bubble is and where each rank's time goes."""
from __future__ import annotations
import click
from .options import COUNT, Verb, json_option, look_options, rate_options

@click.command(cls=Verb)
@click.argument("schedule")
@click.option("-p", "--ranks", type=COUNT)
@click.option("-m", "--microbatches", type=COUNT)
@rate_options
@look_options
@json_option
def show(schedule, ranks, microbatches, rates, look, as_json):
    from ..schedules.catalog import build
    from ..schedule import Shape
    from ..lower import lower
    from ..simulate import simulate
    from ..costs import costs_of
    from ..account import account
    from ..memory import peak_activations
    from .report import bubbles, per_rank, emit
    s = build(schedule, Shape(ranks, microbatches))
    t = simulate(lower(s), costs_of(rates, s))
    emit(bubbles(account(t)) | {"per_rank": per_rank(account(t), peak_activations(s))})
