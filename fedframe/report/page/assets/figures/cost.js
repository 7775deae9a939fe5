// What it cost: a table for all, and for several methods scores against cost.

const WRITE = { s: duration, bytes, MB: (value) => bytes(1e6 * value), FLOPs: (value) => `${d3.format(".3~s")(value).replace(/([a-zA-Z])$/, "\u00a0$1")}${/[a-zA-Z]$/.test(d3.format(".3~s")(value)) ? "" : "\u00a0"}FLOPs`, "": count };

figures.cost = {
  controls(data) {
    if (data.rows.length < 2) return [];
    const measures = Object.keys(data.measures).filter((key) => !["parameters", "flops_per_sample", "training_flops_per_sample"].includes(key) && data.rows.some(({ values }) => values[key]));
    const scores = ["generic", "client", "personal"].filter((score) => data.rows.some((row) => known(row.scores[score])));
    return [
      { key: "measure", label: "Score against", options: measures.map((key) => [key, data.measures[key][0]]) },
      { key: "score", label: "Score", options: scores.map((score) => [score, score]) },
    ].filter(({ options }) => options.length);
  },
  draw(data, tools) {
    const keys = Object.keys(data.measures).filter((key) => data.rows.some(({ values }) => values[key]));
    const write = (key) => WRITE[data.measures[key][1]];
    if (data.rows.length === 1) {
      const [row] = data.rows;
      const tiles = keys.map((key) => make("div", { class: "tile" }, make("div", { class: "name" }, data.measures[key][0]), make("div", { class: "big small" }, write(key)(row.values[key][0]))));
      return [make("div", { class: "tiles cost" }, tiles), row.parts.length ? partBars(row.parts, tools) : null];
    }
    const table = drawTable({ columns: ["method", ...keys.map((key) => data.measures[key][0])], rows: data.rows.map((row) => [row.label, ...keys.map((key) => (row.values[key] ? write(key)(row.values[key][0]) : DASH))]) }, undefined, true);
    table.className = "figure-table stack";
    return [table, this.controls(data).length === 2 ? against(data, tools, write) : null];
  },
  table(data) {
    const keys = Object.keys(data.measures);
    return { columns: ["method", ...keys.map((key) => `${data.measures[key][0]} (${data.measures[key][1]})`)], rows: data.rows.map((row) => [row.label, ...keys.map((key) => row.values[key]?.[0] ?? null)]) };
  },
};

function against(data, tools, write) {
  const [measure_, score] = [tools.get("measure"), tools.get("score")];
  const rows = data.rows.map((row, i) => ({ label: row.label, i, x: row.values[measure_]?.[0], y: row.scores[score] })).filter((row) => known(row.x) && known(row.y));
  const height = tools.width > 700 ? 320 : 260;
  const marginRight = Math.min(140, tools.width * 0.28);
  return plot({
    width: tools.width, height, marginRight,
    x: { label: data.measures[measure_][0], tickFormat: (value) => write(measure_)(value), ticks: Math.max(2, Math.floor(tools.width / 170)), zero: true, nice: true }, y: { ...percentAxis, nice: true, ticks: 5 },
    marks: [
      gridX({ ticks: Math.max(2, Math.floor(tools.width / 170)) }), gridY({ ticks: 5 }),
      Plot.dot(rows, { x: "x", y: "y", fill: (row) => theme.series(row.i), r: 6 }),
      ...apart(rows, tools.width - 48 - marginRight, height - 64).map(({ row, up }) => Plot.text([row], { x: "x", y: "y", text: () => shortenMiddle(row.label, 24), dx: 10, dy: -up, textAnchor: "start" })),
      Plot.tip(rows, Plot.pointer({ x: "x", y: "y", maxRadius: Infinity, title: (row) => `${row.label}\n${percent(row.y)}\n${write(measure_)(row.x)}`, ...tipLook() })),
    ],
  });
}

// Names of points that lie close to each other stand one above the other: how far up each goes, from the lowest on.
const LINE = 15;

function apart(rows, width, height) {
  const [most, low, high] = [d3.max(rows, (row) => row.x) || 1, d3.min(rows, (row) => row.y), d3.max(rows, (row) => row.y)];
  const place = (row) => [(row.x / most) * width, ((row.y - low) / (high - low || 1)) * height];
  const taken = rows.map(place).map(([x, y]) => ({ left: x - 7, right: x + 7, level: y })); // the points themselves
  return d3.sort(rows, (row) => row.y, (row) => row.x).map((row) => {
    const [x, y] = place(row);
    const name = { left: x + 10, right: x + 16 + measure(shortenMiddle(row.label, 24)), level: y };
    const clash = (each) => name.left < each.right && each.left < name.right && Math.abs(name.level - each.level) < LINE;
    for (let other = taken.find(clash); other; other = taken.find(clash)) name.level = other.level + LINE;
    taken.push(name);
    return { row, up: name.level - y };
  });
}

function partBars(parts, tools) {
  const rows = parts.flatMap(([part, up, down]) => [{ part, way: "to the server", value: up }, { part, way: "to the clients", value: down }]).filter(({ value }) => value > 0);
  if (!rows.length) return null;
  const left = Math.min(Math.max(...rows.map(({ part }) => measure(part))) + 14, tools.width * 0.4);
  return make("div", {}, make("h3", {}, "Bytes by what they carry"), plot({
    width: tools.width, height: 70 + 40 * new Set(rows.map(({ part }) => part)).size, marginLeft: left, marginRight: Math.min(150, tools.width * 0.4), marginTop: 6,
    x: { label: null, tickFormat: bytes, ticks: Math.max(2, Math.floor(tools.width / 170)) }, y: { label: null, axis: null }, fy: { label: null },
    color: { domain: ["to the server", "to the clients"], range: [theme.series(0), theme.series(1)], legend: false },
    marks: [
      Plot.axisFy({ anchor: "left", label: null, dx: -4 }),
      Plot.barX(rows, { x: "value", y: "way", fy: "part", fill: "way", rx: 2, insetTop: 1, insetBottom: 1 }),
      Plot.text(rows, { x: "value", y: "way", fy: "part", text: ({ value, way }) => `${bytes(value)} ${way}`, textAnchor: "start", dx: 5, fill: theme.style("--dim") }),
    ],
  }));
}
