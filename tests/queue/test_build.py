import sys
import zipfile

import pytest

from patchqueue.__main__ import main
from patchqueue.build import build
from patchqueue.errors import QueueError
from patchqueue.layout import Layout
from patchqueue.platforms import Platform
from tests.queue.synthetic import commit, save

CUDA = Platform("cuda", "aarch64", "3.12")


def test_both_wheels_are_repacked_for_cuda(queue: Layout) -> None:
    (queue.root / "dist").mkdir()
    old = "vllm-0.31.0+bsr.6-cp38-abi3-manylinux_2_28_aarch64.whl"
    (queue.root / "dist" / old).write_bytes(b"an old build")
    assert [path.name for path in build(queue, CUDA, queue.dist)] == [
        "lmcache-0.5.6+bsr.7-cp312-cp312-manylinux_2_28_aarch64.whl",
        "vllm-0.32.0+bsr.7-cp38-abi3-manylinux_2_28_aarch64.whl",
    ]
    assert len(list(queue.dist.iterdir())) == 2
    with zipfile.ZipFile(next(queue.dist.glob("lmcache-*"))) as wheel:
        code = wheel.read("lmcache/core.py").decode()
    assert "line_5 = -5\n" in code
    assert "line_30 = -30\n" in code


def test_building_twice_gives_the_same_bytes(queue: Layout) -> None:
    first = [path.read_bytes() for path in build(queue, CUDA, queue.dist)]
    assert [path.read_bytes() for path in build(queue, CUDA, queue.dist)] == first


def test_a_patch_to_compiled_sources_is_refused(queue: Layout) -> None:
    commit(queue.worktree("vllm"), "[Core] Kernel", {"vllm/kernel.cu": "x\n"}, "vllm")
    save(queue)
    with pytest.raises(QueueError, match=r"changes vllm/kernel\.cu, which a repacked donor"):
        build(queue, CUDA, queue.dist)


def test_no_compiler_is_named(queue: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(QueueError, match=r"no C\+\+ compiler: no-such-compiler .*apt-get"):
        build(queue, Platform.here(), queue.dist)


def test_another_machine_cannot_be_compiled_for(queue: Layout) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[Platform.here().machine]
    with pytest.raises(QueueError, match=f"build it with Python 3.11 on {other}"):
        build(queue, Platform("cpu", other, "3.11"), queue.dist)


def test_a_failed_compilation_shows_its_last_words(queue: Layout) -> None:
    with pytest.raises(QueueError, match=r"(?s)compiling lmcache failed; the whole log is .*log"):
        build(queue, Platform.here(), queue.dist)


def test_a_compiled_wheel_carries_the_version(queue: Layout) -> None:
    """With a tiny setup.py in place of LMCache's own."""
    setup = (
        "import os\nfrom setuptools import setup\n"
        "assert os.environ['NO_GPU_EXT'] == '1'\n"
        "version = os.environ['SETUPTOOLS_SCM_PRETEND_VERSION_FOR_LMCACHE']\n"
        "setup(name='lmcache', version=version, packages=['lmcache'])\n"
    )
    commit(queue.worktree("lmcache"), "[Build] Setup", {"setup.py": setup}, "lmcache")
    save(queue)
    lmcache = build(queue, Platform.here(), queue.dist)[0]
    assert lmcache.name == "lmcache-0.5.6+bsr.7.cpu-py3-none-any.whl"
    log = queue.root / "work/lmcache-build.log"
    log.unlink()
    assert build(queue, Platform.here(), queue.dist)[0] == lmcache
    assert not log.exists(), "the same files were compiled twice"


def test_the_session_names_what_it_wrote(
    queue: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(queue.root)
    arguments = ["--target", "cuda", "--machine", "x86_64", "--python", "3.11"]
    assert main(["build", *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(
        queue.dist / "vllm-0.32.0+bsr.7-cp38-abi3-manylinux_2_28_x86_64.whl"
    )


def test_the_default_is_this_machine() -> None:
    here = Platform.here()
    assert here.python == f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize("path", ["csrc/kernel.cu", "requirements/common.txt", "pyproject.toml"])
def test_a_patch_outside_the_package_is_not_left_out_in_silence(queue: Layout, path: str) -> None:
    commit(queue.worktree("vllm"), "[Core] Else", {path: "x\n"}, "vllm")
    save(queue)
    with pytest.raises(QueueError, match=f"changes {path}, which a repacked donor"):
        build(queue, CUDA, queue.dist)


def test_a_patch_to_docs_and_tests_is_no_matter_for_the_wheel(queue: Layout) -> None:
    files = {"docs/a.rst": "x\n", "tests/test_a.py": "x\n", "README.md": "x\n"}
    commit(queue.worktree("vllm"), "[Docs] Else", files, "vllm")
    save(queue)
    assert len(build(queue, CUDA, queue.dist)) == 2


def test_a_symbolic_link_is_refused(queue: Layout) -> None:
    (queue.worktree("vllm") / "vllm/alias.py").symlink_to("core.py")
    commit(queue.worktree("vllm"), "[Core] Link", {"vllm/new.py": "x\n"}, "vllm")
    save(queue)
    with pytest.raises(QueueError, match=r"changes vllm/alias\.py"):
        build(queue, CUDA, queue.dist)


def test_a_failed_build_and_foreign_wheels_leave_the_folder_alone(
    queue: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.dist.mkdir()
    upstreams = queue.dist / "vllm-0.31.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    upstreams.write_bytes(b"upstream's")
    older = queue.dist / "vllm-0.31.0+bsr.6-cp38-abi3-manylinux_2_28_aarch64.whl"
    older.write_bytes(b"ours")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(QueueError):
        build(queue, Platform.here(), queue.dist)
    assert {upstreams, older} <= set(queue.dist.iterdir())
    build(queue, CUDA, queue.dist)
    assert upstreams.exists()
    assert not older.exists()
