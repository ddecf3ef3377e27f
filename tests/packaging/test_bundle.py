"""The offline bundle's script and archive, with a small tree in place of the real one, which
``make packages-check`` installs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts/packages"))
import linux  # noqa: E402
from bundle import pack, write_bundle  # noqa: E402
from places import ADDONS, version_of  # noqa: E402
from system import security_patches  # noqa: E402

from firebird_cdc.errors import SetupError  # noqa: E402

# Says what it was asked, and does what `firebird-cdc upgrade` does for a prefix without servers.
_COMMAND = """\
#!/bin/sh
self=$(readlink -f -- "$0") && version=${self%/bin/*} && prefix=${version%/versions/*}
echo "${version##*/} $*" >> "$prefix/asked"
[ ! -e "$prefix/refuse" ] || { echo "it can't be" >&2; exit 1; }
case $1 in install | upgrade) ln -sfn "versions/${version##*/}" "$prefix/current" ;; esac
"""


def small_tree(folder: Path, version: str) -> Path:
    """Make a tree that has the parts that the bundle's script looks at."""
    command = folder / "bin/firebird-cdc"
    command.parent.mkdir(parents=True)
    command.write_text(_COMMAND)
    command.chmod(0o755)
    (folder / "data").write_bytes(os.urandom(50_000) + version.encode())
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("bin/firebird-cdc", "data")
    ]
    (folder / "files.sha256").write_text("".join(lines))
    return folder


