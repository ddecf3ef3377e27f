"""The report of an audit: its numbers are those of the findings, and nothing in it can do harm."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from histories import History, column

from firebird_cdc.cli import main
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.audit.histograms import Figures
from firebird_cdc.journal.replay.audit.page import page, shown
from firebird_cdc.journal.replay.source.bounds import Bound

_EVIL = '</script><script>alert("x")</script>\'&\u202e\x00'
_T = (column("ID", Storage.TEXT, key=1), column("N", Storage.INTEGER))


class _Markup(HTMLParser):
    """Collects the elements of a page and what is in them, and checks that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (1234567, "1,234,567"),
        ("<b onclick='x'>&", "&lt;b onclick=&#x27;x&#x27;&gt;&amp;"),
        ("a\u202eb\x00\ud800", "a\\u202eb\\u0000\\ud800"),
        ("x" * 500, "x" * 400 + "\N{HORIZONTAL ELLIPSIS}"),
    ],
    ids=["none", "number", "markup", "control", "long"],
)
def test_shown_values_are_escaped_text(value: object, text: str) -> None:
    assert shown(value) == text
    assert shown(value).encode()


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("7", Bound(7)),
        ("2:7", Bound(7, 2)),
        ("1970-01-01T00:00:01", Bound(None, None, 1_000_000)),
        ("1970-01-01T03:00:00.5+03:00", Bound(None, None, 500_000)),
    ],
)
def test_point_of_the_history_is_a_number_or_a_time(text: str, bound: Bound) -> None:
    assert Bound.parse(text) == bound
    assert Bound.parse(str(bound)) == bound


@pytest.mark.parametrize(
    "arguments", [["--since", "soon"], ["--format", "xml"], ["--kafka-option", "x"]]
)
def test_wrong_usage_is_reported_before_anything_is_read(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", "audit", "--journals", "/nowhere", *arguments])
    assert ended.value.code == 2


def _findings(output: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for part in (output / "findings").glob("part-*")
        for line in part.read_text("utf-8").splitlines()
    ]


def test_report_of_hostile_names_is_whole_harmless_and_right(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = f"/data/{_EVIL}.fdb".replace("\x00", "")
    history = History(tmp_path / "journals", database=database)
    table = _EVIL.replace("\x00", "")
    history.define(table, _T)
    history.commit(("c", table, None, (table, 1)))
    for number in range(1, 5):
        history.commit(("u", table, (table, number), (table, number + 1)))
    history.commit(("gap", _EVIL, None, None), skip_number=True)
    history.commit(("c", table, None, ("other", 1)))
    history.commit(("d", table, ("other", 2), None))
    output = tmp_path / "report"
    command = ["replay", "audit", "--journals", str(history.folder)]
    assert main([*command, "--output", str(output)]) == 1
    assert "not sound: 3 faults" in capsys.readouterr().out

    summary = json.loads((output / "report.json").read_text("utf-8"))
    found = _findings(output)
    kinds = {kind: facts["findings"] for kind, facts in summary["kinds"].items()}
    assert kinds == Counter(row["kind"] for row in found) == {"missing": 1, "gap": 1, "chain": 1}
    assert (summary["sound"], summary["faults"], summary["notes"]) == (False, 3, 0)
    (chain,) = (row for row in found if row["kind"] == "chain")
    assert chain.items() <= next(s for s in summary["shown"] if s["kind"] == "chain").items()
    assert (chain["table"], chain["key"], chain["transaction"], chain["sequence"]) == (
        table, json.dumps({"ID": "other"}, separators=(",", ":")), 1009, 9,
    )  # fmt: skip
    (held,) = summary["ranges"]
    assert (held["first"], held["last"], held["journals"], held["events"]) == (1, 9, 8, 8)
    counts = {(row["table"], row["operation"]): row["changes"] for row in summary["counts"]}
    assert counts == {(table, "c"): 2, (table, "u"): 4, (table, "d"): 1, (None, "gap"): 1}

    assert list(tmp_path.rglob("*.crc")) == []
    text = (output / "report.html").read_text("utf-8")
    markup = _Markup(text)
    assert markup.elements["script"] == markup.elements["img"] == markup.elements["link"] == 0
    assert not [name for name, _ in markup.attributes if name.startswith("on") or name == "src"]
    assert not {name for name, _ in markup.attributes} & {"href", "style"}
    assert "</script><script>alert" in markup.text
    assert "\u202e" not in text
    assert "\x00" not in text
    assert markup.elements["svg"] > 5
    assert markup.elements["details"] >= 5
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text

    # The part before what is wrong is sound, and an empty one is told.
    page_alone = tmp_path / "alone.html"
    assert main([*command, "--until", "5", "--quiet", "--html", str(page_alone)]) == 0
    assert capsys.readouterr().out.startswith("sound: ")
    assert "Nothing: no fault" in page_alone.read_text("utf-8")
    assert list(tmp_path.rglob("*.crc")) == []
    assert main([*command, "--since", "99"]) == 1
    assert "holds no journal since 99" in capsys.readouterr().err
    assert main([*command, "--output", str(output)]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_page_of_an_empty_report_is_valid() -> None:
    summary = {
        "version": 1, "made_by": "firebird-cdc", "began_us": 0, "took_s": 0.0, "folders": [],
        "sound": True, "faults": 0, "notes": 0, "ranges": [], "proven": [], "remarks": [],
        "kinds": {}, "shown": [], "counts": [], "counts_left": 0, "facts": {},
    }  # fmt: skip
    assert _Markup(page(summary, Figures())).elements["main"] == 1


def _summary(what: str) -> dict[str, Any]:
    """Return the data for the page of an audit with one finding."""
    finding = dict.fromkeys(
        ("database", "sequence", "last_sequence", "transaction", "table", "key", "offset")
    )
    return {
        "sound": False,
        "faults": 1,
        "notes": 0,
        "began_us": 0,
        "took_s": 1.0,
        "folders": ["/archive"],
        "made_by": "firebird-cdc",
        "ranges": [],
        "proven": [],
        "remarks": [],
        "kinds": {"chain": {"is_fault": True, "findings": 1, "advice": "look"}},
        "shown": [{**finding, "kind": "chain", "epoch": 0, "what": what}],
        "counts": [],
        "counts_left": 0,
        "facts": {},
    }


def test_long_findings_are_collapsed_and_can_be_opened() -> None:
    what = "a row is not as the change before left it: " + "NAME is <other>; " * 100 + "the end"
    text = page(_summary(what), Figures())
    markup = _Markup(text)
    assert what in markup.text
    _, _, cell = text.partition('data-label="What"><details>')
    summary, _, _ = cell.partition("</summary>")
    assert len(_Markup(f"{summary}</summary>").text) <= 125
    assert "<details>" not in page(_summary("short"), Figures())


def test_charts_have_an_axis_with_its_unit() -> None:
    figures = Figures(times=[(0, 1, 4), (10**7, 1, 0)], sizes=[(8, 1)], events=[(1, 1)])
    text = _Markup(page(_summary("short"), figures)).text
    assert "4 events20" in text  # the top, the middle, and the bottom
    assert text.count("1 journal0") == 2
