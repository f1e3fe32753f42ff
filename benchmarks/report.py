"""How the results are shown: a table with targets, a Markdown page, JSON and a plot.

Measures nothing. The targets are for the full sizes; a smaller run (``--fast``) shows them without saying whether they
are met.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.machine import Fact
from benchmarks.measure import FULL, Results, Sizes
from benchmarks.timing import Timing
from dpmcmc.output import INK, LINE, PICTURE_STYLE, OutputError, replace_file


class Target(NamedTuple):
    """What a figure should reach: at least ``bound`` if ``above``, else at most ``bound``."""

    above: bool
    bound: float

    def met_by(self, figure: float) -> bool:
        """Return whether a figure reaches it."""
        return figure >= self.bound if self.above else figure <= self.bound


def _at_least(bound: float) -> Target:
    return Target(True, bound)


def _at_most(bound: float) -> Target:
    return Target(False, bound)


# On two cores, with the sizes of `FULL`.
TARGETS: dict[str, Target] = {
    "gradient_speedup.logistic.4": _at_least(4.0),
    "gradient_speedup.gaussian.4": _at_least(2.0),
    "gradient_speedup.banana.4": _at_least(8.0),
    "gradient_speedup.logistic.40": _at_least(20.0),
    "gradient_speedup.gaussian.40": _at_least(10.0),
    "gradient_speedup.banana.40": _at_least(10.0),
    **{f"draw_vs_blackjax.logistic.{chains}": _at_most(1.0) for chains in (4, 40)},
    **{f"draw_vs_blackjax.gaussian.{chains}": _at_most(0.5) for chains in (4, 40)},
    **{f"draw_vs_blackjax.banana.{chains}": _at_most(4.0) for chains in (4, 40)},
    "draw_vs_floor.logistic": _at_most(2.5),
    "noise_overhead": _at_most(1.1),
    "memory_mb_above_data": _at_most(400.0),
    "time_per_record_growth": _at_most(1.5),
}


class Row(NamedTuple):
    """One line of the table.

    Attributes
    ----------
    group, what
        Heading above the line, and its name.
    ours, peer
        Times of dpmcmc and of what it is compared with; None if not measured.
    figure, target
        As they are printed.
    met
        Whether the target is reached; None if there is no target or the sizes are not those of the target.
    """

    group: str
    what: str
    ours: Timing | None
    peer: Timing | None
    figure: str
    target: str
    met: bool | None


def rows(results: Results) -> list[Row]:
    """Return the lines of the table, in the order of the seven measurements."""
    return [
        *_gradient_rows(results),
        *_draw_rows(results),
        *_floor_rows(results),
        *_noise_rows(results),
        *_memory_rows(results),
        *_scale_rows(results),
        *_device_rows(results),
        *_sgld_rows(results),
    ]


def _row(
    results: Results, group: str, what: str, key: str, ours: str = "", peer: str = "", text: str = "{:.2f}×"
) -> Row:
    """Return one line: the figure ``key`` with its target, and the times ``ours`` and ``peer`` if they are there."""
    value, target = results.figures[key], TARGETS.get(key)
    bound = "" if target is None else f"{'≥' if target.above else '≤'} " + text.format(target.bound)
    met = None if target is None or not _comparable(key, results.sizes) else target.met_by(value)
    return Row(group, what, results.timings.get(ours), results.timings.get(peer), text.format(value), bound, met)


def _cases(sizes: Sizes) -> list[tuple[str, int]]:
    """Return every model with every number of chains."""
    return [(model, chains) for chains in sizes.chains for model in sizes.models]


def _gradient_rows(results: Results) -> list[Row]:
    group = "Gradient: times faster than plain JAX (vmap of grad, clip, sum)"
    found = []
    for model, chains in _cases(results.sizes):
        name, what = f"gradient.{model}.{chains}", f"{model}, {chains} chains"
        key = f"gradient_speedup.{model}.{chains}"
        found.append(_row(results, group, what, key, f"{name}.dpmcmc", f"{name}.plain_jax", "{:.1f}×"))
    return found


def _draw_rows(results: Results) -> list[Row]:
    group = f"Draw of DP-HMC, L = {results.sizes.num_leapfrog}, / draw of BlackJAX's non-private HMC"
    found = []
    for model, chains in _cases(results.sizes):
        name, what = f"draw.{model}.{chains}", f"{model}, {chains} chains"
        key = f"draw_vs_blackjax.{model}.{chains}"
        found.append(_row(results, group, what, key, f"{name}.dpmcmc", f"{name}.blackjax"))
    return found


def _floor_rows(results: Results) -> list[Row]:
    group = "Draw / floor (a regression's matrix products alone; else reading the data)"
    most = max(results.sizes.chains)
    found = []
    for model, chains in _cases(results.sizes):
        # The target is set for the largest number of chains.
        key = f"draw_vs_floor.{model}" + ("" if chains == most else f".{chains}")
        name, what = f"draw.{model}.{chains}", f"{model}, {chains} chains"
        found.append(_row(results, group, what, key, f"{name}.dpmcmc", f"{name}.floor"))
        if model == "logistic":
            key = f"draw_vs_floor_float64.{model}.{chains}"
            found.append(_row(results, group, "… second in float64", key, f"{name}.dpmcmc", f"{name}.floor_float64"))
    return found


def _noise_rows(results: Results) -> list[Row]:
    group = "Run with exact noise / without noise"
    found = []
    for model in results.sizes.noise_models:
        name, what = f"noise.{model}", f"{model}, {min(results.sizes.chains)} chains"
        found.append(_row(results, group, what, f"noise_overhead.{model}", f"{name}.exact", f"{name}.none"))
    return [*found, _row(results, group, "the worst", "noise_overhead")]


def _memory_rows(results: Results) -> list[Row]:
    sizes = results.sizes
    group = f"Memory above the data set's own, MB (logistic, d = 20, {sizes.memory_chains} chains)"
    return [_row(results, group, f"n = {sizes.memory_records:,}", "memory_mb_above_data", text="{:.0f}")]


def _scale_rows(results: Results) -> list[Row]:
    sizes = results.sizes
    large = [number for number in sizes.scaling_records if number >= 100_000] or list(sizes.scaling_records)
    group, what = "Time of a gradient per record, largest / smallest", f"n from {large[0]:,} to {large[-1]:,}"
    found = [_row(results, group, what, "time_per_record_growth")]
    group = "Scale of a gradient (logistic): times faster than plain JAX"
    for axis, numbers in (("records", sizes.scaling_records), ("chains", sizes.scaling_chains)):
        for number in numbers:
            ours, peer = (results.timings.get(f"{axis}.{number}.{name}") for name in ("dpmcmc", "plain_jax"))
            faster = "" if ours is None or peer is None else f"{peer.median / ours.median:.1f}×"
            what = f"{number:,} {axis if number > 1 else axis[:-1]}"
            found.append(Row(group, what, ours, peer, faster, "", None))
    return found


def _device_rows(results: Results) -> list[Row]:
    one, more = results.sizes.devices[0], results.sizes.devices[-1]
    group = f"Devices of one machine: times faster than {one}"
    ours, peer = f"devices.{more}.dpmcmc", f"devices.{one}.dpmcmc"
    return [_row(results, group, f"{more} devices", "devices_speedup", ours, peer)]


def _sgld_rows(results: Results) -> list[Row]:
    sizes = results.sizes
    group = f"DP-SGLD on the banana: steps per second of {min(sizes.chains)} chains, batch {sizes.batch_size:,}"
    found = [_row(results, group, "compiled block", "sgld_steps_per_second", "sgld.block", text="{:,.0f}")]
    if sizes.sgld_run_steps:  # from the call to the draws: planning, compiling and exact noise
        what = f"{sizes.sgld_run_steps:,} steps by sample"
        found.append(_row(results, group, what, "sgld_steps_per_second_as_used", text="{:,.0f}"))
    return found


def _comparable(key: str, sizes: Sizes) -> bool:
    """Return whether a figure was measured at the sizes that its target is for."""
    if key == "memory_mb_above_data":
        return (sizes.memory_records, sizes.memory_chains) == (FULL.memory_records, FULL.memory_chains)
    if key == "time_per_record_growth":
        return max(sizes.scaling_records) == max(FULL.scaling_records)
    return sizes.num_records == FULL.num_records and sizes.num_leapfrog == FULL.num_leapfrog


def as_text(timing: Timing | None, *, quartiles: bool = False) -> str:
    """Write a time in milliseconds with three digits, and the quartiles beside if wanted.

    Examples
    --------
    >>> as_text(Timing(0.0070, 0.0065, 1.2345, 5)), as_text(None)
    ('7.00', '')
    >>> as_text(Timing(0.0070, 0.0065, 1.2345, 5), quartiles=True)
    '7.00 (6.50–1,234)'
    """
    if timing is None:
        return ""
    median, low, high = (
        f"{value:,.0f}" if value >= 100.0 else f"{value:#.3g}"
        for value in (1e3 * timing.median, 1e3 * timing.lower_quartile, 1e3 * timing.upper_quartile)
    )
    return f"{median} ({low}–{high})" if quartiles else median


def met_text(met: bool | None) -> str:
    """Write yes, no, or nothing."""
    return "" if met is None else "yes" if met else "no"


def machine_text(machine: Mapping[str, Fact]) -> str:
    """Describe the machine in one line."""
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "jax", "jaxlib", "blackjax", "dpmcmc"))
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}; {versions}, "
        f"commit {machine['commit'] or 'unknown'}; load average at the start {machine['load_average_at_start']}"
    )


def markdown(results: Results) -> str:
    """Return the table as Markdown."""
    lines = [
        "# Benchmark" + (" (fast)" if results.sizes.fast else ""),
        "",
        f"n = {results.sizes.num_records:,} unless said otherwise; float32 records; medians (quartiles), in turns.",
        "",
        machine_text(results.machine) + ".",
    ]
    group = ""
    for row in rows(results):
        if row.group != group:
            group = row.group
            lines += ["", f"## {group}", "", "| what | dpmcmc (ms) | peer (ms) | figure | target | met |"]
            lines += ["|---|--:|--:|--:|--:|---|"]
        times = (as_text(timing, quartiles=True) for timing in (row.ours, row.peer))
        cells = (row.what, *times, row.figure, row.target, met_text(row.met))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(results: Results, folder: Path) -> dict[Path, str]:
    """Write JSON, table and plot; return what the files are."""
    picture = figure(results)
    contents = {
        "benchmark.json": (as_json(results).encode(), "all figures, times and the machine"),
        "benchmark.md": (markdown(results).encode(), "the table"),
        "benchmark.png": (_drawn(picture, "png"), "the plot"),
        "benchmark.pdf": (_drawn(picture, "pdf"), "the plot, for print"),
    }
    files = {}
    try:
        for name, (content, what) in contents.items():
            replace_file(folder / name, content)
            files[folder / name] = what
    except OSError as error:
        raise OutputError(
            f"cannot write into {str(folder)!r} ({error.strerror}); make room or choose another --out"
        ) from None
    return files


def as_json(results: Results) -> str:
    """Return all figures, the machine and the times behind them as JSON."""
    return json.dumps(results.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# ---------------------------------------------------------------------------------------------------- the plot

# Colours of Okabe and Ito; markers and hatching say the same.
_OURS, _PEER, _TARGET = "#0072b2", "#e69f00", "#d55e00"
_TARGET_LINES: tuple[tuple[Literal["-", "--"], str], ...] = (
    ("-", "target: at least this"),
    ("--", "target: at most this"),
)
_STYLE: Any = PICTURE_STYLE | {"axes.titlelocation": "left"}  # Any, as matplotlib's stubs differ between versions


def figure(results: Results) -> Figure:
    """Draw times against n, chains and devices, and the ratios with their targets."""
    sizes = results.sizes
    with matplotlib.rc_context(_STYLE):
        drawing = Figure(figsize=(12.5, 7.2), layout="constrained")
        axes = drawing.subplots(2, 3, width_ratios=(1.25, 1.25, 0.9))
        fewest, most, first = min(sizes.chains), max(sizes.chains), sizes.models[0]
        _scale(axes[0, 0], results, "records", sizes.scaling_records)
        axes[0, 0].set(title=f"A gradient against records (logistic, {fewest} chains)", xlabel="records n")
        _scale(axes[0, 1], results, "chains", sizes.scaling_chains)
        axes[0, 1].set(title=f"… against chains (n = {sizes.num_records:,})", xlabel="chains")
        axes[0, 0].legend()
        _devices(axes[0, 2], results)
        cases = {f"{model}\n{chains}": f"{model}.{chains}" for model in sizes.models for chains in sizes.chains}
        _bars(axes[1, 0], results, {label: f"gradient_speedup.{case}" for label, case in cases.items()})
        axes[1, 0].set(title="Gradient: times faster than plain JAX", xlabel="model, chains")
        _bars(axes[1, 1], results, {label: f"draw_vs_blackjax.{case}" for label, case in cases.items()})
        axes[1, 1].set(title="DP-HMC draw / BlackJAX's non-private draw", xlabel="model, chains")
        others = {
            f"draw / floor\n({first}, {most})": f"draw_vs_floor.{first}",
            "exact noise\non / off": "noise_overhead",
            "growth of time\nper record": "time_per_record_growth",
        }
        _bars(axes[1, 2], results, others)
        axes[1, 2].set(title="Other ratios")
        axes[1, 2].tick_params(axis="x", labelsize=8)
        handles: list[Artist] = [
            Line2D([], [], color=_TARGET, linewidth=1.4, linestyle=style, label=label) for style, label in _TARGET_LINES
        ]
        handles.append(Patch(facecolor=_OURS, alpha=0.45, hatch="///", label="target missed"))
        drawing.legend(handles=handles, loc="outside lower center", ncols=3)
    return drawing


def _scale(axis: Axes, results: Results, name: str, numbers: tuple[int, ...]) -> None:
    """Draw median times with quartiles against a number, on logarithmic scales."""
    for contestant, label, colour, style in (
        ("dpmcmc", "dpmcmc, private", _OURS, "o-"),
        ("plain_jax", "plain JAX, not private", _PEER, "s--"),
    ):
        timed = [(number, results.timings.get(f"{name}.{number}.{contestant}")) for number in numbers]
        points = [(number, timing) for number, timing in timed if timing is not None]
        if not points:
            continue
        places = [number for number, _ in points]
        axis.plot(places, [1e3 * t.median for _, t in points], style, color=colour, label=label, markersize=4.5)
        low, high = ([1e3 * getattr(t, side) for _, t in points] for side in ("lower_quartile", "upper_quartile"))
        axis.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.set(xscale="log", yscale="log", ylabel="ms")
    axis.grid(color=LINE, linewidth=0.5)
    if name == "chains":
        axis.set_xticks(list(numbers), [str(number) for number in numbers])
        axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _devices(axis: Axes, results: Results) -> None:
    timings = [results.timings[f"devices.{number}.dpmcmc"] for number in results.sizes.devices]
    heights = [1e3 * timing.median for timing in timings]
    spread = np.abs(
        [[1e3 * t.lower_quartile for t in timings], [1e3 * t.upper_quartile for t in timings]] - np.array(heights)
    )
    axis.bar([str(number) for number in results.sizes.devices], heights, color=_OURS, width=0.5)
    axis.errorbar(range(len(heights)), heights, spread, fmt="none", ecolor=INK, elinewidth=1, capsize=3)
    axis.set(title="… against devices of one machine", xlabel="devices", ylabel="ms")
    axis.set_ylim(bottom=0.0)


def _bars(axis: Axes, results: Results, keys: Mapping[str, str]) -> None:
    """Draw figures as bars, each with its target as a thin line: solid for at least, dashed for at most."""
    for place, key in enumerate(keys.values()):
        value, target = results.figures[key], TARGETS.get(key)
        missed = target is not None and _comparable(key, results.sizes) and not target.met_by(value)
        axis.bar(place, value, width=0.62, color=_OURS, alpha=0.45 if missed else 1.0, hatch="///" if missed else None)
        axis.annotate(
            f"{value:.3g}",
            (place, value),
            (0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
        )
        if target is not None:
            style = _TARGET_LINES[0 if target.above else 1][0]
            axis.hlines(target.bound, place - 0.42, place + 0.42, color=_TARGET, linewidth=1.4, linestyle=style)
    axis.set_xticks(range(len(keys)), list(keys))
    axis.margins(y=0.12)
    axis.set_ylim(bottom=0.0)


def _drawn(drawing: Figure, ending: str) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        FigureCanvasAgg(drawing)
        if ending == "png":
            drawing.savefig(buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None})
        else:
            drawing.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()
