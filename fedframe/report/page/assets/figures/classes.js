// Accuracy by class, and of frequent, middling and rare classes.

const KIND_WORDS = { many: "many: most training data", medium: "medium", few: "few: least training data", "": "" };
const MOST_ROWS_OF_CLASSES = 30;

figures.classes = {
  controls: (data) => [{ key: "model", label: "Model", options: data.models.map(({ key, label }) => [key, label]) }, { key: "order", label: "Classes by", options: [["number", "number"], ["samples", "training samples"], ["accuracy", "accuracy"]] }],
  draw(all, tools) {
    const data = { ...all, series: all.models.find(({ key }) => key === tools.get("model")).series };
    const order = classOrder(data, tools.get("order"));
    const single = data.series.length === 1;
    const wide = tools.width > 760;
    const grouped = data.kinds.filter((kind) => data.series.some((line) => known(line.by_group[kind][0])));
    const [main, side] = wide && grouped.length > 1 ? [((tools.width - 20) * 2) / 3, (tools.width - 20) / 3] : [tools.width, tools.width];
    const long = order.length > MOST_ROWS_OF_CLASSES;
    const legend = single && !data.kinds.length ? null : single
      ? make("div", { class: "legend" }, data.kinds.filter((kind) => data.groups.includes(kind)).map((kind) => {
          const patch = make("i", { "aria-hidden": "true" });
          patch.style.background = kindColour(kind);
          return make("span", {}, patch, KIND_WORDS[kind]);
        }))
      : drawLegend(data.series.map(({ label }, index) => ({ label, index })), tools.hidden, tools.toggle);
    const classes = (long ? manyClasses : fewClasses)(data, order, main, single, tools.hidden);
    const groups = grouped.length > 1 ? make("div", {}, make("h3", {}, "Groups of classes"), groupBars(data, grouped, side, single, tools.hidden)) : null;
    const note = long ? null : cutNote(classRows(data, order, tools.hidden));
    return [legend, groups ? make("div", { class: "pair main-side" }, make("div", {}, classes), groups) : classes, note];
  },
  table: (data) => ({
    columns: ["class", "group", "training samples", ...data.models.flatMap((model) => model.series.flatMap(({ label }) => [`${label}, ${model.label}`, "low (95 %)", "high (95 %)"]))],
    rows: data.classes.map((name, i) => [name, data.groups[i], data.counts[i], ...data.models.flatMap((model) => model.series.flatMap((line) => line.accuracy[i]))]),
  }),
};

const kindColour = (kind) => theme.series({ many: 0, medium: 4, few: 1 }[kind] ?? 0);

function classOrder(data, by) {
  const all = d3.range(data.classes.length);
  if (by === "samples") return d3.sort(all, (i) => -data.counts[i]);
  if (by === "accuracy") return d3.sort(all, (i) => data.series[0].accuracy[i][0] ?? -1);
  return all;
}

const classRows = (data, order, hidden) => data.series.flatMap((line, s) => hidden.has(line.label) ? [] : order.map((i, place) => ({
  s, place, name: `${i}`, label: line.label, kind: data.groups[i], y: line.accuracy[i][0], low: line.accuracy[i][1], high: line.accuracy[i][2],
  title: `class ${data.classes[i]}${data.groups[i] ? ` (${data.groups[i]})` : ""}\n${line.label}: ${interval(...line.accuracy[i])}\n${count(data.counts[i])} training samples`,
})).filter((row) => known(row.y)));

function fewClasses(data, order, width, single, hidden) {
  const rows = classRows(data, order, hidden);
  const words = (i) => shorten(data.classes[i], 22);
  const left = Math.min(Math.max(...order.map((i) => measure(words(i)))) + 14, width * 0.4);
  if (!single) return classLanes(data, order, rows, words, left, width);
  const colour = (row) => kindColour(row.kind);
  return plot({
    width, height: 50 + Math.max(22, Math.min(30, 340 / order.length)) * order.length, marginLeft: left, marginTop: 6, marginRight: 52,
    x: { ...percentAxis, label: "accuracy (%)", domain: [0, 1], ticks: 6 },
    y: { domain: order.map(String), label: null, tickFormat: words, tickSize: 0, padding: 0.25 },
    marks: [
      gridX({ ticks: 6 }),
      Plot.barX(rows, { x: "y", y: "name", fill: colour, rx: 2 }),
      Plot.text(rows, { x: (row) => within(Math.max(row.y, row.high ?? row.y)), y: "name", text: (row) => percent(row.y), textAnchor: "start", dx: 5, fill: theme.style("--dim") }),
      Plot.ruleY(rows.filter((row) => known(row.low)), { x1: (row) => within(row.low), x2: (row) => within(row.high), y: "name", stroke: theme.style("--ink"), strokeWidth: 1.2, strokeOpacity: 0.55 }),
      Plot.tip(rows, Plot.pointer({ x: "y", y: "name", title: "title", maxRadius: 60, ...tipLook() })),
    ],
  });
}

