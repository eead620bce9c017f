"""Measures one server with 1 to 10,000 clients, each with a session of its own: throughput, fairness, and the server's memory. See --help."""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import report

HERE = pathlib.Path(__file__).resolve().parent
CLIENTS = (1, 8, 10, 100, 1000, 10_000)
BLOCK = 64 << 10
FILE_SIZE = 64 << 20
IDLE_SECONDS = 10
# A client that reads has a file open at the server besides its connection; this much is left for all else.
DESCRIPTORS_KEPT = 2048
PATIENCE = 120


def arguments():
    parser = argparse.ArgumentParser(prog="bench/scale.py", description=__doc__, epilog="""
        Clients are sessions of aqueduct-load without leases, of one connection each and one operation under way, all from one thread of one process, so
        that what differs between them is the server's doing. The numbers of clients take turns. Fairness is what the slowest client has done of what the
        fastest has. Memory is what the server's resident memory (VmRSS) grew by until all clients were there and idle, for each of them; the kernel's is
        what its slabs grew by, for both ends of a connection, since both are on this machine.""")
    parser.add_argument("--rows", default=",".join(ROWS), help="with commas between (all: %(default)s)")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)), help="how many (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="how often everything is measured (3)")
    parser.add_argument("--seconds", type=int, default=3, help="how long clients work in a measure (3)")
    parser.add_argument("--programs", default=HERE.parent / "target/release", type=pathlib.Path, help="where aqueduct and aqueduct-load are")
    parser.add_argument("--work", default="/dev/shm", help="where what is served lies (/dev/shm)")
    parser.add_argument("--records", default=HERE / "records", type=pathlib.Path, help="where the figures are appended as JSON lines")
    options = parser.parse_args()
    options.counts = [int(count) for count in options.clients.split(",")]
    for row in options.rows.split(","):
        if row not in ROWS:
            parser.error(f"there is no row '{row}': use {', '.join(ROWS)}")
    return options


