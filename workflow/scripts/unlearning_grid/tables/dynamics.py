"""Stage: training dynamics as a picture: reward, active groups, KL and length by step."""

from pathlib import Path
from typing import Any

from unlearning_grid.paths import policy_dir
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.colours import colours
from unlearning_grid.tables.results import CURRENT, Results, open_results

PANELS = {
    "reward": "mean reward",
    "active_group_rate": "active-group rate",
    "kl": "KL to reference\n(nats per token)",
    "completions/mean_length": "completion length\n(tokens)",
}


def plot(job: Job) -> dict[str, Any]:
    """Write "png", "pdf" and the plotted "points" (CSV)."""
    points = dynamics_points(open_results(job.inputs["plan"]))
    points.to_csv(job.outputs["points"], index=False, float_format="%.6g", lineterminator="\n")
    draw(points, job.outputs["png"], job.outputs["pdf"])
    return {"points": len(points)}


def dynamics_points(results: Results) -> Any:
    """Mean, sample sd and n over the runs of a size, init and reward, at every step and metric."""
    import pandas as pd

    frames = []
    for cell in results.cells:
        folder = policy_dir(cell["policy"])
        if results.state(folder).status != CURRENT:
            continue
        metrics = pd.read_parquet(folder / "metrics.parquet")
        kept = metrics[metrics["name"].isin(list(PANELS))]
        facts = {name: cell[name] for name in ("size", "init", "reward")}
        frames.append(kept.assign(**facts))
    columns = ["size", "init", "reward", "name", "step"]
    if not frames:
        return pd.DataFrame(columns=[*columns, "mean", "sd", "n"])
    values = pd.concat(frames, ignore_index=True).dropna(subset=["value"])
    grouped = values.groupby(columns)["value"]
    return grouped.agg(mean="mean", sd="std", n="count").reset_index().sort_values(columns)


def draw(points: Any, png: Path, pdf: Path) -> None:
    """One row of panels per size and init; bands are one sample sd where there are two runs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    blocks = list(points[["size", "init"]].drop_duplicates().itertuples(index=False)) or [None]
    figure, axes = plt.subplots(
        len(blocks),
        len(PANELS),
        figsize=(3.2 * len(PANELS), 2.4 * len(blocks) + 0.6),
        squeeze=False,
        layout="constrained",
    )
    colour_of = colours(points["reward"])
    for row, block in enumerate(blocks):
        for column, (name, title) in enumerate(PANELS.items()):
            axis = axes[row][column]
            if block is not None:
                kept = (points["size"] == block[0]) & (points["init"] == block[1])
                _panel(axis, points[kept & (points["name"] == name)], colour_of)
                if column == 0:
                    axis.set_ylabel(f"{block[0]}, {block[1]}")
            if row == 0:
                axis.set_title(title, fontsize=10)
            if row == len(blocks) - 1:
                axis.set_xlabel("optimizer step")
            if name in ("reward", "active_group_rate"):
                axis.set_ylim(-0.03, 1.03)
    handles = {label: line for a in axes.flat for line, label in zip(*_legend(a), strict=True)}
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=max(1, len(handles))
    )
    figure.savefig(png, dpi=150, metadata={"Software": None})
    figure.savefig(pdf, metadata={"CreationDate": None, "Producer": None, "Creator": None})
    plt.close(figure)


def _panel(axis: Any, points: Any, colour_of: dict[str, str]) -> None:
    for reward, line in points.groupby("reward"):
        colour = colour_of[str(reward)]
        runs = line["n"].max()
        axis.plot(line["step"], line["mean"], color=colour, label=f"{reward} (n = {runs})", lw=1.4)
        band = line[line["n"] > 1]
        axis.fill_between(
            band["step"],
            band["mean"] - band["sd"],
            band["mean"] + band["sd"],
            color=colour,
            alpha=0.18,
            lw=0,
        )
        survivors = line[line["n"] < runs]
        if len(survivors):  # fewer runs from here on: the rest was stopped
            first = survivors.iloc[0]
            axis.plot(first["step"], first["mean"], marker="o", ms=4, color=colour)
    axis.grid(alpha=0.25)
    axis.tick_params(labelsize=8)


def _legend(axis: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axis.get_legend_handles_labels()
    return handles, labels
