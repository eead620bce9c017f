"""The trees that the small-file rows work on: made once, and kept as one archive in the cache folder, so that every target and every run has the same.

source/   a package of Python sources as its authors publish it, unpacked, in a git repository
python/   numpy and pandas, installed by pip
project/  a C project, generated here
"""

import hashlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import zipfile

from commands import Unavailable, run

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "aqueduct-bench"
INSTALL_SECONDS = 600      # pip, from a slow mirror
OLD = 1_704_067_200        # 2024-01-01: the time of all sources, older than git's index and than every object file
MODULES, UNITS = 12, 20    # the C project: directories, and files in each
HEADERS = 60               # of which each file includes HEADERS_EACH
HEADERS_EACH = 8
FUNCTIONS = 6              # in each file

# Git as nobody has configured it. Only size and seconds of the modification time are compared with the index (checkStat), because that is all that
# every target keeps: sshfs numbers its inodes anew with each mount, after which git would read all files again.
GIT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.checkStat", "GIT_CONFIG_VALUE_0": "minimal",
    "GIT_CONFIG_KEY_1": "gc.auto", "GIT_CONFIG_VALUE_1": "0",
    "GIT_CONFIG_KEY_2": "safe.directory", "GIT_CONFIG_VALUE_2": "*",
}
AUTHOR = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
          for what, value in (("NAME", "bench"), ("EMAIL", "bench@localhost"), ("DATE", f"{OLD} +0000"))}


def archive(cache):
    """The archive in the cache folder, and what is known of it: (path, facts). Unavailable if it has not been made."""
    path = cache / f"trees-{version()}.tar"
    try:
        return path, json.loads(path.with_suffix(".json").read_text())
    except OSError as problem:
        raise Unavailable(f"the trees are not in {cache} (they take pip, its registry and git): {problem}") from None


def fetch(cache):
    """Makes the archive unless it is there. It needs the network the first time."""
    try:
        return archive(cache)
    except Unavailable:
        pass
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=cache) as folder:
        folder = pathlib.Path(folder)
        trees = folder / "trees"
        facts = {"source": make_source(trees / "source", folder), "python": make_python(trees / "python"), "project": make_project(trees / "project")}
        run("tar", "-cf", folder / "trees.tar", "-C", trees, ".", seconds=INSTALL_SECONDS)
        path = cache / f"trees-{version()}.tar"
        path.with_suffix(".json").write_text(json.dumps(facts))
        (folder / "trees.tar").rename(path)
    return archive(cache)


def version():
    """A name for what this makes: other sources, or another Python, make other trees."""
    texts = [(HERE / name).read_bytes() for name in ("sources.py", "requirements-tree.txt", "requirements-python.txt")]
    return hashlib.sha256(b"\0".join([*texts, sys.version.encode()])).hexdigest()[:12]


def pip(*arguments):
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments, seconds=INSTALL_SECONDS)


def make_source(tree, scratch):
    pip("download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", HERE / "requirements-tree.txt", "-d", scratch / "wheel")
    wheel, = (scratch / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tree)
    facts = describe(tree, wheel.name)
    for folder, _, names in os.walk(tree, topdown=False):
        for path in (*(os.path.join(folder, name) for name in names), folder):
            os.utime(path, (OLD, OLD))
    environment = {**os.environ, **GIT, **AUTHOR}
    for words in (["init", "--quiet", "--initial-branch=main"], ["add", "--all", "--force"], ["commit", "--quiet", "--message=all"],
                  ["repack", "--quiet", "-a", "-d"], ["status"]):
        run("git", "-C", tree, *words, env=environment, seconds=INSTALL_SECONDS)
    return facts


def make_python(tree):
    pip("install", "--no-deps", "--only-binary", ":all:", "-r", HERE / "requirements-python.txt", "--target", tree)
    lines = (HERE / "requirements-python.txt").read_text().splitlines()
    return describe(tree, ", ".join(line for line in lines if "==" in line))


def make_project(tree):
    (tree / "include").mkdir(parents=True)
    for number in range(HEADERS):
        lines = [f"int h{number}_{item}(int value);" for item in range(FUNCTIONS)]
        body = "\n".join([f"#ifndef H{number}", f"#define H{number}", f"struct h{number} {{ int values[{number + 1}]; }};", *lines, "#endif", ""])
        (tree / "include" / f"h{number}.h").write_text(body)
    for module in range(MODULES):
        (tree / f"module{module}").mkdir()
        for unit in range(UNITS):
            (tree / f"module{module}" / f"unit{unit}.c").write_text(unit_text(module * UNITS + unit))
    # Objects go elsewhere: what is measured is reading.
    (tree / "Makefile").write_text("\n".join([
        "SOURCES := $(wildcard module*/*.c)",
        "OBJECTS := $(SOURCES:%.c=$(OUT)/%.o)",
        "all: $(OBJECTS)",
        "$(OUT)/%.o: %.c",
        "\t@mkdir -p $(dir $@)",
        "\t@$(CC) -O0 -Iinclude -MMD -MP -c -o $@ $<",
        "-include $(OBJECTS:.o=.d)",
        ""]))
    for path in tree.rglob("*"):
        os.utime(path, (OLD, OLD))
    return describe(tree, "generated")


def unit_text(number):
    headers = [(number * 7 + step * 11) % HEADERS for step in range(HEADERS_EACH)]
    lines = ["#include <stdio.h>", "#include <string.h>", *(f'#include "h{header}.h"' for header in headers)]
    for item in range(FUNCTIONS):
        lines += [f"int f{number}_{item}(int value) {{", "    int sum = value;",
                  *(f"    for (int i = 0; i < {header + 1}; i++) sum += h{header}_{item}(sum ^ i);" for header in headers), "    return sum;", "}"]
    return "\n".join([*lines, ""])


def describe(tree, what):
    """How large a tree is, for the record."""
    sizes, depths, folders = [], [], 0
    for folder, _, names in os.walk(tree):
        folders += 1
        sizes += [os.lstat(os.path.join(folder, name)).st_size for name in names]
        depths.append(len(pathlib.Path(folder).relative_to(tree).parts))
    return {"what": what, "files": len(sizes), "folders": folders, "depth": max(depths) + 1, "mib": round(sum(sizes) / (1 << 20)),
            "median_bytes": round(statistics.median(sizes))}
