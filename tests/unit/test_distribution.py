"""The distribution: what the wheel and the source distribution hold, and that tools follow it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import jedi
import pytest

from firebird_cdc import __version__
from firebird_cdc.demo.paths import cache_directory

ROOT = Path(__file__).parents[2]
SHIPPED = ("native", "bridge", "journal", "config", "packaging")
ROOMS = (*SHIPPED, "demo")  # a clone has the demo too
EMBEDDING = f"_embedding{sysconfig.get_config_var('EXT_SUFFIX')}"
_MADE = ".git .venv .cache .run build dist *.egg-info __pycache__ *.so .*_cache"
_NOT_SOURCE = shutil.ignore_patterns(*_MADE.split())


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command to its end; return what it said, or fail with it."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    environment["PYTHONSAFEPATH"] = "1"  # the folder packaging/ must not pass for the library
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        headers = cache_directory() / "debian/root/usr/include"
        name = f"python3.{sys.version_info.minor}"
        environment["FIREBIRD_CDC_PYTHON_INCLUDE"] = str(headers / name)
        environment["C_INCLUDE_PATH"] = str(headers)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def source_tree(to: Path) -> Path:
    """Copy the clone as it is, links as links, without what was built in it."""
    return Path(shutil.copytree(ROOT, to, symlinks=True, ignore=_NOT_SOURCE))


def empty_environment(folder: Path) -> Path:
    """Make a virtual environment without packages; return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin/python"


def lend_packages(python: Path) -> None:
    """Let an environment see what firebird-cdc needs, in the environment of the tests."""
    (ours,) = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # Its own packages come first; the name sorts before those that pip writes.
    Path(site, "AA_lent.pth").write_text(f"{ours}\n", encoding="utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("distribution")
    source = source_tree(folder / "source")
    # As it is after an earlier build in the same tree.
    (source / "native/_embedding.c").write_text("generated\n", encoding="utf-8")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_wheel_holds_exactly_the_files_of_a_server(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"firebird_cdc", f"firebird_cdc-{__version__}.dist-info"}
    sources = [path for room in SHIPPED for path in ROOT.glob(f"{room}/**/*.py")]
    sources += [*ROOT.glob("config/samples/*"), *ROOT.glob("native/*.pyi")]
    sources += ROOT.glob("journal/shipper/monitoring/page/*.*")
    sources += [path for path in ROOT.glob("packaging/services/*.*") if path.suffix != ".py"]
    expected = {f"firebird_cdc/{path.relative_to(ROOT)}" for path in sources}
    expected |= {f"firebird_cdc/{path.name}" for path in ROOT.glob("firebird_cdc/*.py")}
    expected |= {
        "firebird_cdc/py.typed",
        "firebird_cdc/native/libfirebird_cdc.so",
        f"firebird_cdc/native/{EMBEDDING}",
        "firebird_cdc/native/_journal_files.abi3.so",
    }
    packed = {name for name in names if name.startswith("firebird_cdc/")}
    assert packed == expected
    assert f"firebird_cdc-{__version__}.dist-info/licenses/LICENSE" in names


def test_plugin_in_the_wheel_needs_nothing_but_libc(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        plugin = archive.extract("firebird_cdc/native/libfirebird_cdc.so", tmp_path)
        embedding = archive.extract(f"firebird_cdc/native/{EMBEDDING}", tmp_path)
    for library in (plugin, embedding):
        said = run("readelf", "--dynamic", library)
        needed = [
            line.rpartition("[")[2].rstrip("]") for line in said.splitlines() if "NEEDED" in line
        ]
        assert needed == ["libc.so.6"], library


def test_source_distribution_has_licence_and_docs_and_nothing_generated(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "docs/README.md", "native/session.c"):
        assert name in names
    assert not [name for name in names if name.endswith((".so", "_embedding.c", "_shared_page.py"))]
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "packaging"))]


def test_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    python = empty_environment(tmp_path / "environment")
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel
    )
    lend_packages(python)
    command = python.with_name("firebird-cdc")
    assert run(command, "--version", cwd=tmp_path) == f"firebird-cdc {__version__}\n"
    assert "audit" in run(command, "replay", "--help", cwd=tmp_path)
    program = (
        "from firebird_cdc.packaging.server import runtime\n"
        "print(runtime.plugin_library(), runtime.embedding_library(), sep='\\n')"
    )
    for library in run(python, "-c", program, cwd=tmp_path).splitlines():
        assert Path(library).is_relative_to(tmp_path / "environment")
        assert Path(library).is_file()


@pytest.mark.soak
def test_plain_editable_install_leads_to_the_clone(tmp_path: Path) -> None:
    source = source_tree(tmp_path / "clone")
    python = empty_environment(tmp_path / "environment")
    lend_packages(python)
    install = [
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--ignore-installed",
        "-e",
        source,
    ]
    run(sys.executable, "-m", "pip", "--python", python, "install", *install)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A path entry, which mypy and editors follow; not an import hook, which they don't.
    (entry,) = site.glob("__editable__*")
    assert entry.read_text("utf-8").strip() == str(source)
    assert (source / "native/libfirebird_cdc.so").is_file()
    assert (source / "native" / EMBEDDING).is_file()


def test_set_up_environment_imports_the_rooms_from_their_folders(tmp_path: Path) -> None:
    program = "from importlib import import_module as load\n" + "".join(
        f"print(load('firebird_cdc.{room}').__file__)\n" for room in ROOMS
    )
    found = run(sys.executable, "-c", program, cwd=tmp_path).splitlines()
    assert [Path(path).resolve() for path in found] == [
        ROOT.resolve() / room / "__init__.py" for room in ROOMS
    ]


def test_type_checker_follows_the_package(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "from firebird_cdc.journal.folder.inventory import TransactionState\n"
        "number: int = TransactionState.ACTIVE\n"
        "text: str = TransactionState.ACTIVE.value\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(probe)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert "probe.py:2: error: Incompatible types in assignment" in errors[0]


def test_editor_finds_definitions_in_the_room(tmp_path: Path) -> None:
    line = "from firebird_cdc.journal.format import JournalReader"
    # The environment's own search path: this process's may have been added to, by Spark for one.
    environment = jedi.create_environment(sys.prefix, safe=False)
    script = jedi.Script(line, path=tmp_path / "x.py", environment=environment)
    (definition,) = script.goto(1, len(line), follow_imports=True)
    assert definition.type == "class"
    assert definition.module_path is not None
    assert definition.module_path.resolve() == ROOT.resolve() / "journal/format/reader.py"
    assert "class JournalReader" in definition.get_line_code()


def test_modules_in_the_folders_of_tests_have_names_of_their_own() -> None:
    """One run imports them all beside each other: of two with one name, it sees the first only."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, times in names.items() if times > 1 and name != "conftest.py"] == []
