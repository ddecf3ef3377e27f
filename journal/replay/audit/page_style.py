"""Style of the page of an audit; the colours are those of the shipper's live page."""

STYLE = """\
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --paper: #fff; --ink: #16202a; --soft: #52606d; --line: #cbd2d9;
  --accent: #1f5f8b; --well: #17663a; --warn: #8a4b00; --bad: #a61b1b;
  --insert: #1f5f8b; --update: #b4690e; --delete: #8e3b8e; --other: #52606d; --empty: #e4e8ec;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12181f; --paper: #1b242d; --ink: #e8edf2; --soft: #a9b6c3; --line: #3a4754;
    --accent: #7cc1ee; --well: #7fd6a2; --warn: #f5bf6b; --bad: #ff9b94;
    --insert: #5aa9dc; --update: #e0a24a; --delete: #d08ad0; --other: #a9b6c3; --empty: #2a3540;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0; }
h1 span { color: var(--soft); font-weight: 400; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
h3 { font-size: .95rem; margin: .9rem 0 .3rem; overflow-wrap: anywhere; }
figure h3 { margin-top: 0; }
header { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; align-items: baseline; }
header p, p { margin: .2rem 0; }
.soft, footer { color: var(--soft); overflow-wrap: anywhere; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.result { font-weight: 700; }
.sound { color: var(--well); } .sound::before { content: "\\2713\\00a0"; }
.unsound { color: var(--bad); } .unsound::before { content: "\\2716\\00a0"; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .6rem;
  margin: .8rem 0 0; }
.tiles div, figure, .scroll, .kind, .list { background: var(--paper); border: 1px solid var(--line);
  border-radius: .4rem; }
.tiles div { padding: .5rem .7rem; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.kinds, .list { list-style: none; margin: 0; padding: 0; display: grid; gap: .5rem; }
.kind { padding: .5rem .7rem; border-left: .4rem solid var(--warn); overflow-wrap: anywhere; }
.kind.fault { border-left-color: var(--bad); }
.kind b::before { content: "\\25B2\\00a0"; color: var(--warn); }
.kind.fault b::before { content: "\\2716\\00a0"; color: var(--bad); }
.list { padding: .5rem .7rem; gap: .3rem; overflow-wrap: anywhere; }
.charts { display: grid; gap: .6rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; padding: .6rem .7rem; min-width: 0; }
figure.all { grid-column: 1 / -1; }
figcaption { font-weight: 600; font-size: .95rem; }
svg { display: block; width: 100%; }
.plot { display: flex; gap: .4rem; margin-top: .4rem; }
.axis { display: flex; flex-direction: column; justify-content: space-between; flex: 0 0 auto;
  min-width: 2.5rem; text-align: right; font-size: .8rem; line-height: 1; color: var(--soft);
  font-variant-numeric: tabular-nums; }
svg.bars { height: 9rem; flex: 1 1 0; min-width: 0; }
svg.strip { height: 1.6rem; } svg.marks { height: .8rem; } svg.row { height: 1.1rem; }
.fill { fill: var(--accent); } .empty { fill: var(--empty); } .hole { fill: var(--bad); }
.c { fill: var(--insert); } .u { fill: var(--update); } .d { fill: var(--delete); }
.o { fill: var(--other); } .fault-mark { fill: var(--bad); } .note-mark { fill: var(--warn); }
.grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.span { display: flex; justify-content: space-between; gap: 1rem; font-size: .8rem;
  color: var(--soft); font-variant-numeric: tabular-nums; }
.sequence { margin: .5rem 0 .9rem; }
.rows { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr max-content;
  gap: .25rem .7rem; align-items: center; margin-top: .4rem; font-size: .9rem; }
.rows > :nth-child(3n+1) { max-width: 14rem; overflow-wrap: anywhere; }
.rows > :nth-child(3n) { text-align: right; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--soft);
  margin: .4rem 0 0; padding: 0; list-style: none; }
.legend svg { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem;
  vertical-align: -.05rem; }
details { margin-top: .5rem; font-size: .9rem; }
summary { color: var(--soft); cursor: pointer; }
td details { margin: 0; font-size: inherit; white-space: normal; min-width: 0; }
td summary { color: inherit; }
td details[open] .start { display: none; }
.scroll { overflow-x: auto; }
figure .scroll { border: 0; max-height: 20rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
th { color: var(--soft); font-size: .85rem; font-weight: 600; }
.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
.wide { min-width: 18rem; }
tbody tr:last-child > * { border-bottom: 0; }
td .fault, td .note { color: var(--bad); font-weight: 600; white-space: nowrap; }
td .note { color: var(--warn); }
footer { margin-top: 1.6rem; font-size: .9rem; }
@media (max-width: 40rem) {
  .scroll table, .scroll tbody, .scroll tr { display: block; }
  .scroll thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .scroll tr { padding: .4rem .7rem; border-bottom: 1px solid var(--line); }
  .scroll tr:last-child { border-bottom: 0; }
  .scroll tr > * { display: flex; justify-content: space-between; gap: 1rem; padding: .1rem 0;
    border-bottom: 0; min-width: 0; text-align: right; white-space: normal;
    overflow-wrap: anywhere; }
  .scroll tr > *::before { content: attr(data-label); flex: 0 0 auto; color: var(--soft);
    font-size: .85rem; }
}
@media print { body { max-width: none; } details > * { display: block; } }
"""
