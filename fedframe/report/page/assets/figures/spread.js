// Every client's accuracy, from the worst served to the best, or against the client's amount of data.

const MOST_DOTS = 1200;

figures.spread = {
  controls: (data) => [
    { key: "panel", label: "Show", options: data.panels.map(({ key, label }) => [key, label]) },
    { key: "over", label: "Clients by", options: data.few ? [["rank", "score"]] : [["rank", "score"], ["train", "training samples"]] },
  ],
  draw(data, tools) {
    const panel = data.panels.find(({ key }) => key === tools.get("panel"));
    if (data.few) return namedBars(panel, tools);
    const ranked = tools.get("over") === "rank";
    const marks = panel.series.flatMap((line, i) => tools.hidden.has(line.label) ? [] : line.values.map((y, rank) => ({
      x: ranked ? (line.values.length > 1 ? rank / (line.values.length - 1) : 0.5) : line.train[rank], y, i, label: line.label,
      title: `client ${line.clients[rank]}\n${line.label}: ${percent(y)}\n${count(line.train[rank])} training, ${count(line.test[rank])} test samples`,
    })));
    const entries = panel.series.map((line, index) => ({ label: line.label, index, value: `mean ${percent(line.mean)}, worst tenth ${percent(line.worst)}, standard deviation ${points(line.std)}` }));
    const legend = drawLegend(entries, tools.hidden, tools.toggle);
    if (!marks.length) return [legend, make("p", { class: "missing" }, "All lines are hidden; choose one above.")];
    const colour = (p) => theme.series(p.i);
    const turns = inTurns(ranked ? linesOf(marks) : []);
    const dots = !ranked || marks.length <= MOST_DOTS;
    return [legend, plot({
      width: tools.width, height: tools.width > 700 ? 340 : 260, r: { type: "identity" },
      x: ranked
        ? { label: "clients, worst to best (%)", tickFormat: (x) => String(Math.round(100 * x)), ticks: 5, domain: [0, 1] }
        : { label: "training samples of the client", type: "log", ticks: tools.width > 500 ? 6 : 4, tickFormat: "~s" },
      y: { ...percentAxis, nice: true, ticks: 6 },
      marks: [
        gridY({ ticks: 6 }),
        ranked ? Plot.rectX([0], { x1: -0.005, x2: 0.1, fill: theme.style("--bad"), fillOpacity: 0.09 }) : null,
        ...(ranked ? panel.series.map((line, i) => Plot.line(marks.filter((p) => p.label === line.label), { x: "x", y: "y", stroke: theme.series(i), strokeWidth: 2, strokeDasharray: turns.dash(line.label, theme.dash(i)), curve: "step" })) : []),
        dots ? Plot.dot(marks, { x: "x", y: "y", fill: colour, fillOpacity: ranked ? 1 : 0.65, r: (p) => turns.radius(p.label, marks.length > 150 ? 2 : 3.5) }) : null,
        Plot.dot(marks, Plot.pointer({ x: "x", y: "y", maxRadius: Infinity, stroke: theme.style("--ink"), r: 5 })),
        Plot.tip(marks, Plot.pointer({ x: "x", y: "y", maxRadius: Infinity, title: "title", ...tipLook() })),
      ],
    }), ranked ? make("p", { class: "note" }, "Shaded: the worst tenth.") : null, turns.note];
  },
  table: (data) => ({
    columns: ["figure", "line", "client", "score", "training samples", "test samples"],
    rows: data.panels.flatMap((panel) => panel.series.flatMap((line) => line.values.map((value, i) => [panel.label, line.label, line.clients[i], value, line.train[i], line.test[i]]))),
  }),
};

// A few clients have names: a bar for each, and for each of its models.
function namedBars(panel, tools) {
  const rows = panel.series.flatMap((line, i) => tools.hidden.has(line.label) ? [] : line.values.map((y, k) => ({
    client: line.clients[k], label: line.label, i, y, low: line.low[k], high: line.high[k], test: line.test[k], train: line.train[k],
  })));
  const legend = drawLegend(panel.series.map((line, index) => ({ label: line.label, index, value: `mean ${percent(line.mean)}` })), tools.hidden, tools.toggle);
  if (!rows.length) return [legend, make("p", { class: "missing" }, "All bars are hidden; choose one above.")];
  const clients = [...new Set(rows.map(({ client }) => client))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const samples = new Map(rows.map((row) => [row.client, row.test]));
  const words = (client) => `${shorten(client, 18)}\n${count(samples.get(client))} tests`;
  const left = Math.min(Math.max(...clients.flatMap((client) => words(client).split("\n").map((word) => measure(word)))) + 16, tools.width * 0.4);
  const shown = panel.series.filter(({ label }) => !tools.hidden.has(label)).map(({ label }) => label);
  return [legend, plot({
    width: tools.width, height: 56 + clients.length * Math.max(38, 14 + 20 * shown.length), marginLeft: left, marginRight: tools.width > 500 ? 150 : 20, marginTop: 6,
    x: { ...percentAxis, ...(scoring.share ? { domain: [0, 1] } : { nice: true, zero: true }), ticks: tools.width > 500 ? 10 : 5 }, y: { domain: shown, axis: null, padding: 0.12 }, fy: { domain: clients, label: null, padding: 0.2 },
    marks: [
      gridX({ ticks: tools.width > 500 ? 10 : 5 }),
      Plot.axisFy({ anchor: "left", label: null, fontSize: 12, dx: -6, tickFormat: words, lineWidth: 20 }),
      Plot.barX(rows, { x: "y", y: "label", fy: "client", fill: (row) => theme.series(row.i), fillOpacity: 0.85, rx: 2 }),
      Plot.ruleY(rows.filter((row) => known(row.low)), { x1: (row) => within(row.low), x2: (row) => within(row.high), y: "label", fy: "client", stroke: theme.style("--ink"), strokeWidth: 1.4 }),
      tools.width > 500
        ? Plot.text(rows, { x: 1, y: "label", fy: "client", text: (row) => interval(row.y, row.low, row.high), textAnchor: "start", dx: 8, fill: theme.style("--ink") })
        : Plot.text(rows, { x: 0, y: "label", fy: "client", text: (row) => percent(row.y), textAnchor: "start", dx: 6, fill: "#fff", stroke: "#000", strokeWidth: 2.5, strokeOpacity: 0.55, fontWeight: 600 }),
    ],
  })];
}