class Served:
    """A server over a directory, or without a disk."""

    def __init__(self, options, diskless):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="aqueduct-scale-", dir=options.work))
        data = self.home / "data"
        data.mkdir()
        with open(data / "file", "wb") as file:
            for _ in range(FILE_SIZE // report.MIB):
                file.write(os.urandom(report.MIB))
        command = [options.programs / "aqueduct-load", "serve", "--size", str(FILE_SIZE)]
        if not diskless:
            # By TCP: clients of a loopback address would take the Unix socket. Who measures is
            # root.
            by_tcp = self.home / "by-tcp.toml"
            by_tcp.write_text('local_sockets = ""\n')
            command = [options.programs / "aqueduct", "serve", "--config", by_tcp, "--squash", "none"]
            command += ["--listen", "127.0.0.1:0", "--state", self.home / "state", data]
        # It says at its end that it ends, which is no news here.
        environment = {"RUST_LOG": "warn", **os.environ}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.stop()
            sys.exit(f"scale: {command[0]} did not start")
        self.target = f"{line.split()[-1]}:{'/' if diskless else data}"

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        shutil.rmtree(self.home)

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slab_kib():
    return int(pathlib.Path("/proc/meminfo").read_text().split("Slab:")[1].split()[0])


def sessions(options, served, count, op, seconds):
    command = [options.programs / "aqueduct-load", "sessions", served.target, "--clients", str(count), "--seconds", str(seconds),
               "--op", op, "--block", str(BLOCK), "--name", "file"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process):
    output, _ = process.communicate(timeout=PATIENCE)
    return json.loads(output) if process.returncode == 0 else sys.exit("scale: aqueduct-load failed, see above")


def idle(options, served, count):
    """What clients cost that do nothing."""
    resident, slab = served.resident_kib(), slab_kib()
    process = sessions(options, served, count, "idle", IDLE_SECONDS + 4 + count // 1000)
    end = time.monotonic() + PATIENCE
    status = pathlib.Path(f"/proc/{served.process.pid}/fd")
    before = 0
    # All are there when there are no more descriptors than a moment ago, and enough.
    while time.monotonic() < end and process.poll() is None:
        now = len(list(status.iterdir()))
        if now >= count and now == before:
            break
        before = now
        time.sleep(0.5)
    time.sleep(1)
    used = served.cpu_seconds()
    figures = {"resident_kib": (served.resident_kib() - resident) / count, "slab_kib": (slab_kib() - slab) / count}
    time.sleep(IDLE_SECONDS)
    figures["cpu_seconds"] = served.cpu_seconds() - used
    finish(process)
    return figures


def busy(op):
    def measure(options, served, count):
        used = served.cpu_seconds()
        result = finish(sessions(options, served, count, op, options.seconds))
        if result["errors"]:
            # Clients rest after an error: what they did is no figure of the server.
            report.say(f"scale: {result['errors']} errors with {count} clients: not recorded")
            return None
        return {"per_second": result["operations_per_second"], "fairness": result["fairness"], "least": result["least"], "greatest": result["greatest"],
                "errors": result["errors"], "connect_seconds": result["connect_seconds"], "client_cpu_seconds": result["cpu_seconds"],
                "server_cpu_seconds": served.cpu_seconds() - used}
    return measure


# What is measured, of which server.
ROWS = {
    "stat": (busy("stat"), False),
    "read": (busy("read"), False),
    "read-diskless": (busy("read"), True),
    "idle": (idle, False),
}


def fits(row, count):
    """Whether the server may have so many files open."""
    each = 2 if row == "read" else 1
    return count * each + DESCRIPTORS_KEPT <= resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def show(row, figures):
    print(f"\n{row}")
    cell = lambda values, name, form: report.cell([value[name] for value in values], form)
    whole, part, hundredth = (lambda value: f"{value:.0f}"), (lambda value: f"{value:.1f}"), (lambda value: f"{value:.2f}")
    if row == "idle":
        lines = [["clients", "server KiB each", "kernel KiB each", f"server CPU s in {IDLE_SECONDS} s"]]
        for count, values in figures.items():
            lines.append([str(count), cell(values, "resident_kib", part), cell(values, "slab_kib", part), cell(values, "cpu_seconds", hundredth)])
    else:
        eight = statistics.median(value["per_second"] for value in figures[8]) if figures.get(8) else None
        is_bulk = row.startswith("read")
        lines = [["clients", *(["MiB/s"] if is_bulk else []), "per s", "of 8 clients'", "slowest/fastest", "connected in s"]]
        for count, values in figures.items():
            share = f"{statistics.median(value['per_second'] for value in values) / eight:.2f}" if values and eight else "-"
            rate = [cell([{"rate": value["per_second"] * BLOCK / report.MIB} for value in values], "rate", whole)] if is_bulk else []
            lines.append([str(count), *rate, cell(values, "per_second", whole), share, cell(values, "fairness", hundredth),
                          cell(values, "connect_seconds", hundredth)])
    report.table(lines)


def main():
    options = arguments()
    record = report.Record()
    for row in options.rows.split(","):
        measure, diskless = ROWS[row]
        figures = {count: [] for count in options.counts}
        for _ in range(options.runs):
            for count in options.counts:
                if not fits(row, count):
                    continue
                # One of its own for each measure: what others have left in its memory is not counted.
                served = Served(options, diskless)
                try:
                    found = measure(options, served, count)
                    figures[count] += [found] if found else []
                finally:
                    served.stop()
        show(row, figures)
        for count, values in figures.items():
            if values:
                record.add(target="aqueduct", row=f"scale {row}", clients=count, runs=values)
            else:
                why = "there were errors" if fits(row, count) else "the server may not have so many files open (ulimit -Hn)"
                report.say(f"scale: {row} with {count} clients is not measured: {why}")
    report.say(f"appended to {record.write(options.records)}")


if __name__ == "__main__":
    main()
