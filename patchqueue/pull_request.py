"""Commit message, title and description of a patch in its upstream's form."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patchqueue.patch import Patch

_BOOKKEEPING = re.compile(r"(Tests|Remove when|Upstream-Status): ")
_TEMPLATE = ".github/PULL_REQUEST_TEMPLATE.md"
# The template is the clone's. These are for a clone that has none.
_FALLBACK = {
    "vllm": "## Overview\n\n## Claims\n\n## Validation\n\n## Details\n",
    "lmcache": "**What this PR does / why we need it**:\n\n"
    "**Special notes for your reviewers**:\n\n**If applicable**:\n\n"
    "- [ ] this PR contains user facing changes - docs added\n"
    "- [ ] this PR contains unit tests\n",
}
_DISCLOSURE = (
    "Disclosure: code-writing tools were used in making this change. Every line was reviewed by: "
    "{reviewer}."
)
_NOBODY = "<nobody yet: the person who sends this writes their name here>"


@dataclass(frozen=True)
class Facts:
    """What a description states.

    Attributes:
        tests: the command that ran the tests, and its output.
        checks: what upstream's pre-commit checks said.
        needs: the subjects of the patches that must go first.
        reviewer: the person who has reviewed it, if one has.
    """

    tests: str
    checks: str
    needs: tuple[str, ...]
    reviewer: str | None


def message(patch: Patch) -> str:
    """The commit message, without what only the queue needs."""
    return f"{patch.subject}\n\n{_reason(patch)}\n"


def description(tree: str, patch: Patch, clone: Path, facts: Facts) -> str:
    """The description, in the clone's template."""
    path = clone / _TEMPLATE
    template = path.read_text(encoding="utf-8") if path.is_file() else _FALLBACK[tree]
    reason = _reason(patch)
    first = reason.partition("\n\n")[0]
    validation = f"```console\n{facts.tests}\n```\n\npre-commit: {facts.checks}"
    notes = "\n\n".join([*_needs(facts), _DISCLOSURE.format(reviewer=facts.reviewer or _NOBODY)])
    if tree == "vllm":
        sections = {
            "## Overview": first,
            "## Claims": _claims(patch),
            "## Validation": validation,
            "## Details": f"{reason}\n\n{notes}",
        }
    else:
        sections = {
            "**What this PR does / why we need it**:": reason,
            "**Special notes for your reviewers**:": f"{validation}\n\n{notes}",
        }
    return _ticked(_filled(template, sections), patch)


def _reason(patch: Patch) -> str:
    paragraphs = re.split(r"\n\s*\n", patch.body)
    kept = "\n\n".join(text for text in paragraphs if not _BOOKKEEPING.match(text))
    plain = kept.removeprefix("Why: ")
    return plain[:1].upper() + plain[1:]


def _claims(patch: Patch) -> str:
    listed = "\n".join(f"- {name.strip()}" for name in (patch.trailer("Tests") or "").split(","))
    what = re.sub(r"^(\[[^]]*\]\s*)+", "", patch.subject)
    return f"- {what}.\n\nTests that fail without the change and pass with it:\n\n{listed}"


def _needs(facts: Facts) -> list[str]:
    if not facts.needs:
        return []
    return ["This builds on:\n\n" + "\n".join(f"- {subject}" for subject in facts.needs)]


def _filled(template: str, sections: Mapping[str, str]) -> str:
    """The template with each text below its heading, and its advice to the writer left out."""
    text = re.sub(r"<!--.*?-->\n?", "", template, flags=re.DOTALL).strip() + "\n"
    for heading, content in sections.items():
        if heading in text:
            before, _, after = text.partition(heading)
            text = f"{before}{heading}\n\n{content}\n\n{after.lstrip()}"
        else:
            text += f"\n{heading}\n\n{content}\n"
    return text


def _ticked(text: str, patch: Patch) -> str:
    """Tick only the boxes that a program can vouch for."""
    boxes = {
        "this PR contains unit tests": True,
        "this PR contains user facing changes": any(f.startswith("docs/") for f in patch.touched()),
        "assistance was used": True,
    }
    for words, true in boxes.items():
        if true:
            text = re.sub(rf"- \[ \] (.*{re.escape(words)})", r"- [x] \1", text)
    return text
