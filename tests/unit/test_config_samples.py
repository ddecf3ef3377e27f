"""The sample files load as shipped, bare, and with every option switched on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import firebird_cdc.config
from firebird_cdc.config import load_config
from firebird_cdc.config.logging import LoggingOptions, load_logging
from firebird_cdc.journal.shipper.kafka.client import check_producer

SAMPLES = Path(firebird_cdc.config.__file__).parent / "samples"
CONNECTOR = SAMPLES / "reddatabase.connector.yaml"
LOGGING = SAMPLES / "firebird_cdc_logging.yaml"

# A line that is an option switched off, not prose.
_OPTION = re.compile(r"^#(?=[a-z][\w.]*: )", re.MULTILINE)


def without_comments(path: Path) -> str:
    return "".join(line + "\n" for line in path.read_text().splitlines() if line and line[0] != "#")


def test_connector_sample_loads_as_shipped_and_means_the_same_without_comments(
    tmp_path: Path,
) -> None:
    bare = tmp_path / CONNECTOR.name
    bare.write_text(without_comments(CONNECTOR))
    shipped, stripped = load_config(CONNECTOR), load_config(bare)

    assert shipped.warnings == stripped.warnings == ()
    assert shipped.journal_directory == Path("/var/lib/firebird-cdc/journal")
    assert shipped.journal_archive_directory == Path("/var/lib/firebird-cdc/archive")
    assert shipped.capture_failure_mode == "refuse"
    assert shipped.journal_fsync
    assert shipped.producer == stripped.producer
    check_producer(shipped)


def test_connector_sample_loads_with_every_option_switched_on(tmp_path: Path) -> None:
    text = CONNECTOR.read_text()
    full = tmp_path / CONNECTOR.name
    full.write_text(_OPTION.sub("", text))
    config = load_config(full)

    assert config.transactional
    assert config.table_exclude_list
    assert config.warnings == ()
    check_producer(config)


def test_values_shown_as_defaults_in_the_connector_sample_are_the_defaults(tmp_path: Path) -> None:
    full = tmp_path / CONNECTOR.name
    full.write_text(_OPTION.sub("", CONNECTOR.read_text()))
    shipped, config = load_config(CONNECTOR), load_config(full)
    chosen = {
        "path",
        "reading",
        "producer",
        "producer_origins",
        "transactional",
        "table_exclude_list",
        "column_exclude_list",
        "topic_creation",
        "attachment",
        "canary_tables",
    }
    for name in set(config.__dataclass_fields__) - chosen:
        assert getattr(config, name) == getattr(shipped, name), name


def test_logging_sample_says_the_defaults() -> None:
    assert load_logging(LOGGING) == LoggingOptions()


def test_logging_sample_means_the_same_without_comments(tmp_path: Path) -> None:
    bare = tmp_path / LOGGING.name
    bare.write_text(without_comments(LOGGING))
    assert load_logging(bare) == load_logging(LOGGING)


def sections(path: Path) -> dict[str, dict[str, str]]:
    """Read Firebird's section form: ``head { key = value ... }``; a key may appear once."""
    found: dict[str, dict[str, str]] = {}
    for head, body in re.findall(r"([^{}]+)\{([^{}]*)\}", without_comments(path)):
        values: dict[str, str] = {}
        for line in body.strip().splitlines():
            if line.lstrip().startswith("#") or not line.strip():
                continue
            key, _, value = (part.strip() for part in line.partition("="))
            assert key not in values
            values[key] = value
        assert head.strip() not in found
        found[head.strip()] = values
    return found


def test_plugins_conf_names_the_plugin_its_section_and_the_shipped_files() -> None:
    found = sections(SAMPLES / "plugins.conf")
    plugin = found["Plugin = Debezium_Connector"]
    options = found[f"Config = {plugin['Config']}"]

    assert plugin["Module"] == "$(dir_plugins)/firebird_cdc"
    assert options["ConnectorConfig"] == f"$(this)/{CONNECTOR.name}"
    assert options["LoggingConfig"] == f"$(this)/{LOGGING.name}"
    assert {"JarDirs", "PythonDirs"} <= set(options)


def test_replication_conf_refuses_rather_than_loses() -> None:
    assert sections(SAMPLES / "replication.conf") == {
        "database": {
            "plugin": "Debezium_Connector",
            "report_errors": "true",
            "disable_on_error": "false",
        }
    }


@pytest.mark.parametrize("path", sorted(SAMPLES.iterdir()), ids=lambda p: p.name)
def test_samples_have_no_tabs_and_end_with_a_newline(path: Path) -> None:
    text = path.read_text("ascii")
    assert "\t" not in text
    assert text.endswith("\n")
