"""Pytest plugin for upstream's suites: adds markers and records outcomes.

Load it with ``-p queue_plugin``. ``--queue-rules`` names a JSON file with

- ``markers``: markers for every test (vLLM's ``skip_global_cleanup``),
- ``fail``: test to cause; these must fail, a pass is an error,
- ``flaky``: test to number of reruns.

A test is a node id, or a prefix of node ids that ends at a file, class,
function or parameter. ``--queue-report`` names the JSON file that receives the
outcome of every test. The plugin needs nothing but pytest (and
pytest-rerunfailures when a test is flaky), and works under pytest-xdist.
"""

import json
from pathlib import Path
from typing import Any

import pytest


def matches(key: str, nodeid: str) -> bool:
    """Tell whether ``key`` names ``nodeid`` or something that contains it."""
    return nodeid == key or nodeid.startswith((f"{key}::", f"{key}[", f"{key}/"))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    group = parser.getgroup("patch queue")
    group.addoption("--queue-rules", type=Path, help="rules to apply (JSON)")
    group.addoption("--queue-report", type=Path, help="outcomes to write (JSON)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the rules and the recorder of the outcomes."""
    rules_file = config.getoption("--queue-rules")
    report_file = config.getoption("--queue-report")
    if rules_file:
        rules = json.loads(rules_file.read_text(encoding="utf-8"))
        config.pluginmanager.register(Marker(rules), "queue-marker")
    if report_file and not _is_worker(config):
        config.pluginmanager.register(Recorder(report_file), "queue-recorder")


class Marker:
    """Adds the markers that the rules ask for."""

    def __init__(self, rules: dict[str, Any]) -> None:
        """Keep the rules."""
        self.rules = rules

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark every collected test."""
        for item in items:
            for marker in self.rules["markers"]:
                item.add_marker(marker)
            for key, cause in self.rules["fail"].items():
                if matches(key, item.nodeid):
                    item.add_marker(pytest.mark.xfail(reason=cause, strict=True))
            for key, reruns in self.rules["flaky"].items():
                if matches(key, item.nodeid):
                    item.add_marker(pytest.mark.flaky(reruns=reruns))


def _skip_message(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


def _failure_message(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr).strip()
    lines = text.splitlines() or [""]
    return lines[0] if crash else lines[-1]


class Recorder:
    """Collects the outcome of every test and writes them at the end."""

    def __init__(self, path: Path) -> None:
        """Remember where to write."""
        self.path = path
        self.tests: dict[str, dict[str, Any]] = {}
        self.modules: dict[str, dict[str, Any]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a module that could not be collected, or skipped itself."""
        if report.failed:
            self._record(self.modules, report.nodeid, "failed", report)
        elif report.skipped:
            self._record(self.modules, report.nodeid, "skipped", report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record one phase of one test; a failure outlasts later phases."""
        if str(report.outcome) == "rerun":
            entry = self.tests.setdefault(report.nodeid, {})
            entry["reruns"] = entry.get("reruns", 0) + 1
        elif report.failed:
            self._record(self.tests, report.nodeid, "failed", report)
        elif report.skipped:
            outcome = "known failure" if hasattr(report, "wasxfail") else "skipped"
            self._record(self.tests, report.nodeid, outcome, report)
        elif report.when == "call":
            self._record(self.tests, report.nodeid, "passed", report)

    def _record(
        self,
        table: dict[str, dict[str, Any]],
        nodeid: str,
        outcome: str,
        report: pytest.TestReport | pytest.CollectReport,
    ) -> None:
        entry = table.setdefault(nodeid, {})
        entry["outcome"] = outcome
        if outcome == "failed":
            entry["message"] = _failure_message(report)
        elif outcome == "skipped":
            entry["message"] = _skip_message(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the report."""
        report = {"tests": self.tests, "modules": self.modules}
        self.path.write_text(json.dumps(report, indent=1), encoding="utf-8")
