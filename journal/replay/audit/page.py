"""The page of an audit: one file that needs no network, no script, and nothing of the reader's.

Names of tables, keys and files come from a database, so all that is shown goes through `shown`;
no text reaches the markup in another way. Charts are SVG without text, so that they may be
stretched to any width; labels stand around them, and each chart has its figures as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from firebird_cdc.journal.replay.audit.findings import OPERATIONS
from firebird_cdc.journal.replay.audit.histograms import Figures, Strip
from firebird_cdc.journal.replay.audit.page_style import STYLE

_LONGEST = 400  # characters of one text; report.json and findings/ have all of it
_OPENED = 10_000  # of one that can be opened
_AT_FIRST = 120  # of that, before it is
_TABLES = 15
_FACTS = 60

_CLASSES = {"c": "c", "u": "u", "d": "d", "ddl": "o", "gap": "hole"}


def shown(value: object, longest: int = _LONGEST) -> str:
    """Return the text of VALUE for markup: nothing in it is markup, hides or turns around what
    stands beside it."""
    if value is None:
        return "\N{EN DASH}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if len(text) > longest:
        text = f"{text[:longest]}\N{HORIZONTAL ELLIPSIS}"
    plain = (c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return escape("".join(plain))


def page(summary: dict[str, Any], figures: Figures) -> str:
    """Return the page of an audit; SUMMARY as `report.summarise` makes it."""
    result = "Sound" if summary["sound"] else f"Not sound: {_many(summary['faults'], 'fault')}"
    style = "sound" if summary["sound"] else "unsound"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        " style-src 'unsafe-inline'\">\n"
        f"<title>Audit: {shown(result)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        "<header><h1>firebird-cdc <span>audit</span></h1>"
        f'<p class="result {style}">{shown(result)}</p>'
        f'<p class="soft">{_time(summary["began_us"])}, took {shown(_seconds(summary["took_s"]))};'
        f" {shown(', '.join(summary['folders']))}</p></header>\n<main>\n",
        *_tiles(summary),
        *_found(summary),
        *_charts(summary, figures),
        *_ranges(summary),
        *_counts(summary),
        *_facts(summary),
        f"</main>\n<footer><p>Made by {shown(summary['made_by'])}. report.json beside this page has"
        " the same for programs, findings/ has all findings. Times are UTC.</p></footer>\n"
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _time(us: int | None) -> str:
    if us is None:
        return shown(None)
    when = datetime.fromtimestamp(us // 1_000_000, UTC)
    return f'<time datetime="{when:%Y-%m-%dT%H:%M:%SZ}">{when:%Y-%m-%d %H:%M:%S}</time>'


def _section(name: str, title: str) -> str:
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n'


def _table(
    label: str,
    heads: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[str]],
) -> str:
    """Return a table; HEADS: title and class of each column; ROWS: cells as markup."""
    head = "".join(f'<th scope="col" class="{kind}">{title}</th>' for title, kind in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-label="{title}">{cell}</td>'
            for cell, (title, kind) in zip(row, heads, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{shown(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def _details(label: str, heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    return f"<details><summary>As a table</summary>{_table(label, heads, rows)}</details>"


def _tiles(summary: dict[str, Any]) -> Iterator[str]:
    ranges = summary["ranges"]
    tables = {
        (line["database"], line["table"])
        for line in summary["counts"]
        if line["table"] is not None and line["operation"] in "cud"
    }
    more = "+" if summary["counts_left"] else ""
    tiles = (
        ("Faults", shown(summary["faults"])),
        ("Notes", shown(summary["notes"])),
        ("Databases", shown(len({each["database"] for each in ranges}))),
        ("Journals", shown(sum(each["journals"] for each in ranges))),
        ("Events", shown(sum(each["events"] or 0 for each in ranges))),
        ("Tables", shown(len(tables)) + more),
    )
    yield '<dl class="tiles">'
    for name, value in tiles:
        yield f"<div><dt>{name}</dt><dd>{value}</dd></div>"
    yield "</dl>\n"


def _found(summary: dict[str, Any]) -> Iterator[str]:
    yield _section("found", "What was found")
    kinds = summary["kinds"]
    if not kinds:
        yield "<p>Nothing: no fault, and nothing to note.</p>\n</section>\n"
        return
    ordered = sorted(kinds.items(), key=lambda item: not item[1]["is_fault"])
    yield '<ul class="kinds">'
    for kind, facts in ordered:
        word = "fault" if facts["is_fault"] else "note"
        yield (
            f'<li class="kind {word}"><b>{shown(kind)}</b>: {_many(facts["findings"], word)}.'
            f' <span class="soft">{shown(facts["advice"])}.</span></li>'
        )
    yield "</ul>\n"
    places = {kind: place for place, (kind, _) in enumerate(ordered)}
    rows = []
    for each in sorted(summary["shown"], key=lambda finding: places[finding["kind"]]):
        word = "fault" if kinds[each["kind"]]["is_fault"] else "note"
        mark = "\N{HEAVY MULTIPLICATION X}" if word == "fault" else "\N{BLACK UP-POINTING TRIANGLE}"
        rows.append(
            (
                f'<span class="{word}">{mark} {shown(each["kind"])}</span>',
                shown(each["database"]),
                _place(each),
                shown(each["transaction"]),
                shown(each["table"]),
                shown(each["key"]),
                _opening(each["what"]),
            )
        )
    heads = (
        ("Kind", "text"),
        ("Database", "text"),
        ("Sequence", ""),
        ("Transaction", ""),
        ("Table", "text"),
        ("Key", "text"),
        ("What", "text wide"),
    )
    yield "<h3>The first findings of each kind</h3>\n"
    yield _table("Findings", heads, rows)
    yield "</section>\n"


def _opening(text: str) -> str:
    """Return a text that shows its beginning, and all of it once the reader opens it."""
    if len(text) <= _AT_FIRST:
        return shown(text)
    return (
        f'<details><summary><span class="start">{shown(text, _AT_FIRST)}</span></summary>'
        f"{shown(text, _OPENED)}</details>"
    )


def _place(finding: dict[str, Any]) -> str:
    if finding["sequence"] is None:
        offset = finding["offset"]
        return shown(None) if offset is None else f"offset {shown(offset)}"
    last = finding["last_sequence"]
    text = shown(finding["sequence"])
    if last is not None and last != finding["sequence"]:
        text += f" to {shown(last)}"
    return f"{shown(finding['epoch'])}:{text}" if finding["epoch"] else text


def _charts(summary: dict[str, Any], figures: Figures) -> Iterator[str]:
    yield _section("charts", "The history in pictures")
    yield '<div class="charts">\n'
    if figures.strips:
        yield from _sequence(summary, figures.strips)
    yield from _per_table(summary)
    if figures.times:
        yield from _over_time(figures.times)
    yield from _by_power("Sizes of journals", "Journals of this size", figures.sizes, _bytes)
    yield from _by_power(
        "Events in a journal", "Journals with so many events", figures.events, _range_of_events
    )
    yield "</div>\n</section>\n"


def _sequence(summary: dict[str, Any], strips: Sequence[Strip]) -> Iterator[str]:
    yield (
        '<figure class="all"><figcaption>Journals along the sequence of their numbers</figcaption>'
        '<ul class="legend">'
        f"<li>{_swatch('fill')}journals, as high as the share of numbers that have one</li>"
        f"<li>{_swatch('hole')}numbers without a journal</li>"
        f"<li>{_swatch('fault-mark')}faults</li><li>{_swatch('note-mark')}notes</li></ul>"
    )
    for strip in strips:
        yield _strip(summary, strip)
    left = len(summary["ranges"]) - len(strips)
    if left > 0:
        yield f'<p class="soft">{_many(left, "more range")}: the table of ranges has them.</p>'
    rows = []
    for strip in strips:
        for index, held in enumerate(strip.held):
            first, last = _part(strip, index)
            if first > last:
                continue
            found = sum(bars[index] for bars in strip.found.values())
            rows.append(
                (
                    shown(strip.database),
                    shown(strip.epoch),
                    f"{shown(first)} to {shown(last)}",
                    shown(held),
                    shown(max(last - first + 1 - held, 0)),
                    shown(found),
                )
            )
    heads = (
        ("Database", "text"),
        ("Epoch", ""),
        ("Numbers", ""),
        ("Journals", ""),
        ("Without", ""),
        ("Findings", ""),
    )
    yield _details("Journals along the sequence", heads, rows)
    yield "</figure>\n"


def _part(strip: Strip, index: int) -> tuple[int, int]:
    """First and last number of a part of STRIP; the first is the larger one behind its end."""
    first = strip.first + index * strip.width
    return first, min(first + strip.width - 1, strip.last)


def _strip(summary: dict[str, Any], strip: Strip) -> str:
    bars = [index for index in range(len(strip.held)) if _part(strip, index)[0] <= strip.last]
    cells = []
    for place, index in enumerate(bars):
        first, last = _part(strip, index)
        numbers = last - first + 1
        share = min(strip.held[index] / numbers, 1.0)
        title = f"{first:,} to {last:,}: {strip.held[index]:,} of {numbers:,}"
        cells.append(
            f"<g><title>{escape(title)}</title>"
            f'<rect class="{"empty" if share == 1 else "hole"}" x="{place}" y="0" width="1"'
            ' height="100"/>'
            f'<rect class="fill" x="{place}" y="{100 - 100 * share:.1f}" width="1.02"'
            f' height="{100 * share:.1f}"/></g>'
        )
    held, numbers = sum(strip.held), strip.last - strip.first + 1
    label = f"{held} journals for {numbers} numbers"
    ends = f"<span>{shown(strip.first)}</span><span>{shown(strip.last)}</span>"
    parts = [
        f'<div class="sequence"><h3>{shown(strip.database)}, epoch {shown(strip.epoch)}</h3>',
        _svg("strip", len(bars), label, "".join(cells)),
        f'<div class="span">{ends}</div>',
    ]
    if strip.found:
        parts.append('<div class="rows">')
        for kind, counts in sorted(strip.found.items()):
            style = "fault-mark" if summary["kinds"][kind]["is_fault"] else "note-mark"
            marks = "".join(
                f'<rect class="{style}" x="{place}" y="0" width="1" height="100"><title>'
                f"{counts[index]:,}</title></rect>"
                for place, index in enumerate(bars)
                if counts[index]
            )
            total = sum(counts)
            svg = _svg("marks", len(bars), f"{kind}: {total}", marks)
            parts.append(f"<span>{shown(kind)}</span>{svg}<span>{shown(total)}</span>")
        parts.append("</div>")
    parts.append("</div>")
    return "".join(parts)


def _svg(kind: str, width: int, label: str, content: str) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {max(width, 1)} 100" preserveAspectRatio="none"'
        f' role="img" aria-label="{shown(label)}">{content}</svg>'
    )


def _swatch(kind: str) -> str:
    return (
        f'<svg viewBox="0 0 1 1" aria-hidden="true"><rect class="{kind}" width="1" height="1"/>'
        "</svg>"
    )


def _per_table(summary: dict[str, Any]) -> Iterator[str]:
    tables: dict[tuple[str, str | None], dict[str, int]] = {}
    for line in summary["counts"]:
        counted = tables.setdefault((line["database"], line["table"]), {})
        counted[line["operation"]] = line["changes"]
    if not tables:
        return
    is_one = len({database for database, _ in tables}) == 1
    ordered = sorted(tables.items(), key=lambda item: -sum(item[1].values()))
    most = sum(ordered[0][1].values())
    yield "<figure><figcaption>Events per table and operation</figcaption>"
    used = [op for op in OPERATIONS if any(op in counted for counted in tables.values())]
    items = "".join(f"<li>{_swatch(_CLASSES[op])}{OPERATIONS[op]}</li>" for op in used)
    yield f'<ul class="legend">{items}</ul><div class="rows">'
    for (database, table), counted in ordered[:_TABLES]:
        name = _name(database, table, is_one)
        total = sum(counted.values())
        at, bars = 0.0, []
        for op in used:
            width = 1000 * counted.get(op, 0) / most
            if width:
                bars.append(
                    f'<rect class="{_CLASSES[op]}" x="{at:.2f}" y="0" width="{max(width, 2):.2f}"'
                    f' height="100"><title>{counted[op]:,} {OPERATIONS[op]}</title></rect>'
                )
                at += width
        label = ", ".join(f"{counted[op]:,} {OPERATIONS[op]}" for op in used if op in counted)
        yield f"<span>{name}</span>{_svg('row', 1000, label, ''.join(bars))}"
        yield f"<span>{shown(total)}</span>"
    yield "</div>"
    left = len(ordered) - _TABLES
    if left > 0:
        yield f'<p class="soft">and {_many(left, "more table")}, see the counts below</p>'
    rows = [
        (_name(database, table, is_one), *(shown(counted.get(op, 0)) for op in used))
        for (database, table), counted in ordered[:_TABLES]
    ]
    heads = [("Table", "text"), *((OPERATIONS[op].capitalize(), "") for op in used)]
    yield _details("Events per table and operation", heads, rows)
    yield "</figure>\n"


def _name(database: str | None, table: str | None, is_one: bool) -> str:
    name = shown(table) if table is not None else "(no table)"
    return name if is_one else f"{shown(database)}: {name}"


def _over_time(times: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    most = max(events for _, _, events in times) or 1
    bars = "".join(
        _bar(place, events / most, f"{_clock(start)}: {events:,} events, {journals:,} journals")
        for place, (start, journals, events) in enumerate(times)
    )
    width_s = (times[1][0] - times[0][0]) / 1_000_000 if len(times) > 1 else 0.0
    yield "<figure><figcaption>Events over time</figcaption>"
    label = f"at most {_many(most, 'event')} in one bar"
    yield _plot(most, "event", _svg("bars", len(times), label, _lines(len(times)) + bars))
    yield (
        f'<div class="span"><span>{_clock(times[0][0])}</span><span>{_clock(times[-1][0])}</span>'
        f'</div><p class="soft">highest bar: {_many(most, "event")};'
        f" a bar is {shown(_seconds(width_s))} of commits</p>"
    )
    rows = [
        (_clock(start), shown(journals), shown(events))
        for start, journals, events in times
        if journals
    ]
    heads = (("From", "text"), ("Journals", ""), ("Events", ""))
    yield _details("Events over time", heads, rows)
    yield "</figure>\n"


def _bar(place: int, share: float, title: str) -> str:
    """A bar of a histogram; SHARE: of the highest one."""
    height = 100 * share
    return (
        f"<g><title>{escape(title)}</title>"
        f'<rect class="fill" x="{place + 0.05:.2f}" y="{100 - height:.1f}" width="0.9"'
        f' height="{height:.1f}"/></g>'
    )


def _plot(most: int, what: str, svg: str) -> str:
    """Return a chart with its axis beside it: from 0 to MOST of WHAT, and the middle, if whole."""
    middle = f"<span>{shown(most // 2)}</span>" if most % 2 == 0 else ""
    return (
        f'<div class="plot"><div class="axis" aria-hidden="true"><span>{_many(most, what)}</span>'
        f"{middle}<span>0</span></div>{svg}</div>"
    )


def _clock(us: int) -> str:
    return f"{datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"


def _lines(width: int) -> str:
    return f'<path class="grid" d="M0 0.5H{width}M0 50H{width}M0 99.5H{width}"/>'


def _by_power(
    title: str, what: str, counted: Sequence[tuple[int, int]], name: Callable[[int], str]
) -> Iterator[str]:
    """A histogram over powers of two."""
    if not counted:
        return
    numbers = dict(counted)
    powers = range(min(numbers), max(numbers) + 1)
    most = max(numbers.values())
    bars = "".join(
        _bar(place, numbers.get(power, 0) / most, f"{name(power)}: {numbers.get(power, 0):,}")
        for place, power in enumerate(powers)
    )
    label = f"{what}: {_many(sum(numbers.values()), 'journal')}"
    first, last = name(powers[0]), name(powers[-1])
    yield f"<figure><figcaption>{title}</figcaption>"
    yield _plot(most, "journal", _svg("bars", len(powers), label, _lines(len(powers)) + bars))
    ends = f"<span>{shown(first)}</span>"
    if len(powers) > 1:
        ends += f"<span>{shown(last)}</span>"
    yield f'<div class="span">{ends}</div><p class="soft">highest bar: {_many(most, "journal")}</p>'
    rows = [(shown(name(power)), shown(numbers.get(power, 0))) for power in powers]
    yield _details(title, ((title, "text"), ("Journals", "")), rows)
    yield "</figure>\n"


def _bytes(power: int) -> str:
    """Return the range of sizes that have POWER binary digits, as ``4 to 8 KiB``."""
    if power < 1:
        return "0 B"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min((power - 1) // 10, len(units) - 1)
    low = 1 << (power - 1 - 10 * step)
    return f"{low:,} to {2 * low:,} {units[step]}"


def _range_of_events(power: int) -> str:
    """Return the range of numbers of events that have POWER binary digits, as ``4 to 7``."""
    if power < 2:
        return "1 or none"
    return f"{1 << (power - 1):,} to {(1 << power) - 1:,}"


def _ranges(summary: dict[str, Any]) -> Iterator[str]:
    yield _section("proven", "What was proven")
    heads = (
        ("Database", "text"),
        ("Epoch", ""),
        ("First", ""),
        ("Last", ""),
        ("Journals", ""),
        ("Events", ""),
        ("First commit", ""),
        ("Last commit", ""),
    )
    rows = (
        (
            shown(each["database"]),
            shown(each["epoch"]),
            shown(each["first"]),
            shown(each["last"]),
            shown(each["journals"]),
            shown(each["events"]),
            _time(each["first_commit_us"]),
            _time(each["last_commit_us"]),
        )
        for each in summary["ranges"]
    )
    yield _table("Ranges", heads, rows)
    for title, sentences in (("Proven", summary["proven"]), ("Remarks", summary["remarks"])):
        if sentences:
            items = "".join(f"<li>{shown(sentence, 2000)}</li>" for sentence in sentences)
            yield f'<h2>{title}</h2>\n<ul class="list">{items}</ul>\n'
    yield "</section>\n"


def _counts(summary: dict[str, Any]) -> Iterator[str]:
    if not summary["counts"]:
        return
    yield _section("counts", "Changes per table")
    heads = (("Database", "text"), ("Table", "text"), ("Operation", "text"), ("Changes", ""))
    rows = [
        (
            shown(line["database"]),
            shown(line["table"]),
            OPERATIONS[line["operation"]],
            shown(line["changes"]),
        )
        for line in summary["counts"]
    ]
    left = summary["counts_left"]
    more = f'<p class="soft">{_many(left, "more line")} in counts/</p>' if left else ""
    yield (
        f"<details><summary>{_many(len(rows), 'line')}</summary>"
        f"{_table('Changes per table', heads, rows)}{more}</details>\n</section>\n"
    )


def _facts(summary: dict[str, Any]) -> Iterator[str]:
    if not summary["facts"]:
        return
    yield _section("facts", "Configuration and comparisons")
    for name, facts in summary["facts"].items():
        lines = list(_flat(facts)) if isinstance(facts, dict) else [("", facts)]
        rows = [(shown(key), shown(value)) for key, value in lines[:_FACTS]]
        left = len(lines) - _FACTS
        more = f'<p class="soft">{_many(left, "more line")} in report.json</p>' if left > 0 else ""
        heads = (("Name", "text"), ("Value", "text wide"))
        table = _table(name, heads, rows)
        yield f"<details><summary>{shown(name)}</summary>{table}{more}</details>\n"
    yield "</section>\n"


def _flat(facts: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name} ")
        elif isinstance(value, list):
            yield f"{before}{name}", ", ".join(map(str, value)) or None
        else:
            yield f"{before}{name}", value
