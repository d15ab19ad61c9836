"""Log how much a run idled, why, and the verdict, to Weights & Biases or TensorBoard.

    python log_bubble.py traces/ --wandb my-project
    python log_bubble.py traces/ --tensorboard runs/eight --step 1000

Logged once a run, or once for each recording of a job that goes on (``--step``): ``bubble/idle_share``,
``bubble/bubble_ratio``, ``bubble/makespan_ms``, ``bubble/cause/NAME`` (its share of the window), the busy share of each
rank, and the verdict as text.
"""

from __future__ import annotations

import argparse

import debubble


def scalars(found: debubble.Diagnosis) -> dict[str, float]:
    """The figures of a diagnosis under names that sort next to each other."""
    logged = {
        "bubble/idle_share": found.idle_share,
        "bubble/bubble_ratio": found.bubble_ratio,
        "bubble/makespan_ms": found.makespan_ms,
    }
    for cause in found.causes:
        logged[f"bubble/cause/{cause.cause}"] = cause.cost_share
    for rank in found.per_rank:
        logged[f"bubble/rank/{rank.rank}/busy_share"] = rank.busy_share
    return logged


def to_wandb(found: debubble.Diagnosis, project: str, step: int | None) -> None:
    """One run of a project: figures over steps, the verdict and the page beside them."""
    import wandb

    with wandb.init(
        project=project, name=found.source, config={"schedule": found.schedule, "ranks": found.ranks}
    ) as run:
        run.log(scalars(found), step=step)
        run.summary["verdict"] = " ".join(found.verdict)
        run.log({"bubble/page": wandb.Html(found.html())}, step=step)


def to_tensorboard(found: debubble.Diagnosis, folder: str, step: int | None) -> None:
    """Figures as scalars and the verdict as text, in a folder that TensorBoard reads."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        for name, value in scalars(found).items():
            writer.add_scalar(name, value, step)
        writer.add_text("bubble/verdict", "\n\n".join(found.verdict), step)


def main() -> None:
    """Diagnose, then log to where the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a recording, a trace, or a folder of traces")
    parser.add_argument("--wandb", metavar="PROJECT")
    parser.add_argument("--tensorboard", metavar="DIR")
    parser.add_argument("--step", type=int, help="the step of the job at which it was recorded")
    asked = parser.parse_args()
    found = debubble.diagnose(asked.run)
    if asked.wandb:
        to_wandb(found, asked.wandb, asked.step)
    if asked.tensorboard:
        to_tensorboard(found, asked.tensorboard, asked.step)
    print("\n".join(found.verdict))


if __name__ == "__main__":
    main()
