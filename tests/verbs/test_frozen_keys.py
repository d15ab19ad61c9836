"""JSON keys that scripts rely on: none may go or be renamed without a new number of the schema; new ones may come."""

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

import debubble
from debubble.core.results import Result

PER_RANK = "rank compute_ms warm_up_ms waiting_ms transfer_ms cool_down_ms peak_activations busy_share"
CHANGE = "change speedup step_ms makespan_ms idle_share microbatches peak_activations activations_ratio demands assumes"
WAY_OUT = "change predicted_ratio against_a_ratio microbatches idle_share peak_activations demands assumes evidence"
SIDE = "name gpus pipeline data microbatches schedule makespan_ms idle_share bubble_ratio most_busy busy evidence"
FAULT = "key value rule remedy"
DIAGNOSIS = {
    "": "source steps ranks schedule makespan_ms idle_share bubble_ratio evidence per_rank causes resim_ratio replicas"
    " matched_share clock_uncertainty_ms outside_ms step_ms pooled_idle_share findings what_if verdict chunks"
    " microbatches clocks gate predicted_ms nearest trusted worst heat transfers remarks first",
    "per_rank": PER_RANK,
    "causes": "cause cost_ms cost_share evidence remedy",
    "findings": "finding cost_ms evidence remedy gain_ratio cause rank stage replica step size_ratio",
    "what_if": CHANGE,
    "first": CHANGE,
    "clocks": "device offset_ms rate_ppm uncertainty_ms",
    "gate": "limit_share idle_share passed reasons",
}
KEYS = {
    "Show": {
        "": "schedule ranks stages microbatches makespan_ms lower_bound_ms idle_share bubble_ratio span_idle_share"
        " evidence per_rank idle_formula bubble_formula sends release warnings",
        "per_rank": PER_RANK,
    },
    "Diagnosis": DIAGNOSIS,
    "Executed": DIAGNOSIS
    | {"": f"{DIAGNOSIS['']} measured_ms loss loss_error gradient_error recording device executed_engine"},
    "PartOfRun": {"": "folder ranks bytes reason"},
    "Comparison": {
        "": "throughput_ratio factors a b bubble_explains_ratio left_over_ratio ceiling_ratio ceiling_barrier_ratio"
        " verdict next evidence first beyond missing causes check unit",
        "a": SIDE,
        "b": SIDE,
        "next": WAY_OUT,
        "beyond": WAY_OUT,
        "first": WAY_OUT,
        "missing": "key side reason",
        "causes": "cause a_ms b_ms difference_ms a_share b_share",
    },
    "Series": {"": "base runs frontier"},
    "Alone": {"": "run verdict next beyond missing bubble_allows_share", "run": SIDE, "next": WAY_OUT},
    "LayerProfile": {"": "model gpu device layer narrow_layer factors calibration evidence source rows"},
    "LayoutPlan": {
        "": "candidates rejected evidence recommended verdict legal simulated ranked error_band_share scaling growth"
        " emit emitted next",
        "candidates": "tensor pipeline data context expert chunks micro_batch microbatches schedule recompute step_ms"
        " tokens_per_second_per_gpu idle_share peak_bytes parts gpus global_batch mfu_share memory_bytes layers",
        "rejected": "gpus cause reason count",
        "scaling": "gpus fits best tokens_per_second speedup efficiency cost_per_billion_tokens",
    },
    "BatchPlan": {
        "": "candidates rejected placement verdict evidence",
        "candidates": "tensor pipeline data context expert chunks micro_batch microbatches schedule recompute step_ms"
        " tokens_per_second_per_gpu idle_share bubble_ratio peak_bytes parts gpus global_batch effective_gpus",
        "rejected": "cause reason count",
    },
    "Synthesis": {
        "": "makespan_ms span_ms lower_bound_ms gap_share status stopped method peak_activations caps least_cap engine"
        " objective best_known best_known_ms gain_ratio per_engine_ms search_s evaluations notes on_megatron robust"
        " measured_ms measured_again_ms torch_csv evidence per_rank",
        "per_rank": PER_RANK,
        "robust": "sigma steps seed mean_ms p95_ms best_nominal_p95_ms orders",
    },
    "Joint": {
        "": "split weights even_split makespan_ms even_ms even_known_ms split_gain_ratio schedule_gain_ratio tried"
        " synthesis evidence",
    },
    "GrowthPlan": {"": "candidates rejected sizes evidence", "sizes": "global_batch samples microbatches idle_share"},
    "Splits": {
        "": "splits heaviest_at_least evidence verdict",
        "splits": "split heaviest step_ms idle_share microbatches schedule balance",
    },
    "OrderCheck": {"": "legal faults warnings schedule ranks stages microbatches deadlocks", "faults": FAULT},
    "ConfigurationCheck": {"": "legal faults open warnings framework evidence", "faults": FAULT},
    "SeveralChecks": {"": "verdicts", "verdicts": "name legal faults"},
    "Fit": {
        "": "slot_ms intercept_ms bubble_ms fixed_ms outliers forecast evidence step_ms steps model why",
        "forecast": "microbatches step_ms measured_ms error_share",
    },
    "Validation": {
        "": "sets",
        "sets": "name rows mape_percent mape_after_scale_percent calibrated_mape_percent spearman top1_regret_percent"
        " calibrated_top1_regret_percent constant_mfu_mape_percent memory_median_error_percent ran_rows"
        " ran_called_too_large_share out_of_memory_recall_share out_of_memory_precision_share"
        " interval_coverage_share left_out",
    },
}


def keys_of(result: type) -> set[str]:
    return {each.name for each in fields(result) if "hidden" not in each.metadata}


def rows_of(result: type, key: str) -> set[str]:
    """Keys of the rows that stand under a key: of a dataclass, wherever it stands in its annotation."""
    return set().union(*map(keys_of, classes_in(annotation(result, key))))


def annotation(result: type, key: str) -> Any:
    named = {name: value for module in list(sys.modules.values()) for name, value in vars_of(module)}
    named |= vars(sys.modules[result.__module__])  # of two rooms that use one name, its own room says what is meant
    return get_type_hints(result, localns=named)[key]


def vars_of(module: object) -> Iterator[tuple[str, object]]:
    if getattr(module, "__name__", "").startswith("debubble"):
        yield from list(vars(module).items())


def classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for each in get_args(hint):
        yield from classes_in(each)


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_scripts_rely_on_are_there(name):
    result = getattr(debubble, name)
    for key, words in KEYS[name].items():
        held = rows_of(result, key) if key else keys_of(result)
        assert set(words.split()) <= held, (key, set(words.split()) - held)


def test_every_result_has_a_schema_that_names_it_alone():
    results = [getattr(debubble, name) for name in debubble.__all__]
    schemas = {
        each: each.schema for each in results if isinstance(each, type) and issubclass(each, Result) and each != Result
    }
    assert set(KEYS) <= {each.__name__ for each in schemas}
    assert len(set(schemas.values())) == len(schemas)
    assert all(word.rsplit("/", 1)[1].isdigit() for word in schemas.values())


def test_an_attribute_called_status_is_a_key_and_not_the_exit_status():
    results = [value for value in vars(debubble).values() if isinstance(value, type) and issubclass(value, Result)]
    results += [getattr(debubble, name) for name in KEYS]
    for each in results:
        assert not hasattr(each, "status") or "status" in keys_of(each), each
