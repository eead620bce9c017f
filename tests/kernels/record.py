"""Reads what a guest said on its console, and adds a line for each suite to a record.

    record.py LOG --kernel 5.10 --package NAME --commit HASH --seconds N --to FILE

Exits with 1 if a test failed, a suite did not end, or none ran.
"""

import argparse
import collections
import datetime
import json
import pathlib
import re
import sys


def suites(text):
    """What each suite said, as (name, lines, whether it ended)."""
    found = []
    for line in text.splitlines():
        line = line.strip("\r")
        if line.startswith("GUEST suite "):
            found.append([line.split()[2], [], False])
        elif line.startswith("GUEST ended ") and found:
            found[-1][2] = True
        elif found:
            found[-1][1].append(line)
    return found


def summary(lines):
    """The tests that passed, failed and were skipped, these with their reasons."""
    skipped = collections.Counter()
    for line in lines:
        if match := re.search(r"skipped: \S+ (.*)", line):
            skipped[match[1]] += 1
    ended = [match for line in lines if (match := re.match(r"test (\S+) \.\.\. (ok|FAILED|TIMEOUT|ignored)", line))]
    failures = sorted(match[1] for match in ended if match[2] in ("FAILED", "TIMEOUT"))
    return {
        # A test that is skipped says so, and ends well.
        "passed": sum(match[2] == "ok" for match in ended) - sum(skipped.values()),
        "failed": len(failures),
        "failures": failures,
        "skipped": sum(skipped.values()),
        "reasons": dict(skipped),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=pathlib.Path)
    for name in ("kernel", "package", "commit", "to"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seconds", type=int, required=True)
    told = parser.parse_args()
    text = told.log.read_text(errors="replace")
    is_well = "GUEST done" in text
    release = re.search(r"GUEST (\S+) begins", text)
    path = pathlib.Path(told.to)
    path.parent.mkdir(parents=True, exist_ok=True)
    ran = 0
    with path.open("a") as record:
        for name, lines, ended in suites(text):
            line = {
                "at": datetime.datetime.now(datetime.UTC).strftime("%FT%TZ"),
                "kernel": told.kernel,
                "release": release and release[1],
                "package": told.package,
                "commit": told.commit,
                "suite": name,
                "ended": ended,
                **summary(lines),
            }
            record.write(json.dumps(line) + "\n")
            print(f"{told.kernel} {name}: {line['passed']} passed, {line['failed']} failed, {line['skipped']} skipped")
            for reason, count in line["reasons"].items():
                print(f"    {count} skipped: {reason}")
            for failure in line["failures"]:
                print(f"    failed: {failure}")
            ran += line["passed"]
            is_well &= ended and line["failed"] == 0
    print(f"{told.kernel}: {told.seconds} s, {'well' if is_well and ran else 'NOT WELL: see ' + str(told.log)}")
    return 0 if is_well and ran else 1


if __name__ == "__main__":
    sys.exit(main())
