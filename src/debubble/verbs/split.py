"""``split``: the best split of uneven blocks over ranks, each simulated exactly."""

from __future__ import annotations

from collections.abc import Sequence

from ..planning.split_result import Splits, splits_of
from ..schedules.catalog import entry_of
from .arguments import Counts, Factors, block_list, counts, together, weight_list

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
