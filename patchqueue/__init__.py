"""The bounded-restore patch queue: pins, series, apply, export, build and test."""

import sys

if sys.version_info < (3, 11):
    raise SystemExit(
        "error: the queue needs Python 3.11 or newer, and this is "
        f"{sys.version_info[0]}.{sys.version_info[1]}; install python3.11 and run nox with it"
    )
