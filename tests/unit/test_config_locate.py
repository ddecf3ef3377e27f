"""locate_files: which of several places counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from firebird_cdc.config import locate_files

ENVIRONMENT = {
    "FIREBIRD_CONNECTOR_CONFIG": "/env/c.yaml",
    "FIREBIRD_CONNECTOR_LOGGING": "/env/l.yaml",
}
PLUGIN = {"ConnectorConfig": "/plugin/c.yaml", "LoggingConfig": "/plugin/l.yaml"}
JVM_ARGS = "-Dfirebird.connector.config=/jvm/c.yaml\n-Dlogback.configurationFile=/jvm/logback.xml\n"


def test_environment_wins_then_plugins_conf_then_jvm_args_then_default(tmp_path: Path) -> None:
    (tmp_path / "jvm.args").write_text(JVM_ARGS)

    assert locate_files(PLUGIN, ENVIRONMENT, tmp_path) == (
        Path("/env/c.yaml"),
        Path("/env/l.yaml"),
    )
    assert locate_files(PLUGIN, {}, tmp_path) == (Path("/plugin/c.yaml"), Path("/plugin/l.yaml"))
    assert locate_files({}, {}, tmp_path) == (Path("/jvm/c.yaml"), Path("/jvm/logback.xml"))
    (tmp_path / "jvm.args").unlink()
    assert locate_files({}, {}, tmp_path) == (tmp_path / "reddatabase.connector.yaml", None)


def test_each_file_is_found_on_its_own(tmp_path: Path) -> None:
    found = locate_files(
        {"LoggingConfig": "/plugin/l.yaml"}, {"FIREBIRD_CONNECTOR_CONFIG": "/env/c.yaml"}, tmp_path
    )
    assert found == (Path("/env/c.yaml"), Path("/plugin/l.yaml"))


def test_empty_settings_do_not_count(tmp_path: Path) -> None:
    found = locate_files({"ConnectorConfig": " "}, {"FIREBIRD_CONNECTOR_CONFIG": ""}, tmp_path)
    assert found.config == tmp_path / "reddatabase.connector.yaml"


@pytest.mark.parametrize("where", ["environment", "plugin", "jvm"])
def test_relative_path_starts_at_the_server_directory(tmp_path: Path, where: str) -> None:
    if where == "jvm":
        (tmp_path / "jvm.args").write_text("-Dfirebird.connector.config=conf/c.yaml")
    found = locate_files(
        {"ConnectorConfig": "conf/c.yaml"} if where == "plugin" else {},
        {"FIREBIRD_CONNECTOR_CONFIG": "conf/c.yaml"} if where == "environment" else {},
        tmp_path,
    )
    assert found.config == tmp_path / "conf" / "c.yaml"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("-Dfirebird.connector.config=/var/config/custom.rdb.connector.yaml", None),
        ("  -Dfirebird.connector.config=/a/c.yaml  ", "/a/c.yaml"),
        ('"-Dfirebird.connector.config=/a b/c.yaml"', "/a b/c.yaml"),
        ('-Dfirebird.connector.config="/a b/c.yaml"', "/a b/c.yaml"),
        ("-Xmx1g -Dfirebird.connector.config=/a/c.yaml -Xss1m", "/a/c.yaml"),
        ("-Dfirebird.connector.config=/a/c#1.yaml", "/a/c#1.yaml"),
        ("# -Dfirebird.connector.config=/a/c.yaml", "default"),
        ("#-Dfirebird.connector.config=/a/c.yaml", "default"),
        ("-Dfirebird.connector.configuration=/a/c.yaml", "default"),
        ("-Dfirebird.connector.config=", "default"),
        ("-Dfirebird.connector.config=/a\n-Dfirebird.connector.config=/b", "/b"),
        ("-Dfirebird.connector.config=/a's/c.yaml", "/a's/c.yaml"),
        ("-Dfirebird.connector.config=/конфиг/c.yaml\r\n-Xmx1g\r\n", "/конфиг/c.yaml"),
    ],
)
def test_options_file_is_found_by_a_line_of_jvm_args(
    tmp_path: Path, line: str, path: str | None
) -> None:
    (tmp_path / "jvm.args").write_bytes(line.encode())
    expected = {
        None: Path("/var/config/custom.rdb.connector.yaml"),
        "default": tmp_path / "reddatabase.connector.yaml",
    }.get(path, Path(path or ""))
    assert locate_files({}, {}, tmp_path).config == expected


def test_logging_file_is_found_by_a_url_in_jvm_args(tmp_path: Path) -> None:
    (tmp_path / "jvm.args").write_text("-Dlogback.configurationFile=file:///a%20b/logback.xml")
    assert locate_files({}, {}, tmp_path).logging == Path("/a b/logback.xml")


def test_jvm_args_in_another_encoding_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "jvm.args").write_bytes(b"# \xe8\xec\xff\n-Dfirebird.connector.config=/a/c.yaml\n")
    assert locate_files({}, {}, tmp_path).config == Path("/a/c.yaml")
