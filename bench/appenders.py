"""Two processes append lines of 100 bytes to one log strictly in turn, each by a path of its own, such as two mounts of the same file.

appenders.py LINES LOG LOG   (the log must be there; its lines are the numbers from 0)
"""

import os
import socket
import sys


def append(path, numbers, turn):
    """Appends one line for each number: the first at once, the next whenever the other process has had its turn."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in numbers:
        if number > 0 and not turn.recv(1):
            raise SystemExit("appenders: the other process has ended early")
        line = b"%099d\n" % number
        if os.write(log, line) != len(line):
            raise SystemExit(f"appenders: line {number} was written in part")
        turn.send(b"t")
    os.close(log)


def main():
    lines, first, second = int(sys.argv[1]), *sys.argv[2:]
    ours, others = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        append(second, range(1, lines, 2), others)
        return
    others.close()
    append(first, range(0, lines, 2), ours)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise SystemExit("appenders: the other process has failed")


if __name__ == "__main__":
    main()
