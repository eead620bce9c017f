"""Says what got slower or faster: the newest figures of each row beside the ones before, from the records of runs on the same kind of machine.

A row is called slower or faster only where the ranges (least to greatest) of the two do not overlap, each of at least three runs.
"""

import argparse
import collections
import json
import pathlib
import statistics
import sys

import report
from commands import HERE
from targets import BEFORE

RUNS_MIN = 3  # fewer have no spread to speak of
TIMES = ("s", "ms", "us")  # units of which less is better; of all others more is
RECORDS = HERE / "records"


def upgraded(line):
    """The line as it would be written today. The first records had no sections, and one name of rows for all numbers of files."""
    line = dict(line)
    if "section" not in line:
        line["section"] = "data" if "size_mib" in line else "small-files" if "state" in line else "small-writes"
    row = line.get("row", "")
    if line["section"] == "data" and row.endswith(" files"):
        line["section"], line["row"] = "names", f"{row.split()[0]} {line['files']} files"
    if line["section"] == "names":
        line.pop("size_mib", None)
    line.setdefault("store", "tmpfs")
    return line


def read(paths):
    """All lines with figures, the oldest first."""
    lines = [upgraded(json.loads(text)) for path in paths for text in path.read_text().splitlines() if text.strip()]
    return sorted((line for line in lines if "values" in line and line["values"]), key=lambda line: line["date"])


def machine(line):
    """What kind of machine it was: figures of others are not compared. Of the kernel the series counts (6.18); the first records do not name the processor."""
    return line["cores"], ".".join(line["kernel"].split(".")[:2])


def same_processor(new, old):
    return "processor" not in old or "processor" not in new or old["processor"] == new["processor"]


def key_of(line):
    return (line["section"], line["store"], line["target"], line["row"], line.get("state", ""), line.get("size_mib"), machine(line))


def pairs(lines, section=None, target=None, before=None):
    """(newest, the one before it) of each row that has both. `before`: a commit that the other has to be of."""
    found = collections.defaultdict(list)
    for line in lines:
        if section in (None, line["section"]) and target in (None, line["target"]):
            found[key_of(line)].append(line)
    for history in found.values():
        new = history[-1]
        old = [line for line in history[:-1] if line["date"] != new["date"] and same_processor(new, line) and before in (None, line["commit"].rstrip("+"))]
        if old:
            yield new, old[-1]


def beside(lines):
    """(ours, the older program's) of each row of the newest run that measured both."""
    ours = {}
    for line in lines:
        name, older = line["target"].removesuffix(BEFORE), line["target"].endswith(BEFORE)
        ours.setdefault((line["date"], key_of({**line, "target": name})), {})[older] = line
    both = [(key[0], found) for key, found in ours.items() if len(found) == 2]
    newest = max((date for date, _ in both), default=None)
    for date, found in both:
        if date == newest:
            yield found[False], found[True]


def speed(new, old):
    """How many times as fast the new one is, by medians: less than 1 is slower. Times are better small, rates great."""
    now, then = statistics.median(new["values"]), statistics.median(old["values"])
    if now <= 0 or then <= 0:
        return None
    return then / now if new["unit"] in TIMES else now / then


def verdict(new, old):
    """`slower`, `faster`, or nothing where it cannot be told."""
    if len(new["values"]) < RUNS_MIN or len(old["values"]) < RUNS_MIN or new["unit"] != old["unit"]:
        return ""
    if min(new["values"]) <= max(old["values"]) and min(old["values"]) <= max(new["values"]):
        return ""
    return "faster" if (min(new["values"]) > max(old["values"])) == (new["unit"] not in TIMES) else "slower"


def failures(compared, limit):
    """The rows that are slower by more than the limit allows: those whose speed is less than it."""
    return [(new, old) for new, old in compared if verdict(new, old) == "slower" and speed(new, old) < limit]


def figure(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show(compared, everything):
    lines = [["", "target", "before", "now", "times as fast", ""]]
    for new, old in compared:
        said = verdict(new, old)
        if said or everything:
            row = ", ".join(filter(None, (new["row"], new.get("state"), new["store"] if new["store"] != "tmpfs" else "")))
            lines.append([f"{row} ({new['unit']})", new["target"], f"{report.cell(old['values'], figure)} {old['commit']}",
                          f"{report.cell(new['values'], figure)} {new['commit']}", f"{speed(new, old) or 0:.2f}", said])
    if len(lines) > 1:
        report.table(lines)


def main():
    parser = argparse.ArgumentParser(prog="bench/compare.py", description=__doc__)
    parser.add_argument("--records", default=RECORDS, type=pathlib.Path, help="the folder of the records (%(default)s)")
    parser.add_argument("--only", metavar="SECTION", help="one section of the rows (all)")
    parser.add_argument("--target", help="one target (all)")
    parser.add_argument("--before", metavar="COMMIT", help="compare with figures of this commit (the ones before)")
    parser.add_argument("--beside", action="store_true", help="compare with the older program of the same run, `bench/run --before PROGRAM`")
    parser.add_argument("--all", action="store_true", help="also the rows of which nothing can be said")
    parser.add_argument("--fail-slower", type=float, metavar="RATIO", help="exit 1 if a row of Aqueduct is slower, and less than RATIO times as fast as before (0.9)")
    options = parser.parse_args()
    lines = read(sorted(options.records.glob("*.jsonl")))
    compared = list(beside(lines) if options.beside else pairs(lines, options.only, options.target, options.before))
    show(compared, options.all)
    counts = collections.Counter(verdict(new, old) or "neither" for new, old in compared)
    print(f"{len(compared)} rows compared: {counts['slower']} slower, {counts['faster']} faster, {counts['neither']} neither (ranges overlap, or fewer than {RUNS_MIN} runs)")
    if options.fail_slower is not None:
        # Peers that are slower than they were say something of the machine, not of us.
        failed = failures([pair for pair in compared if pair[0]["target"].startswith("aqueduct")], options.fail_slower)
        if failed:
            sys.exit(f"{len(failed)} rows are less than {options.fail_slower} times as fast as before: " +
                     ", ".join(f"{new['target']} {new['row']}" for new, _ in failed))


if __name__ == "__main__":
    main()
