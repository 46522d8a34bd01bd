"""`python -m patchqueue <command>`: what the nox sessions call."""

import argparse
import dataclasses
import errno
import fcntl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from patchqueue.accept import accept
from patchqueue.apply import apply
from patchqueue.build import build
from patchqueue.errors import QueueError
from patchqueue.export import export
from patchqueue.fetch import fetch
from patchqueue.freshness import check_pins
from patchqueue.layout import CACHE_VARIABLE, TREES, Layout
from patchqueue.lint import lint
from patchqueue.pin import pin
from patchqueue.pins import MACHINES, TARGETS, Artifact, Pins
from patchqueue.platforms import Platform
from patchqueue.progress import Progress
from patchqueue.rebase import Rebase
from patchqueue.rebase_tests import run_checks, run_guards
from patchqueue.report import next_steps, table
from patchqueue.status import status
from patchqueue.upstream import Wish, overview, prepare

_HERE = Platform.here()
_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error becomes one message and exit status 1."""
    options = _parser().parse_args(arguments)
    layout = Layout.of(Path.cwd())
    try:
        with _alone(layout):
            options.run(layout, options)
    except QueueError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted; run this again")
    except OSError as error:
        if error.errno not in _FULL:
            return _fail(str(error))
        where = error.filename or f"{layout.root} or {layout.cache}"
        return _fail(
            f"no space is left on the disk of {where}. Free some (or set {CACHE_VARIABLE} to a "
            "folder on another disk) and run this again"
        )
    return 0


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Wait until no other session works on this cache (and so on this checkout)."""
    try:
        layout.cache.mkdir(parents=True, exist_ok=True)
        lock = (layout.cache / "lock").open("w")
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise QueueError(
            f"the cache {layout.cache} cannot be written to ({error.strerror}); set "
            f"{CACHE_VARIABLE} to a folder that can, and run this again"
        ) from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another session of the queue to end", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m patchqueue", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(
        run: Callable[[Layout, argparse.Namespace], None], name: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        added.set_defaults(run=run)
        return added

    release = command(_pin, "pin")
    release.add_argument("releases", nargs="*", help="as in vllm==0.32.0; else today's pins")
    release.add_argument("--check", action="store_true", help="write nothing: is there news?")
    files = command(_fetch, "fetch")
    files.add_argument("--all", action="store_true", help="the donors of every platform")
    _platform_options(files)
    command(_apply, "apply")
    command(_export, "export")
    command(_lint, "lint")
    wheels = command(_build, "build")
    wheels.add_argument("--dist", type=Path, help="the folder to write to; else dist/")
    _platform_options(wheels)
    _rebase_options(command(_rebase, "rebase"))
    command(_status, "status")
    branch = command(_upstream, "upstream")
    branch.add_argument("patch", nargs="?", help="its name, as `nox -s status` prints it")
    branch.add_argument("--all", action="store_true", help="only a table: what is ready?")
    branch.add_argument("--clone", type=Path, help="of the upstream; else one made of the sdist")
    branch.add_argument("--reviewer", help="the person who has reviewed every line")
    branch.add_argument("--no-tests", action="store_true", help="do not run the patch's tests")
    return parser


def _rebase_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("releases", nargs="*", help="as in vllm==0.33.0; else show the progress")
    ways = parser.add_mutually_exclusive_group()
    for way, words in {
        "--continue": "go on, after a conflict or an interruption",
        "--skip": "leave the patch in conflict out for now",
        "--abort": "drop the rebase",
        "--accept": "commit its result: patches/, series and pins.lock",
        "--lint": "run upstream's own checks over the files of the rebased patches",
        "--tests": "run the tests of the patches that are brought over",
    }.items():
        ways.add_argument(way, dest="way", action="store_const", const=way, help=words)


def _platform_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=TARGETS, default=_HERE.target)
    parser.add_argument("--machine", choices=MACHINES, default=_HERE.machine)
    parser.add_argument("--python", default=_HERE.python, help="of the wheels, as in 3.12")


def _pin(layout: Layout, options: argparse.Namespace) -> None:
    """Write pins.lock for the named releases."""
    if options.check:
        if options.releases:
            raise QueueError("--check takes no releases; it looks for newer ones by itself")
        print(check_pins(layout))
        return
    versions = {}
    if layout.pins.is_file():
        versions = {name: tree.version for name, tree in Pins.read(layout.pins).trees.items()}
    versions |= _releases(options.releases)
    if missing := [tree for tree in TREES if tree not in versions]:
        raise QueueError(f"no release is named for {missing[0]}; add {missing[0]}==<version>")
    pin(layout, versions)
    print(f"pins.lock: {', '.join(f'{name} {version}' for name, version in versions.items())}")


