import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchqueue.errors import QueueError
from patchqueue.patch import NAME, Patch, slug

DIFF = (
    b"diff --git a/x.py b/x.py\nindex 0..1 100644\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+\xff\n"
)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip)
LINES = st.lists(TEXT.filter(lambda line: line and not line.startswith(("---", "diff "))))


@given(subject=TEXT.filter(bool), body=LINES.map("\n".join))
def test_what_is_written_is_read_back(subject: str, body: str) -> None:
    patch = Patch(subject, "A B <a@b>", "2026-01-31 12:00:00 +0000", body.strip("\n"), DIFF)
    assert Patch.parse(patch.format()) == patch


@pytest.mark.parametrize("data", [b"", b"subject\n\nbody\n---\n\n" + DIFF, DIFF])
def test_a_file_without_the_header_is_refused(data: bytes) -> None:
    with pytest.raises(QueueError, match="the header is not"):
        Patch.parse(data)


def test_trailers_may_be_folded_and_share_a_paragraph() -> None:
    body = "Why: one\ntwo.\n\nTests: a.py,\nb.py\nUpstream-Status: Pending"
    patch = Patch("s", "a <b@c>", "d", body, DIFF)
    assert patch.trailer("Why") == "one two."
    assert patch.trailer("Tests") == "a.py, b.py"
    assert patch.trailer("Upstream-Status") == "Pending"
    assert patch.trailer("Remove when") is None


@given(st.text())
def test_a_slug_is_a_patch_name(subject: str) -> None:
    assert NAME.fullmatch(slug(subject))


def test_a_slug_leaves_tags_out() -> None:
    assert slug("[Core][MP] Bound reads, at last!") == "bound-reads-at-last"
