// Against the baseline: differences seed by seed, with their intervals and p-values.

const NARROW = 700; // pixels that all columns side by side need

figures.paired = {
  controls: (data) => [{ key: "score", label: "Score", options: data.scores.map(({ score, label }) => [score, label]) }],
  draw(data, tools) {
    const { rows } = data.scores.find(({ score }) => score === tools.get("score"));
    const narrow = tools.width < NARROW;
    const write = (value, sign = true) => (known(value) ? `${sign && value > 0 ? "+" : ""}${points(value)}` : DASH);
    const range = (low, high, sign) => (known(low) ? `${write(low, sign)} to ${write(high, sign)}` : DASH);
    const p = (value) => (known(value) ? (value < 0.001 ? "< 0.001" : value.toFixed(3)) : DASH);
    // What the reader has come for stands next to the method; a phone has the intervals below their means.
    const columns = narrow
      ? ["method, mean", "difference", "p", "p (Holm)"]
      : ["method", `difference to ${data.baseline}${scoring.share ? " (points)" : ""}`, "95 % interval", "p", "p (Holm)", "mean", "95 % interval"];
    const lines = rows.map((row) => {
      const [mean, spread] = [write(row.mean, false), range(row.low, row.high, false)];
      const found = row.difference || {};
      const [difference, reach] = row.difference ? [write(found.mean), range(found.low, found.high, true)] : [row.label === data.baseline ? "baseline" : DASH, ""];
      const tested = row.difference ? [p(found.p), p(found.p_holm)] : ["", ""];
      if (narrow) return [`${row.label}\n${mean}`, `${difference}${reach ? `\n${reach}` : ""}`, ...tested];
      return [row.label, difference, reach, ...tested, mean, spread];
    });
    const table = drawTable({ columns, rows: lines }, (line, i) => {
      const row = rows[lines.indexOf(line)];
      const sure = row.difference && (known(row.difference.p_holm) ? row.difference.p_holm : row.difference.p) < 0.05;
      return i === 1 && sure ? (scoring.sign * row.difference.mean > 0 ? "good" : "bad") : "";
    });
    table.className = narrow ? "figure-table narrow" : "figure-table";
    const known_ = rows.filter((row) => row.difference && known(row.difference.mean));
    return [table, known_.length ? differences(known_, data, tools) : null, make("p", { class: "note" }, data.note)];
  },
  table(data) {
    const rows = data.scores.flatMap(({ score, rows: found }) => found.map((row) => [row.label, score, row.mean, row.low, row.high,
      ...["mean", "low", "high", "p", "p_holm", "test"].map((key) => row.difference?.[key] ?? null)]));
    return { columns: ["method", "score", "mean", "low", "high", "difference", "difference low", "difference high", "p", "p (Holm)", "test"], rows };
  },
};

function differences(rows, data, tools) {
  const names = axisNames(rows.map(({ label }) => label));
  const left = Math.min(names.width + 16, tools.width * 0.45);
  return plot({
    width: tools.width, height: 60 + names.row * rows.length, marginLeft: left, marginTop: 8, marginRight: 56,
    x: { label: `difference to ${data.baseline} in points of ${page.data.metric}`, tickFormat: (value) => `${value > 0 ? "+" : ""}${Math.round(1000 * value) / 10}`, nice: true, ticks: roundTicks(tools.width - left) },
    y: { domain: rows.map(({ label }) => label), label: null, tickFormat: names.text, tickSize: 0 },
    marks: [
      gridX({ ticks: roundTicks(tools.width - left) }),
      Plot.ruleX([-0.005, 0.005], { stroke: "none" }), // stretches the axis: differences of nothing but 0 have no length
      Plot.ruleX([0], { stroke: theme.style("--dim"), strokeWidth: 1.5 }),
      Plot.ruleY(rows.filter(({ difference }) => known(difference.low)), { x1: (row) => row.difference.low, x2: (row) => row.difference.high, y: "label", stroke: (row) => theme.series(row.index), strokeWidth: 2.5 }),
      Plot.dot(rows, { x: (row) => row.difference.mean, y: "label", fill: (row) => theme.series(row.index), r: 5 }),
      Plot.text(rows, { x: (row) => row.difference.mean, y: "label", text: (row) => `${row.difference.mean > 0 ? "+" : ""}${points(row.difference.mean)}`, dy: -10, fill: theme.style("--ink"), stroke: theme.style("--card"), strokeWidth: 3 }),
      Plot.tip(rows, Plot.pointer({ x: (row) => row.difference.mean, y: "label", maxRadius: Infinity, title: (row) => `${row.label}: ${points(row.difference.mean, 2)}${scoring.share ? " points" : ""}\np ${number(row.difference.p)}`, ...tipLook() })),
    ],
  });
}