def small_bundle(folder: Path, version: str, kilobytes: int = 100) -> Path:
    """Make a bundle of a small tree."""
    folder.mkdir(exist_ok=True)
    archive, target = folder / f"{version}.tar.gz", folder / f"{version}.run"
    pack(archive, 0, small_tree(folder / version, version))
    write_bundle(archive, target, version, kilobytes)
    return target


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The bundles of two versions."""
    folder = tmp_path_factory.mktemp("bundles")
    return small_bundle(folder, "1.0"), small_bundle(folder, "1.1")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """The folder to install into, which is not there yet."""
    return tmp_path / "opt/firebird-cdc"


def run(bundle: Path, *arguments: object, success: bool = True) -> str:
    """Run a bundle; return what it said."""
    words = ["sh", str(bundle), *map(str, arguments)]
    # Where a byte is flipped, a shell may take a word for a file to write, in its own folder.
    done = subprocess.run(
        words, capture_output=True, text=True, errors="replace", check=False, cwd=bundle.parent
    )
    assert (done.returncode == 0) == success, done.stdout + done.stderr
    return done.stdout + done.stderr


def content(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_installs_upgrades_and_leaves_nothing(
    bundles: tuple[Path, Path], prefix: Path, tmp_path: Path
) -> None:
    first, second = bundles
    run(first, "install", "--prefix", prefix, "--server", "/opt/firebird", "--", "--replace")
    assert (prefix / "current").readlink() == Path("versions/1.0")
    run(second, "upgrade", "--prefix", prefix)
    assert (prefix / "current").readlink() == Path("versions/1.1")
    assert content(prefix / "current") == content(second.parent / "1.1")
    asked = (prefix / "asked").read_text().splitlines()
    assert asked == ["1.0 install --server /opt/firebird --replace", "1.1 upgrade"]
    (prefix / "asked").unlink()


def damaged(bundle: Path) -> Iterator[tuple[int, int]]:
    """Yield places all over a bundle and what is flipped there: in each line of what is read before
    its digest is compared, in the script, around the border, and in the archive."""
    data = bundle.read_bytes()
    script = data.index(b'main "$@"\n') + len(b'main "$@"\n')
    first = data.index(b"version=1.0")
    yield from ((0, 1 ^ bits) for bits in (0, 5, 3))  # to quotes, and to no comment
    yield from ((place, 1 << place % 8) for place in range(1, first, 7))
    yield from ((place, 1) for place in range(first, script, 1009))
    yield from ((place, 1) for place in (script - 2, script, script + 20, len(data) - 1))


def test_flipped_byte_anywhere_is_told_and_nothing_changes(
    bundles: tuple[Path, Path], prefix: Path, tmp_path: Path
) -> None:
    told = []
    for place, flipped in damaged(bundles[0]):
        data = bytearray(bundles[0].read_bytes())
        data[place] ^= flipped
        copy = tmp_path / "damaged.run"
        copy.write_bytes(data)
        for command in ("install", "verify"):
            said = run(copy, command, "--prefix", prefix, success=False)
            assert not prefix.parent.exists(), f"at {place}: {said}"
            told.append("is damaged" in said or "copy it again" in said)
    # A quote in the line that sets the trap leaves no shell script at all, and its message is sh's.
    assert told.count(False) <= len(told) / 100


def test_bundle_that_was_cut_short_is_told(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    data = bundles[0].read_bytes()
    for size in (data.index(b"sum="), data.index(b"set -eu"), data.index(b"umask"), len(data) // 2):
        copy = tmp_path / "short.run"
        copy.write_bytes(data[:size])
        assert "is damaged" in run(copy, "verify", success=False)


def test_run_that_was_cut_off_is_completed_by_the_next(
    bundles: tuple[Path, Path], prefix: Path
) -> None:
    half = prefix / "versions/1.0.new"
    half.mkdir(parents=True)
    (half / "data").write_bytes(b"half")
    run(bundles[0], "install", "--prefix", prefix, "--no-server")
    assert {path.name for path in (prefix / "versions").iterdir()} == {"1.0"}
    (prefix / "versions/1.0/data").write_bytes(b"damaged")
    assert "unpacked again" in run(bundles[0], "install", "--prefix", prefix, "--no-server")
    assert content(prefix / "current") == content(bundles[0].parent / "1.0")


def test_bundle_with_replay_completes_a_version_without_it(
    bundles: tuple[Path, Path], prefix: Path, tmp_path: Path
) -> None:
    for name in ADDONS:
        (tmp_path / "addons" / name).mkdir(parents=True)
        (tmp_path / "addons" / name / "files.sha256").touch()
    archive, whole = tmp_path / "whole.tar.gz", tmp_path / "whole.run"
    pack(archive, 0, bundles[0].parent / "1.0", tmp_path / "addons")
    write_bundle(archive, whole, "1.0", 100, ADDONS)
    run(bundles[0], "install", "--prefix", prefix, "--no-server")
    run(whole, "install", "--prefix", prefix, "--no-server")
    assert all((prefix / "current" / name / "files.sha256").exists() for name in ADDONS)
    for bundle in (whole, bundles[0]):
        said = run(bundle, "install", "--prefix", prefix, "--no-server")
        assert "is there already, and whole" in said
    assert all((prefix / "current" / name / "files.sha256").exists() for name in ADDONS)


def test_version_that_can_not_be_installed_does_not_stay(
    bundles: tuple[Path, Path], prefix: Path
) -> None:
    run(bundles[0], "install", "--prefix", prefix, "--no-server")
    (prefix / "refuse").touch()
    said = run(bundles[1], "upgrade", "--prefix", prefix, success=False)
    assert "it can't be" in said
    assert "nothing was changed" in said
    assert {path.name for path in (prefix / "versions").iterdir()} == {"1.0"}


def test_missing_room_is_told_before_anything_is_written(tmp_path: Path, prefix: Path) -> None:
    greedy = small_bundle(tmp_path / "greedy", "2.0", 10**12)
    assert "are needed" in run(greedy, "install", "--prefix", prefix, success=False)
    assert not prefix.parent.exists()


def test_wrong_arguments_change_nothing(bundles: tuple[Path, Path], prefix: Path) -> None:
    assert "full path" in run(bundles[0], "install", "--prefix", "opt", success=False)
    assert "no option" in run(bundles[0], "install", "--prefx", prefix, success=False)
    assert "no version to upgrade" in run(bundles[0], "upgrade", "--prefix", prefix, success=False)
    assert "nothing of" in run(bundles[0], "uninstall", "--prefix", prefix, success=False)
    assert "usage" in run(bundles[0], success=False)
    assert not prefix.parent.exists()


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = small_tree(tmp_path / "tree", "1.0")
    for name in ("first", "second"):
        os.utime(folder / "data", (len(name), len(name)))
        pack(tmp_path / name, 1_700_000_000, folder)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_each_commit_has_a_version_of_its_own() -> None:
    made = "20261127163900"
    assert version_of("0.2.0", "d01e0949" * 5, made, tagged=True) == "0.2.0"
    assert version_of("0.2.0", "d01e0949" * 5, made, tagged=False) == f"0.2.0+{made}.gd01e0949"
    changed = version_of("0.2.0", f"{'d01e0949' * 5}+changes", made, tagged=True)
    assert changed == f"0.2.0+{made}.gd01e0949.changes"


def test_packages_of_a_release_name_who_answers_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "version", lambda: "0.2.0")
    monkeypatch.delenv("DEBEMAIL", raising=False)
    with pytest.raises(SetupError, match=r"release 0\.2\.0 .* set DEBFULLNAME and DEBEMAIL"):
        linux.maintainer()
    monkeypatch.setenv("DEBFULLNAME", "Jo Example")
    monkeypatch.setenv("DEBEMAIL", "jo@example.org")
    assert linux.maintainer() == "Jo Example <jo@example.org>"


def test_patches_for_vulnerabilities_are_taken_from_a_series() -> None:
    series = ["#off.diff", "multiarch.diff", "CVE-2025-6069.patch", "CVE-2026-1.patch # -p1", ""]
    assert security_patches(series) == ["CVE-2025-6069.patch", "CVE-2026-1.patch"]
