// What clients gain by joining: a row per client, differences with their intervals, and a table.

figures.gain = {
  draw(data, tools) {
    const text = (cell) => (cell === null ? DASH : interval(...cell));
    const write = (cell) => (cell === null ? DASH : `${cell[0] > 0 ? "+" : ""}${points(cell[0])} (${points(cell[1])} to ${points(cell[2])})`);
    const lines = data.rows.map((row) => [row.client, count(row.samples), text(row.alone), text(row.shared), text(row.personal), write(row.gain), row.verdict]);
    const table = drawTable({ columns: [data.who, "test samples", "alone", "shared", "personal", scoring.share ? "by joining (points)" : "better by", ""], rows: lines },
      (line, i) => (i === 6 ? { gains: "good", loses: "bad" }[line[6]] || "" : ""), true);
    const said = data.mean && data.rows.length > 1 && make("p", { class: "note" }, `Mean over ${data.who}s: ${write(data.mean)}${scoring.share ? " points" : ""}; ${Object.entries(data.counts).map(([word, many]) => `${word}: ${many}`).join(", ")}.`);
    const known_ = data.rows.filter((row) => row.gain);
    return [said, known_.length ? gains(known_, tools) : null, table].filter(Boolean);
  },
  table: (data) => ({
    columns: [data.who, "test samples", ...["alone", "shared", "personal", "gain"].flatMap((name) => [name, `${name} low`, `${name} high`]), "verdict"],
    rows: data.rows.map((row) => [row.client, row.samples, ...["alone", "shared", "personal", "gain"].flatMap((key) => row[key] || [null, null, null]), row.verdict]),
  }),
};

function gains(rows, tools) {
  const names = axisNames(rows.map(({ client }) => client));
  const left = Math.min(names.width + 16, tools.width * 0.45);
  const colour = (row) => theme.style(row.verdict === "gains" ? "--good" : row.verdict === "loses" ? "--bad" : "--dim");
  return plot({
    width: tools.width, height: 60 + names.row * rows.length, marginLeft: left, marginTop: 8, marginRight: 56,
    x: { label: scoring.share ? `by joining, in points of ${page.data.metric}` : `better by joining, ${page.data.metric}`, tickFormat: (value) => `${value > 0 ? "+" : ""}${scoring.share ? Math.round(1000 * value) / 10 : number(value)}`, nice: true, ticks: roundTicks(tools.width - left) },
    y: { domain: rows.map(({ client }) => client), label: null, tickFormat: names.text, tickSize: 0 },
    marks: [
      gridX({ ticks: roundTicks(tools.width - left) }),
      Plot.ruleX([0], { stroke: theme.style("--dim"), strokeWidth: 1.5 }),
      Plot.ruleY(rows, { x1: (row) => row.gain[1], x2: (row) => row.gain[2], y: "client", stroke: colour, strokeWidth: 2.5 }),
      Plot.dot(rows, { x: (row) => row.gain[0], y: "client", fill: colour, r: 5 }),
      Plot.text(rows, { x: (row) => row.gain[0], y: "client", text: (row) => `${row.gain[0] > 0 ? "+" : ""}${points(row.gain[0])}`, dy: -10, fill: theme.style("--ink"), stroke: theme.style("--card"), strokeWidth: 3 }),
    ],
  });
}
