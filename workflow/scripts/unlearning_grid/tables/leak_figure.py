"""Stage: leakage against the number of samples as a picture, every policy beside its base model."""

from pathlib import Path
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.colours import colours
from unlearning_grid.tables.leak import EVENTS, leak_tables
from unlearning_grid.tables.results import Results, open_results

GREEDY = 0.5  # where the greedy completions stand on the axis of k, left of one sample
SPREAD = 0.9  # how far apart their marks lie, in doublings of k, so that equal ones are seen
BEFORE = {"base": ("base", "#333333"), "warmup": ("warm-up", "#888888")}
COLUMNS = (
    "kind",
    "size",
    "init",
    "reward",
    "judge_entry",
    "event",
    "k",
    "median",
    "q1",
    "q3",
    "n",
    "greedy",
)


def plot(job: Job) -> dict[str, Any]:
    """Write "png", "pdf" and the plotted "points" (CSV)."""
    points = leak_points(open_results(job.inputs["plan"]))
    points.to_csv(job.outputs["points"], index=False, float_format="%.6g", lineterminator="\n")
    draw(points, job.outputs["png"], job.outputs["pdf"])
    return {"points": len(points)}


def leak_points(results: Results) -> Any:
    """Medians and quartiles over targets of what was evaluated, by the judge that labels all."""
    table = leak_tables(results)["leak_at_k"]
    first = results.plan["sampled_audits"][0]["judge"]
    kept = (table["population"] == "evaluated") & (table["judge_entry"] == first)
    points = table[kept].dropna(subset=["median"])[list(COLUMNS)].reset_index(drop=True)
    return points.astype({"greedy": "float64"})  # all missing, it would be of objects


def draw(points: Any, png: Path, pdf: Path) -> None:
    """A row of panels per size; a column per event and init. Bands are quartiles over targets."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cells = points[points["kind"] == "grpo"]
    sizes = list(cells["size"].unique()) or [None]
    columns = [(event, init) for event in EVENTS for init in list(cells["init"].unique()) or [None]]
    figure, axes = plt.subplots(
        len(sizes),
        len(columns),
        figsize=(2.9 * len(columns) + 0.3, 2.3 * len(sizes) + 0.8),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    colour_of = colours(cells["reward"])
    lines: dict[str, Any] = {}
    for row, size in enumerate(sizes):
        axes[row][0].set_ylabel(f"{size}\nleak@k" if size else "leak@k")
        for column, (event, init) in enumerate(columns):
            shown = points[(points["event"] == event) & (points["size"] == size)]
            lines |= _panel(axes[row][column], shown, init, colour_of)
            if row == 0:
                axes[row][column].set_title(f"{event}, {init}" if init else event, fontsize=10)
    for axis in axes.flat:
        _scale(axis, sorted(points["k"].unique()))
    for axis in axes[-1]:
        axis.set_xlabel("completions drawn, k")
    order = [*(label for label, _ in BEFORE.values()), *colour_of]
    labels = [label for label in order if label in lines]
    if labels:
        handles = [lines[label] for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    figure.savefig(png, dpi=150, metadata={"Software": None})
    figure.savefig(pdf, metadata={"CreationDate": None, "Producer": None, "Creator": None})
    plt.close(figure)


def _panel(axis: Any, points: Any, init: str | None, colour_of: dict[str, str]) -> dict[str, Any]:
    """Label -> line: the base model, the warm-up where cells start from it, and every reward."""
    axis.grid(alpha=0.25)
    axis.tick_params(labelsize=8)
    cells = points[(points["kind"] == "grpo") & (points["init"] == init)]
    if cells.empty:
        return {}
    curves = [
        (reward, colour, cells[cells["reward"] == reward]) for reward, colour in colour_of.items()
    ]
    for kind, (label, colour) in BEFORE.items():
        if kind == "base" or init == "warm":
            curves.append((label, colour, points[points["kind"] == kind]))
    curves = [(label, colour, curve) for label, colour, curve in curves if len(curve)]
    marks = [
        GREEDY * 2 ** (SPREAD * (n / max(1, len(curves) - 1) - 0.5)) for n in range(len(curves))
    ]
    return {
        label: _line(axis, curve.sort_values("k"), colour, label in colour_of, mark)
        for (label, colour, curve), mark in zip(curves, marks, strict=True)
    }


def _line(axis: Any, curve: Any, colour: str, trained: bool, mark: float) -> Any:
    """One policy's curve with its band, and its greedy share at `mark`."""
    style = "-" if trained else "--"
    (line,) = axis.plot(curve["k"], curve["median"], style, color=colour, lw=1.4)
    filled = colour if trained else "white"
    axis.plot(mark, curve["greedy"].iloc[0], "o", color=colour, mfc=filled, ms=4.5, clip_on=False)
    band = curve[curve["n"] > 1]
    axis.fill_between(band["k"], band["q1"], band["q3"], color=colour, alpha=0.15, lw=0)
    return line


def _scale(axis: Any, ks: list[int]) -> None:
    """Doublings of k to the right of the greedy completions, and shares from 0 to 1."""
    shown = [k for k in ks if k == ks[-1] or 1.6 * k <= ks[-1]]  # 48 leaves out 32
    axis.set_xscale("log", base=2)
    axis.set_xticks([GREEDY, *shown], ["greedy", *map(str, shown)], fontsize=7)
    axis.minorticks_off()
    axis.set_ylim(-0.03, 1.03)
    axis.axvline(GREEDY * 2**0.65, color="#bbbbbb", lw=0.8)
