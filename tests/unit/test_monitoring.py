"""Statements about the metrics, on the page, in the dashboard, in the alarms: they are true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from firebird_cdc.config.metric_tags import OWN_LABELS
from firebird_cdc.journal.shipper.monitoring.metrics import METRICS

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "config" / "samples"
DASHBOARD = json.loads((SAMPLES / "grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((SAMPLES / "prometheus-alerts.yaml").read_text())
PAGE = (ROOT / "docs" / "monitoring.md").read_text()

SERVER_LABELS = ("server", "connector")


def sample_names(name: str) -> tuple[str, ...]:
    """Return the names of the samples of metric NAME."""
    match METRICS[name].kind:
        case "counter":
            return (f"{name}_total",)
        case "info":
            return (f"{name}_info",)
        case "histogram":
            return (f"{name}_bucket", f"{name}_sum", f"{name}_count")
        case _:
            return (name,)


SAMPLE_NAMES = {sample: name for name in METRICS for sample in sample_names(name)}
FROM_ELSEWHERE = {"process_resident_memory_bytes", "process_cpu_seconds_total", "up"}
TARGET_LABELS = {"instance", "job"}

PROMISED = """
streaming_last_event_info streaming_last_event_age_milliseconds streaming_events_seen_total
streaming_events_filtered_total streaming_captured_table streaming_queue_capacity
streaming_queue_remaining streaming_connected streaming_lag_milliseconds
streaming_transactions_committed_total streaming_position_info streaming_last_transaction_id
streaming_queue_max_bytes streaming_queue_bytes snapshot_last_event_info
snapshot_last_event_age_milliseconds snapshot_events_seen_total snapshot_events_filtered_total
snapshot_captured_table snapshot_queue_capacity snapshot_queue_remaining snapshot_tables
snapshot_tables_remaining snapshot_running snapshot_aborted snapshot_completed
snapshot_duration_seconds snapshot_rows_scanned_total journals_live journals_pending
journal_bytes journal_oldest_pending_seconds journals_shipped_total journals_rolled_back_total
send_failures_total transactions_rolled_back_total callback_seconds_bucket
incremental_chunks_total
"""

_STRING = re.compile(r'"[^"]*"')
_GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-z_]+)\{([^}]*)\}")


def expressions() -> list[str]:
    """All queries of the dashboard and of the alarms."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    found += [
        variable["definition"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    ]
    return found + [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]


def labels_of(sample: str) -> set[str]:
    return {*METRICS[SAMPLE_NAMES[sample]].labels, *SERVER_LABELS, "le"} | TARGET_LABELS


@pytest.mark.parametrize("expression", expressions())
def test_a_query_names_metrics_and_labels_that_are_there(expression: str) -> None:
    bare = _STRING.sub('""', expression)
    names = set(re.findall(r"[a-z][a-z_]+", _GROUPING.sub("", re.sub(r"\{[^}]*\}", "", bare))))
    names = {
        name for name in names if name.startswith(("firebird_cdc", "process_")) or name == "up"
    }
    assert names and names <= SAMPLE_NAMES.keys() | FROM_ELSEWHERE
    ours = names & SAMPLE_NAMES.keys()
    known = set().union(*(labels_of(sample) for sample in ours)) if ours else TARGET_LABELS
    for sample, selector in _SELECTOR.findall(bare):
        used = set(re.findall(r"([a-z_]+)\s*[=!]", selector))
        assert used <= (labels_of(sample) if sample in SAMPLE_NAMES else TARGET_LABELS)
    for grouping in _GROUPING.findall(bare):
        assert {label.strip() for label in grouping.split(",")} <= known
    for open_, close in ("()", "{}", "[]"):
        assert expression.count(open_) == expression.count(close)


def test_a_legend_and_an_annotation_name_labels_that_are_there() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= OWN_LABELS, panel["title"]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket")
            texts = " ".join(rule["annotations"].values())
            assert set(re.findall(r"\$labels\.(\w+)", texts)) <= OWN_LABELS | TARGET_LABELS


def test_the_dashboard_has_no_panel_over_another_and_every_one_its_own_number() -> None:
    panels: list[Any] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_the_page_documents_every_metric_as_it_is() -> None:
    for name, each in METRICS.items():
        shown = name if each.kind == "histogram" else sample_names(name)[0]
        labels = ", ".join(f"`{label}`" for label in each.labels) or "-"
        assert f"| `{shown}` | {each.kind} | {labels} | {each.meaning} |" in PAGE
    mentioned = set(re.findall(r"\bfirebird_cdc_\w+", PAGE))
    assert mentioned <= SAMPLE_NAMES.keys() | METRICS.keys()


def test_metric_names_include_the_promised_ones() -> None:
    assert {f"firebird_cdc_{name}" for name in PROMISED.split()} <= SAMPLE_NAMES.keys()


def test_connector_labels_are_reserved_in_the_check_of_tags() -> None:
    ours = {*SERVER_LABELS, "le"}.union(*(each.labels for each in METRICS.values()))
    assert ours <= OWN_LABELS