def _releases(texts: Sequence[str]) -> dict[str, str]:
    releases: dict[str, str] = {}
    for tree, version in map(_release, texts):
        if releases.setdefault(tree, version) != version:
            raise QueueError(
                f"two releases are named for {tree}, {releases[tree]} and {version}; name one"
            )
    return releases


def _release(text: str) -> tuple[str, str]:
    try:
        requirement = Requirement(text)
        ((operator, version),) = [(s.operator, s.version) for s in requirement.specifier]
    except (InvalidRequirement, ValueError) as error:
        raise QueueError(f"'{text}' names no release; write it as vllm==0.32.0") from error
    if operator != "==" or requirement.name not in TREES:
        raise QueueError(f"'{text}' must be one of {', '.join(TREES)} and '==' a version")
    return requirement.name, version


def _fetch(layout: Layout, options: argparse.Namespace) -> None:
    """Download the pinned sdists and donor wheels into the cache."""
    for path in fetch(layout.cache, _wanted(Pins.read(layout.pins), options)):
        print(path)


def _wanted(pins: Pins, options: argparse.Namespace) -> list[Artifact]:
    sdists = [tree.sdist for tree in pins.trees.values()]
    if options.all:
        return [*sdists, *pins.wheels]
    wanted = dataclasses.astuple(_platform(options))
    donors = [pins.donor(tree, *wanted) for tree in TREES]
    return sdists + [donor for donor in donors if donor is not None]


def _platform(options: argparse.Namespace) -> Platform:
    return Platform(options.target, options.machine, options.python)


def _apply(layout: Layout, _: argparse.Namespace) -> None:
    """Make the work trees: pinned sdists with the series applied."""
    for tree in apply(layout):
        names = ", ".join(tree.saved()) or "no patches"
        print(f"{tree.shown}: {tree.pin.name} {tree.pin.version} + {names}")


def _export(layout: Layout, _: argparse.Namespace) -> None:
    """Write the work trees' commits back to patches/ and series."""
    print("\n".join(export(layout)) or "patches/ and series are up to date")


def _lint(layout: Layout, _: argparse.Namespace) -> None:
    """Check the series, the patches' headers and their bytes."""
    lint(layout)


def _build(layout: Layout, options: argparse.Namespace) -> None:
    """Write the wheels of the patched trees into dist/."""
    for wheel in build(layout, _platform(options), options.dist or layout.dist):
        print(wheel)


def _rebase(layout: Layout, options: argparse.Namespace) -> None:
    """Bring the series to other releases, in a scratch copy."""
    rebase = Rebase(layout)
    if options.releases and options.way:
        raise QueueError(f"{options.way} takes no releases")
    if options.way == "--abort":
        print(_aborted(rebase.abort()))
    elif options.way == "--accept":
        print(f"committed: {accept(rebase)}; now `nox -s lint tests integration`")
    else:
        _show_rebase(_go_on(rebase, options))


def _go_on(rebase: Rebase, options: argparse.Namespace) -> Progress:
    if options.releases:
        return rebase.start(_releases(options.releases))
    if options.way == "--lint":
        return run_checks(rebase)
    if options.way == "--tests":
        return run_guards(rebase)
    if options.way == "--skip":
        return rebase.skip()
    return rebase.go_on() if options.way else rebase.progress()


def _aborted(changed: Sequence[str]) -> str:
    if not changed:
        return "the rebase is dropped; patches/, series and pins.lock are as they were"
    return (
        f"the rebase is dropped, but since it began {', '.join(changed)} changed. `git status` "
        "shows what no commit holds; where an --accept that broke off wrote it, `git restore "
        "--source HEAD --staged --worktree -- pins.lock series patches` takes it back"
    )


def _show_rebase(progress: Progress) -> None:
    print("\n".join([*table(progress), "", *next_steps(progress)]))


def _status(layout: Layout, _: argparse.Namespace) -> None:
    """Show the series at a glance; fail where no test guards a patch."""
    print(status(layout))


def _upstream(layout: Layout, options: argparse.Namespace) -> None:
    """Prepare a patch for its upstream: a branch, checks, a description. Sends nothing."""
    if options.all == bool(options.patch):
        raise QueueError("name one patch, or --all for a table")
    if options.all:
        print(overview(layout))
        return
    print(
        prepare(layout, Wish(options.patch, options.clone, options.reviewer, not options.no_tests))
    )


if __name__ == "__main__":
    sys.exit(main())
