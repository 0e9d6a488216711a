"""Runs a program in a session of its own while its starter lives: `python watchdog.py PROGRAM [ARGUMENT ...]`.

The starter holds the other end of standard input, which the system closes however the starter ends, also by signal 9.
This process leads the session, and ends after the program: the group's number is not given to others meanwhile.
"""

import os
import signal
import subprocess
import sys
import threading


def _end_with_starter() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    # whoever asks the group to end asks the program: it is waited for
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.exit(program.wait() & 0xFF)
