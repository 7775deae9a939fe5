// The scores: large tiles for one method; for several, means and intervals on one axis.

figures.scores = {
  draw(data, tools) {
    const said = make("details", {}, make("summary", {}, "Definitions"), drawTable({ columns: ["word", "meaning"], rows: Object.entries(data.definitions) }));
    said.querySelectorAll("td").forEach((cell) => (cell.style.cssText = "white-space:normal;text-align:left"));
    said.querySelectorAll("th").forEach((cell) => (cell.style.textAlign = "left"));
    if (data.groups.length > 1) return [forest(data, tools), cutNote(data.groups.flatMap(({ scores }) => Object.values(scores).flatMap(({ final }) => final || []))), said];
    const { scores } = data.groups[0];
    const tiles = Object.entries(scores).map(([score, kinds]) => {
      const { mean, low, high, samples } = kinds.final || Object.values(kinds)[0];
      const over = known(samples) ? `of ${count(samples)} test samples` : `over ${data.seeds} seeds`;
      const range = known(low) ? make("p", {}, `95 % interval ${over}: ${interval(mean, low, high).replace(/^.*\(|\)$/g, "")}`) : null;
      const more = Object.entries(kinds).filter(([kind]) => kind !== "final").flatMap(([kind, entry]) => [make("dt", {}, data.kinds[kind]), make("dd", {}, percent(entry.mean))]);
      return make("div", { class: "tile" },
        make("span", { class: "tag" }, score), make("div", { class: "name" }, data.names[score]),
        make("div", { class: "big" }, points(mean), make("small", {}, scoring.share ? " %" : "")), range,
        make("p", {}, data.definitions[score] || ""), make("dl", {}, more));
    });
    return [make("div", { class: "tiles" }, tiles), said];
  },
  table(data) {
    const rows = data.groups.flatMap(({ label, scores }) => Object.entries(scores).flatMap(([score, kinds]) =>
      Object.entries(kinds).map(([kind, e]) => [label, score, data.kinds[kind], e.mean, e.low, e.high, e.samples ?? null, e.values.join(" ")])));
    return { columns: ["method", "score", "kind", "mean", "low (95 %)", "high (95 %)", "test samples", "values by seed"], rows };
  },
};

// One picture per score: a dot per seed, the mean and its interval, methods below each other.
function forest(data, tools) {
  const order = data.groups.map(({ label }) => label);
  const scores = Object.keys(data.names).filter((score) => data.groups.some((group) => group.scores[score]));
  const columns = tools.width > 760 ? scores.length : 1;
  const width = tools.width / columns - 12 * (columns > 1);
  const names = axisNames(order);
  const left = Math.min(names.width + 16, width * 0.45);
  const pictures = scores.map((score) => {
    const rows = data.groups.flatMap(({ label, scores: found }, i) => (found[score]?.final ? [{ label, i, ...found[score].final }] : []));
    const seeds = rows.flatMap((row) => row.values.map((value) => ({ label: row.label, i: row.i, value })));
    const colour = (row) => theme.series(row.i);
    const drawn = plot({
      width, height: 54 + names.row * order.length, marginLeft: left, marginTop: 8,
      x: { ...percentAxis, nice: true, ticks: roundTicks(width - left) },
      y: { domain: order, label: null, tickFormat: names.text, tickSize: 0 },
      marks: [
        gridX({ ticks: roundTicks(width - left) }),
        Plot.dot(seeds, { x: "value", y: "label", stroke: colour, strokeOpacity: 0.6, r: 3 }),
        Plot.ruleY(rows.filter((row) => known(row.low)), { x1: (row) => within(row.low), x2: (row) => within(row.high), y: "label", stroke: colour, strokeWidth: 2.5 }),
        Plot.dot(rows, { x: "mean", y: "label", fill: colour, r: 5 }),
        Plot.text(rows, { x: "mean", y: "label", text: (row) => percent(row.mean), dy: -11, fill: theme.style("--ink"), stroke: theme.style("--card"), strokeWidth: 3 }),
        Plot.tip(rows, Plot.pointer({ x: "mean", y: "label", maxRadius: Infinity, title: (row) => `${row.label}\n${interval(row.mean, row.low, row.high)}\n${row.values.length} seed${row.values.length > 1 ? "s" : ""}`, ...tipLook() })),
      ],
    });
    return make("div", {}, make("h3", {}, data.names[score]), make("p", { class: "small-read" }, data.definitions[score] || ""), drawn);
  });
  const grid = make("div", { class: "trio" }, pictures);
  grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  return grid;
}
