"""`python -m qualify`: run a profile, or make the report of an evidence file again."""

import argparse
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from qualify.evidence import Evidence, EvidenceError
from qualify.machine import subject, this_machine
from qualify.profiles import PROFILES
from qualify.recorder import Recorder, now
from qualify.report import outcome, write_report

OUTPUT = Path("qualification")
"""Each run has a folder of its own in it."""

EVIDENCE = "evidence.json"
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="qualify", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--profile", choices=PROFILES, default="smoke", help="at which sizes")
    made.add_argument(
        "--only", type=lambda text: text.split(","), help="experiments by number, as in 2,5"
    )
    made.add_argument("--output", type=Path, help="the folder of this run")
    made.add_argument("--work", type=Path, help="where L2 and logs lie meanwhile")
    made.add_argument("--report", type=Path, metavar="EVIDENCE", help="only make its report again")
    made.add_argument("--engine-url", help="a running vLLM that uses the server")
    made.add_argument("--server-url", help="the HTTP address of a running LMCache server")
    made.add_argument("--ranks", type=int, default=1, help="of the given engine")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if everything that ran is accepted."""
    made = parser()
    given = made.parse_args(arguments)
    if bool(given.engine_url) != bool(given.server_url):
        made.error("--engine-url and --server-url belong together")
    if given.engine_url and given.only:
        made.error("--only chooses experiments on a stack of our own")
    try:
        if given.report:
            evidence = Evidence.read(given.report)
            return conclude(evidence, given.report)
        return measure(given)
    except EvidenceError as error:
        print(error, file=sys.stderr)
        return 2


def measure(given: argparse.Namespace) -> int:
    """Run the experiments; an interrupted run keeps what it has."""
    started = now()
    folder: Path = given.output or OUTPUT / f"{given.profile}-{started[:19].replace(':', '')}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / EVIDENCE
    evidence = Evidence(given.profile, started, subject(), this_machine())
    recorder = Recorder(evidence, path, lambda line: print(line, flush=True), given.only)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        experiments(given, recorder)
        recorder.finish()
    except KeyboardInterrupt:
        conclude(evidence, path)
        print(f"interrupted: {path} keeps {len(evidence.rows)} rows and is marked incomplete")
        return INTERRUPTED
    return conclude(evidence, path)


def experiments(given: argparse.Namespace, recorder: Recorder) -> None:
    """Run them on a stack of our own, or on the given one."""
    # Of the progress, LMCache's log in this process would leave little to read.
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    # Only here: a report needs neither LMCache nor vLLM.
    from qualify import external, local

    profile = PROFILES[given.profile]
    if given.engine_url:
        stack = external.Given(
            given.engine_url, given.server_url, given.ranks, salt=secrets.token_hex(4)
        )
        external.run(recorder, profile, stack)
        return
    with tempfile.TemporaryDirectory(prefix="qualify-", dir=given.work) as work:
        local.run(recorder, profile, Path(work))


def conclude(evidence: Evidence, path: Path) -> int:
    """Write the report beside the evidence, and say how it ended."""
    report = write_report(evidence, path.parent)
    code, message = outcome(evidence)
    print(f"{message}\nevidence: {path}\nreport: {report}")
    return code


if __name__ == "__main__":
    sys.exit(main())
