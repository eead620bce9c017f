"""Draws what has been recorded: bars of medians with their spread, for each section, store and group of rows, as SVG and PNG.

plots.py RECORD.jsonl... --plots FOLDER [--date DATE]   draws the newest run of the files, or the one of this date
"""

import argparse
import collections
import json
import pathlib
import re

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # after its kind of output is chosen

BAR_INCHES = 0.17   # high
PNG_DPI = 110
COLOURS = matplotlib.colormaps["tab10"].colors + matplotlib.colormaps["Dark2"].colors


def draw(lines, folder):
    """Draws the lines of one run into the folder, and returns the paths without their endings."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = collections.defaultdict(list)
    for line in lines:
        if "values" in line:
            figures[line["section"], line.get("store", "tmpfs"), group_of(line), line["unit"]].append(line)
    drawn = []
    order = list(dict.fromkeys(line["target"] for line in lines if "values" in line))
    for key, found in figures.items():
        path = folder / re.sub(r"[^a-z0-9]+", "-", "-".join(key).lower()).strip("-")
        draw_one(key, found, order, path)
        drawn.append(str(path))
    return ", ".join(drawn)


def group_of(line):
    """Rows that are drawn together."""
    row = line["row"]
    if line["section"] != "data":
        return row.split(" ", 1)[1] if line["section"] == "names" else ""
    if "stream" in row:
        return "iperf3"
    return "mmap" if row.startswith("mmap") else "random" if row.startswith("random") else "direct" if "direct" in row else "buffered"


def draw_one(key, lines, order, path):
    section, kind, group, unit = key
    rows = list(dict.fromkeys((line["row"], line.get("state", "")) for line in lines))
    shown = [target for target in order if any(line["target"] == target for line in lines)]
    values = {(line["target"], (line["row"], line.get("state", ""))): line for line in lines}
    step = (len(shown) + 1) * BAR_INCHES
    figure, axes = pyplot.subplots(figsize=(10, 1.6 + len(rows) * step))
    for number, target in enumerate(shown):
        bars = [(index * step + number * BAR_INCHES, values[target, row]) for index, row in enumerate(rows) if (target, row) in values]
        medians = [line["median"] for _, line in bars]
        spread = [[max(0, line["median"] - min(line["values"])) for _, line in bars], [max(0, max(line["values"]) - line["median"]) for _, line in bars]]
        axes.barh([place for place, _ in bars], medians, BAR_INCHES * 0.9, xerr=spread, label=target, color=COLOURS[order.index(target) % len(COLOURS)],
                  error_kw={"elinewidth": 0.8, "capsize": 1.5})
    axes.set_yticks([index * step + (len(shown) - 1) / 2 * BAR_INCHES for index in range(len(rows))], [", ".join(filter(None, row)) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit}{': less is faster' if unit == 's' else ''}")
    medians = sorted(line["median"] for line in lines if line["median"] > 0)
    if medians and medians[-1] > 30 * medians[0]:
        axes.set_xscale("log")
        axes.set_xlabel(f"{axes.get_xlabel()} (logarithmic)")
    first = lines[0]
    axes.set_title(f"{' '.join(filter(None, (section, group)))}, {kind}: medians of {first.get('runs', len(first['values']))} runs, least to greatest\n"
                   f"{first['commit']}, {first['date'][:10]}, {first['cores']} cores, Linux {first['kernel']}", fontsize=9)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    for ending in ("svg", "png"):
        figure.savefig(f"{path}.{ending}", bbox_inches="tight", dpi=PNG_DPI)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=pathlib.Path)
    parser.add_argument("--plots", required=True, type=pathlib.Path)
    parser.add_argument("--date", help="of the run, as its lines have it")
    options = parser.parse_args()
    lines = [json.loads(text) for path in options.records for text in path.read_text().splitlines()]
    lines = [line for line in lines if "section" in line or "target" in line]
    date = options.date or max(line["date"] for line in lines)
    print(draw([line for line in lines if line["date"] == date and "section" in line], options.plots))


if __name__ == "__main__":
    main()