// Several methods: a lane each within every class, so that no dot hides another, with its number at the end.
function classLanes(data, order, rows, words, left, width) {
  const lanes = data.series.map(({ label }) => label).filter((label) => rows.some((row) => row.label === label));
  const colour = (row) => theme.series(row.s);
  return plot({
    width, height: 50 + order.length * (10 + 15 * lanes.length), marginLeft: left, marginTop: 6, marginRight: 56,
    x: { ...percentAxis, label: "accuracy (%)", domain: [0, 1], ticks: 6 },
    y: { domain: lanes, axis: null }, fy: { domain: order.map(String), label: null, padding: 0.16 },
    marks: [
      gridX({ ticks: 6 }),
      Plot.axisFy({ anchor: "left", label: null, fontSize: 12, dx: -6, tickFormat: words }),
      Plot.barX(rows, { x: "y", y: "label", fy: "name", fill: colour, fillOpacity: 0.8, insetTop: 1, insetBottom: 1, rx: 2 }),
      Plot.ruleY(rows.filter((row) => known(row.low)), { x1: (row) => within(row.low), x2: (row) => within(row.high), y: "label", fy: "name", stroke: theme.style("--ink"), strokeWidth: 1.2 }),
      Plot.text(rows, { x: 1, y: "label", fy: "name", text: (row) => percent(row.y), textAnchor: "start", dx: 6, fill: theme.style("--dim"), fontSize: 11 }),
      Plot.tip(rows, Plot.pointer({ x: "y", y: "label", fy: "name", title: "title", maxRadius: 60, ...tipLook() })),
    ],
  });
}

function manyClasses(data, order, width, single, hidden) {
  const rows = classRows(data, order, hidden);
  const colour = single ? (row) => kindColour(row.kind) : (row) => theme.series(row.s);
  return plot({
    width, height: 340,
    x: { label: "classes in this order", ticks: roundTicks(width) },
    y: { ...percentAxis, label: "accuracy (%)", domain: [0, 1], ticks: 6 },
    marks: [
      gridY({ ticks: 6 }),
      single ? Plot.rectY(rows, { x1: (row) => row.place - 0.42, x2: (row) => row.place + 0.42, y: "y", fill: colour }) : Plot.dot(rows, { x: "place", y: "y", fill: colour, r: 2.5 }),
      Plot.tip(rows, Plot.pointerX({ x: "place", y: "y", maxRadius: Infinity, title: "title", ...tipLook() })),
    ],
  });
}

function groupBars(data, kinds, width, single, hidden) {
  const rows = data.series.flatMap((line, s) => hidden.has(line.label) ? [] : kinds.map((kind) => ({ s, kind, label: line.label, y: line.by_group[kind][0], low: line.by_group[kind][1], high: line.by_group[kind][2] })).filter((row) => known(row.y)));
  const colour = single ? (row) => kindColour(row.kind) : (row) => theme.series(row.s);
  return plot({
    width, height: Math.max(180, single ? 180 : 60 + kinds.length * (20 + 16 * data.series.length)), marginTop: 6, marginLeft: 62, marginRight: 52,
    x: { ...percentAxis, label: "accuracy (%)", domain: [0, 1], ticks: 4 }, y: { label: null, axis: null, domain: single ? undefined : data.series.map(({ label }) => label) }, fy: { label: null, domain: kinds, padding: 0.2 },
    marks: [
      gridX({ ticks: 4 }),
      Plot.axisFy({ anchor: "left", label: null, fontSize: 12, dx: -6 }),
      Plot.barX(rows, { x: "y", y: single ? undefined : "label", fy: "kind", fill: colour, rx: 2, insetTop: 1, insetBottom: 1 }),
      Plot.text(rows, { x: "y", y: single ? undefined : "label", fy: "kind", text: (row) => percent(row.y), textAnchor: "start", dx: 5, fill: theme.style("--dim") }),
      Plot.tip(rows, Plot.pointer({ x: "y", y: single ? undefined : "label", fy: "kind", title: (row) => `${row.label}, ${row.kind}: ${interval(row.y, row.low, row.high)}`, ...tipLook() })),
    ],
  });
}
