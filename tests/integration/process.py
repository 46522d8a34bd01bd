"""A process of the stack with everything it starts, as one group."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tests.integration.waiting import wait_until

KILL_SECONDS = 30.0
LOG_LINES = 60


class ProcessFailedError(AssertionError):
    """A process ended although it was needed."""


class ProcessGroup:
    """A command that runs in a session of its own, with its output in a file.

    Signals go to the whole group, so that no worker outlives its parent.
    """

    running_groups: ClassVar[list["ProcessGroup"]] = []

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        working_folder: Path,
        log_folder: Path,
    ) -> None:
        """Describe the command; nothing runs yet."""
        self.name = name
        self.log = log_folder / f"{name}.log"
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = working_folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command. What it prints is appended to the log."""
        if self.alive():
            raise ProcessFailedError(f"{self.name} is running already")
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running_groups.append(self)

    def exit_code(self) -> int | None:
        """Return the exit code of the command, None while it runs."""
        return None if self._process is None else self._process.poll()

    def alive(self) -> bool:
        """Tell whether the command was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def check_alive(self) -> None:
        """Raise ProcessFailedError, with the end of the log, if the command ended."""
        if not self.alive():
            raise ProcessFailedError(self.explain())

    def explain(self) -> str:
        """Return the command, its exit code and the end of its log."""
        return (
            f"{self.name}: {' '.join(self._command)}\n"
            f"exit code: {self.exit_code()}\n"
            f"end of {self.log}:\n{self.log_tail()}"
        )

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def log_text(self) -> str:
        """Return the whole log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def pids(self) -> list[int]:
        """Return the ids of the processes of the group that still run."""
        return [] if self._process is None else _members(self._process.pid)

    def suspend(self) -> None:
        """Stop every process of the group where it is (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended group go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def stop(self, seconds: float) -> None:
        """Ask the command to end; kill what is left of the group after seconds."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            self.resume()  # A suspended process could not end.
            with suppress(subprocess.TimeoutExpired):  # Then kill() does it.
                process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the whole group at once (SIGKILL) and wait until it is gone."""
        process = self._process
        if process is None:
            return
        self._signal(signal.SIGKILL)
        process.wait(KILL_SECONDS)
        wait_until(lambda: not self.pids(), f"the end of {self.name}", seconds=KILL_SECONDS)
        if self in self.running_groups:
            self.running_groups.remove(self)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.pids():
            with suppress(ProcessLookupError):  # It may have ended meanwhile.
                os.killpg(self._process.pid, number)


def _members(group: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _runs_in(pid, group)]


def _runs_in(pid: int, group: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    # After the command name in parentheses: state, parent, process group.
    state, _, process_group = stat.rpartition(")")[2].split()[:3]
    return int(process_group) == group and state not in "ZX"
