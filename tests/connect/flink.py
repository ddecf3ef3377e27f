"""Apache Flink as a user has it unpacked, of what PyPI and Maven have of it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from firebird_cdc.demo.maven import fetch_jars
from firebird_cdc.demo.paths import made_once
from firebird_cdc.demo.service import QUICK_JAVA

VERSION = "2.2.1"

# As in the conf/config.yaml that it comes with, for Java 17.
_JAVA_OPTIONS = (
    "-Xmx500m",
    *QUICK_JAVA,
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.reflect",
            "java.net",
            "java.io",
            "java.nio",
            "java.text",
            "java.time",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "java.util.concurrent.locks",
            "sun.nio.ch",
        )
    ),
)


def fetch_flink(cache: Path) -> Path:
    """Fetch Flink's jars, once; return the folder with lib/ and opt/."""

    def fetch(part: Path) -> None:
        target = part / "package"
        options = ["--quiet", "--no-cache-dir", "--no-deps", "--no-compile", f"--target={target}"]
        package = f"apache-flink-libraries=={VERSION}"
        subprocess.run([sys.executable, "-m", "pip", "install", *options, package], check=True)
        # Of what its archive has in opt/, PyPI lacks the part that runs queries for the client.
        gateway = f"org.apache.flink:flink-sql-gateway:{VERSION}:jar"
        [jar] = fetch_jars(cache, "flink", (gateway,)).glob("*.jar")
        shutil.copy(jar, target / "pyflink" / "opt")
        for each in ("lib", "opt"):
            (target / "pyflink" / each).rename(part / each)
        shutil.rmtree(target)

    return made_once(cache / "flink" / VERSION, fetch)


def lay_out(program: Path, folder: Path) -> None:
    """Make FOLDER what Flink's archive unpacks to, as far as a query needs it.

    PyPI has none of its scripts: this one starts the class that Flink's own starts.
    """
    (folder / "bin").mkdir(parents=True)
    (folder / "conf").mkdir()
    configuration = {"taskmanager.numberOfTaskSlots": 2, "parallelism.default": 1}
    text = "".join(f"{name}: {value}\n" for name, value in configuration.items())
    (folder / "conf" / "config.yaml").write_text(text)
    main = "org.apache.flink.table.client.SqlClient"
    class_path = f"{program}/lib/*:{program}/opt/*"
    java = shlex.join(["java", *_JAVA_OPTIONS, "-cp", class_path, main])
    script = folder / "bin" / "sql-client.sh"
    script.write_text(
        f'#!/bin/sh\nexport FLINK_CONF_DIR={shlex.quote(str(folder / "conf"))}\nexec {java} "$@"\n'
    )
    script.chmod(0o755)
