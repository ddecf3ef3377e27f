"""Fetches Java libraries with Maven, into a folder of jars."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from firebird_cdc.demo.paths import made_once
from firebird_cdc.errors import SetupError

# Called with one sentence at a time on what is being done.
Progress = Callable[[str], None]

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def fetch_jars(
    cache: Path, name: str, coordinates: Sequence[str], progress: Progress | None = None
) -> Path:
    """Fetch jars with what they need at run time; return the folder that holds exactly them.

    cache: the folder of downloads; the jars land in <cache>/jars/<name>-<digest of coordinates>,
    and are fetched only once.
    coordinates: "group:artifact:version" each, or "group:artifact:version:type" with or without
    ":classifier" for a file that is taken alone, without what it needs.
    Raises SetupError with what Maven said.
    """
    pom = _pom(coordinates)
    digest = hashlib.sha256(pom.encode()).hexdigest()[:12]

    def fetch(part: Path) -> None:
        description = part / "pom.xml"
        description.write_text(pom, encoding="utf-8")
        _copy_dependencies(description, repository_of(cache), name, progress)
        description.unlink()

    return made_once(cache / "jars" / f"{name}-{digest}", fetch)


def repository_of(cache: Path) -> Path:
    """Return the folder in which Maven keeps all that it has fetched."""
    return cache / "maven"


def _copy_dependencies(
    description: Path, repository: Path, name: str, progress: Progress | None
) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise SetupError("Maven is missing (no mvn on the PATH); get it: apt-get install maven")
    command = [maven, "-B", "-f", str(description), f"-Dmaven.repo.local={repository}"]
    command += [f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={description.parent}"]
    said: list[str] = []
    fetched = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode(errors="replace").strip()
            if "Downloaded from" in line:
                if ".jar " in line and progress is not None:
                    fetched += 1
                    progress(f"{fetched} jars fetched")
            elif line and "Downloading from" not in line:
                said.append(line)
    if process.returncode != 0:
        raise SetupError(
            f"Maven could not fetch {name} (exit code {process.returncode}); "
            "is the Maven repository reachable from here? It said:\n" + "\n".join(said[-15:])
        )


def _pom(coordinates: Sequence[str]) -> str:
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>firebird-cdc</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{''.join(map(_dependency, coordinates))}</dependencies></project>\n"
    )


def _dependency(coordinate: str) -> str:
    group, artifact, version, *rest = (escape(part) for part in coordinate.split(":"))
    alone = ""
    if rest:
        alone = (
            f"<type>{rest[0]}</type>"
            + "".join(f"<classifier>{classifier}</classifier>" for classifier in rest[1:])
            + "<exclusions><exclusion>"
            "<groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        )
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{alone}</dependency>"
    )
