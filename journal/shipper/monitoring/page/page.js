// Asks the shipper every two seconds what it is doing, and shows it. Everything that comes from it
// is put into the page as text, never as markup.
"use strict";

const PERIOD_MS = 2000;
const PATIENCE_MS = 5000;
const KEPT = 450;
const SHOWN_TABLES = 300;
const STATES = {
  well: "All is well",
  waiting: "Degraded, retrying automatically",
  warning: "Works, with warnings",
  halted: "Action required",
  gone: "No answer",
};
const KINDS = { behind: "Behind", waiting: "Retrying", warning: "Warning", halted: "Paused" };

const byId = (id) => document.getElementById(id);
const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
let samples = [];
let latest = null;
let answeredAt = Date.now();
let timer = 0;

function put(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${numbers.format(bytes)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.01) return `${number(seconds * 1000)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${numbers.format(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function time(us) {
  return us ? new Date(us / 1000).toLocaleString() : "never";
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function row(cells) {
  const made = document.createElement("tr");
  made.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
  return made;
}

// Each cell gets the name of its column: on a narrow page rows are blocks, without a head above.
function fill(id, rows, none) {
  const body = byId(id);
  const names = [...body.parentElement.querySelectorAll("thead th")].map((head) => head.textContent);
  for (const made of rows) {
    [...made.children].forEach((cell, place) => cell.setAttribute("data-label", names[place]));
  }
  const nothing = element("td", none, { class: "text none", colspan: names.length });
  body.replaceChildren(...(rows.length ? rows : [row([nothing])]));
}

function worst(report) {
  const kinds = report.troubles.map((trouble) => trouble.kind);
  if (!report.alive || kinds.includes("halted")) return "halted";
  if (kinds.includes("warning") || report.backlog.quarantined) return "warning";
  if (kinds.includes("waiting") || !report.kafka.reached) return "waiting";
  if (report.databases.some((database) => database.state === "behind")) return "waiting";
  return "well";
}

// Rates are worked out of totals, so a sample that was missed makes none wrong.
function series() {
  const points = { pending: [], rate: [], delay: [] };
  samples.forEach((sample, index) => {
    const before = samples[index - 1];
    const seconds = before ? (sample.time_ms - before.time_ms) / 1000 : 0;
    const events = before ? Math.max(sample.events - before.events, 0) : 0;
    const rate = seconds > 0 ? events / seconds : 0;
    points.pending.push([sample.time_ms, sample.pending]);
    points.rate.push([sample.time_ms, rate]);
    const latency = events ? sample.latency_ms : 0;
    points.delay.push([sample.time_ms, Math.max(latency, sample.oldest_ms) / 1000]);
  });
  return points;
}

// Three digits that count: a rate of 0.04 is not "0".
function number(value) {
  if (value === 0 || value >= 100) return Math.round(value).toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

// WRITE makes text with its unit of a value; the axis has that of the top, of the middle, and of 0.
function draw(id, points, write) {
  const figure = byId(id);
  const svgSpace = "http://www.w3.org/2000/svg";
  let svg = figure.querySelector("svg");
  if (!svg) {
    svg = document.createElementNS(svgSpace, "svg");
    svg.setAttribute("viewBox", "0 0 600 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    for (const [kind, path] of [["grid", "M0 0.5H600M0 50H600M0 99.5H600"], ["area", ""], ["line", ""]]) {
      const made = document.createElementNS(svgSpace, "path");
      made.setAttribute("class", kind);
      made.setAttribute("d", path);
      svg.append(made);
    }
    const plot = element("div", "", { class: "plot" });
    const axis = element("div", "", { class: "axis", "aria-hidden": "true" });
    axis.append(element("span", ""), element("span", ""), element("span", ""));
    plot.append(axis, svg);
    const span = element("div", "", { class: "span" });
    span.append(element("span", ""), element("span", "now"));
    figure.append(plot, span);
  }
  if (!points.length) return;
  const values = points.map(([, value]) => value);
  const top = Math.max(...values, 0) || 1;
  const first = points[0][0];
  const last = points[points.length - 1][0];
  const width = Math.max(last - first, 1);
  const place = ([at, value]) =>
    `${(((at - first) / width) * 600).toFixed(1)} ${(99 - (value / top) * 97).toFixed(1)}`;
  const line = points.map(place).join("L");
  svg.querySelector(".line").setAttribute("d", `M${line}`);
  svg.querySelector(".area").setAttribute("d", `M0 99L${line}L600 99Z`);
  const current = write(values[values.length - 1]);
  const most = write(Math.max(...values));
  [top, top / 2, 0].forEach((value, place) => {
    figure.querySelectorAll(".axis span")[place].textContent = write(value);
  });
  const title = figure.querySelector("figcaption").firstChild.textContent.trim();
  figure.querySelector("output").textContent = `${current}, at most ${most}`;
  svg.setAttribute("aria-label", `${title}: now ${current}, at most ${most} in ${duration(width / 1000)}`);
  figure.querySelector(".span span").textContent = `${duration(width / 1000)} ago`;
}

function drawAll() {
  const points = series();
  draw("chart-pending", points.pending, number);
  draw("chart-rate", points.rate, (value) => `${number(value)}/s`);
  draw("chart-delay", points.delay, duration);
  const rates = points.rate.slice(-3).map(([, rate]) => rate);
  const mean = rates.reduce((sum, rate) => sum + rate, 0) / (rates.length || 1);
  put("rate", numbers.format(mean));
}

// What is in the report beside its troubles and needs a word all the same.
function furtherTroubles(report) {
  const told = new Set(report.troubles.map((trouble) => trouble.text));
  const found = report.unready
    .filter((reason) => !told.has(reason))
    .map((text) => ({ kind: report.alive ? "waiting" : "halted", text }));
  const quarantined = report.backlog.quarantined;
  if (quarantined) {
    const text = `${numbers.format(quarantined)} in the quarantine; firebird-cdc status tells which and why`;
    found.push({ kind: "warning", text });
  }
  return found;
}

function showTroubles(report) {
  const list = [...report.troubles, ...furtherTroubles(report)].map((trouble) => {
    const item = element("li", "", { class: `trouble ${trouble.kind}` });
    item.append(
      element("span", KINDS[trouble.kind] || trouble.kind, { class: "mark", "data-state": trouble.kind }),
      `${trouble.since_us ? ` since ${time(trouble.since_us)}` : ""}: ${trouble.text}`,
    );
    return item;
  });
  if (!list.length) list.push(element("li", "None.", {}));
  byId("troubles").replaceChildren(...list);
  const error = report.last_error;
  put("last-error", error ? `Last error, ${time(error.since_us)}: ${error.text}` : "");
}

function showDatabases(report) {
  const names = { well: "Well", ...KINDS };
  fill("databases", report.databases.map((database) => {
    const state = element("td", "", { class: "text" });
    state.append(element("span", names[database.state], { class: "mark", "data-state": database.state }));
    if (database.placeholders) {
      state.append(element("small", ` ${numbers.format(database.placeholders)} with placeholders`));
    }
    return row([
      element("th", database.path || "unknown", { scope: "row" }),
      state,
      numbers.format(database.pending),
      duration(database.lag_s),
      database.last_event ? duration(database.latency_ms / 1000) : "–",
      numbers.format(database.transactions),
      element(
        "td",
        database.last_event ? `${database.last_event.table || "DDL"}, ${time(database.handled_us)}` : "–",
        { class: "text wide" },
      ),
    ]);
  }), "Nothing of a database was seen yet.");
}

// Snapshots that have not ended: state as it is called, and the colour that goes with it.
const SNAPSHOTS = {
  waiting: ["Waiting", "waiting"], owed: ["Owed", "waiting"], running: ["Running", "well"],
  paused: ["Paused", "warning"],
};

function showSnapshots(report) {
  const found = report.databases.filter((each) => each.snapshot && SNAPSHOTS[each.snapshot.status]);
  byId("snapshot-section").hidden = !found.length;
  fill("snapshots", found.map(({ path, snapshot }) => {
    const [word, kind] = SNAPSHOTS[snapshot.status];
    const state = element("td", "", { class: "text" });
    state.append(element("span", word, { class: "mark", "data-state": snapshot.waits_for ? "waiting" : kind }));
    if (snapshot.left_out) state.append(element("small", ` ${numbers.format(snapshot.left_out)} rows left out`));
    if (snapshot.behind) state.append(element("small", ` ${numbers.format(snapshot.behind)} more behind it`));
    const since = snapshot.waits_since_us
      ? `for ${duration((report.written_us - snapshot.waits_since_us) / 1e6)}: ` : "";
    return row([
      element("th", path, { scope: "row" }),
      element("td", snapshot.kind, { class: "text" }),
      state,
      `${numbers.format(snapshot.tables - snapshot.open_tables)} of ${numbers.format(snapshot.tables)}`,
      numbers.format(snapshot.rows),
      numbers.format(snapshot.rows_per_s),
      duration(snapshot.remaining_s),
      element("td", snapshot.waits_for ? since + snapshot.waits_for : "–", { class: "text wide" }),
    ]);
  }), "None.");
}

function showCanaries(report) {
  byId("canary-section").hidden = !report.canaries.length;
  fill("canaries", report.canaries.map((canary) => {
    const kind = canary.missing ? "halted" : canary.unwritable ? "warning" : "well";
    const word = { halted: "Missing", warning: "Not written", well: "Well" }[kind];
    const state = element("td", "", { class: "text" });
    state.append(element("span", word, { class: "mark", "data-state": kind }));
    return row([
      element("th", canary.table, { scope: "row" }),
      state,
      canary.seen_us ? `${duration(canary.age_s)} ago` : "never",
      canary.seen_us ? duration(canary.latency_ms / 1000) : "–",
    ]);
  }), "None.");
}

function showTables(report) {
  const wanted = byId("find").value.toLowerCase();
  const all = report.databases.flatMap((database) =>
    database.tables.map((table) => ({ ...table, database: database.path })));
  const found = all
    .filter((table) => `${table.table} ${table.database}`.toLowerCase().includes(wanted))
    .map((table) => ({ ...table, all: table.c + table.u + table.d + table.ddl }))
    .sort((one, other) => other.all - one.all);
  const left = found.length - SHOWN_TABLES
    + report.databases.reduce((sum, database) => sum + database.tables_left_out, 0);
  put("left-out", left > 0 ? `${numbers.format(left)} more are not shown` : "");
  fill("tables", found.slice(0, SHOWN_TABLES).map((table) => row([
    element("th", table.table || "(DDL)", { scope: "row" }),
    element("td", table.database, { class: "text" }),
    numbers.format(table.c), numbers.format(table.u), numbers.format(table.d), numbers.format(table.all),
  ])), wanted ? "No table whose name contains this." : "No event of a table was shipped yet.");
}

function show(report) {
  const state = worst(report);
  byId("state").dataset.state = state;
  put("state", STATES[state]);
  document.title = `${STATES[state]} – ${report.connector}`;
  put("connector", report.connector);
  put("where", `${report.directory} → ${report.kafka.servers}, topics ${report.server}.*`);
  put("pending", numbers.format(report.backlog.pending));
  put("lag", duration(report.backlog.pending ? report.backlog.oldest_s : 0));
  const took = report.databases.filter((database) => database.last_event).map((database) => database.latency_ms);
  put("took", took.length ? duration(Math.max(...took) / 1000) : "–");
  put("kafka", report.kafka.reached ? "reached" : "not reached");
  put("events", numbers.format(report.totals.events));
  put("journals", numbers.format(report.totals.journals));
  put("bytes", size(report.totals.bytes));
  put("size", size(report.backlog.bytes));
  put("free", size(report.backlog.free_bytes));
  put("queue", `${numbers.format(report.queue.messages)} of ${numbers.format(report.queue.max_messages)}`);
  put("live", numbers.format(report.backlog.live));
  put("quarantined", numbers.format(report.backlog.quarantined));
  put("retries", `${numbers.format(report.totals.retries)}, ${numbers.format(report.totals.send_failures)}`);
  put("program", `firebird-cdc ${report.program}, process ${report.pid}, since ${time(report.started_us)}`);
  showTroubles(report);
  showDatabases(report);
  showSnapshots(report);
  showCanaries(report);
  showTables(report);
}

function remember(report) {
  const took = report.databases.map((database) => database.latency_ms);
  const sample = {
    time_ms: Math.floor(report.written_us / 1000),
    pending: report.backlog.pending,
    events: report.totals.events,
    latency_ms: Math.max(0, ...took),
    oldest_ms: report.backlog.oldest_s * 1000,
  };
  const before = samples[samples.length - 1];
  if (before && before.time_ms >= sample.time_ms) return;
  samples.push(sample);
  samples = samples.slice(-KEPT);
}

function showGone() {
  const silent = Date.now() - answeredAt;
  const gone = silent > PATIENCE_MS;
  byId("gone").hidden = !gone;
  if (!gone) return;
  byId("state").dataset.state = "gone";
  put("state", STATES.gone);
  document.title = "No answer – firebird-cdc";
  put("gone", `The shipper has not answered since ${new Date(answeredAt).toLocaleTimeString()}. What is`
    + " shown below is as it was then. This page keeps trying.");
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function turn() {
  clearTimeout(timer);
  try {
    const report = await ask("status.json");
    if (latest && latest.started_us !== report.started_us) samples = [];
    latest = report;
    answeredAt = Date.now();
    remember(report);
    show(report);
    drawAll();
  } catch {
    // Said by showGone, once it has lasted.
  }
  showGone();
  timer = setTimeout(turn, PERIOD_MS);
}

async function begin() {
  byId("find").addEventListener("input", () => { if (latest) showTables(latest); });
  try {
    const past = await ask("history.json");
    samples = past.samples.map((values) =>
      Object.fromEntries(past.fields.map((field, index) => [field, values[index]])));
  } catch {
    samples = [];
  }
  await turn();
}

begin();
