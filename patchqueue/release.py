"""The version of our wheels, derived in this one place."""

import tomllib

from patchqueue.layout import Layout

MARK = "bsr"


def local_version(layout: Layout, target: str) -> str:
    """The local part, as in "bsr.1"; a CPU build of vLLM is known by the word "cpu".

    vLLM picks its CPU platform when its version contains "cpu".
    """
    project = tomllib.loads((layout.root / "pyproject.toml").read_text(encoding="utf-8"))
    part = f"{MARK}.{project['project']['version']}"
    return f"{part}.cpu" if target == "cpu" else part
