// Feature degeneration: sorted class means with their spread, and accuracy with fewer features.

figures.degeneration = {
  draw(data, tools) {
    const width = tools.width > 760 ? (tools.width - 20) / 2 : tools.width;
    const pruning = data.pruning.length ? make("div", {}, make("h3", {}, "Accuracy with fewer features"), pruningCurves(data, width, tools)) : null;
    return [make("div", { class: "pair" }, make("div", {}, make("h3", {}, "Class means, sorted"), sortedMeans(data, width), make("p", { class: "small-read" }, "Thin: one class each. Thick: mean over classes; its band is one standard deviation within classes.")), pruning),
      data.note ? make("p", { class: "note" }, data.note) : null];
  },
  table: (data) => ({
    columns: ["figure", "at", ...data.classes.map((name) => `class ${name}`), "mean over classes", "variance", "accuracy, largest kept", "accuracy, smallest kept"],
    rows: [
      ...data.ranks.map((rank, i) => ["feature by size", rank, ...data.means.map((row) => row[i]), data.mean[i], data.variance[i], null, null]),
      ...data.pruning.map(([kept, ...accuracies]) => ["share of features kept", kept, ...data.classes.map(() => null), null, null, ...accuracies]),
    ],
  }),
};

function sortedMeans(data, width) {
  const lines = data.means.map((row, c) => row.map((y, i) => ({ x: data.ranks[i], y, name: data.classes[c] })));
  const middle = data.ranks.map((x, i) => ({ x, y: data.mean[i], deviation: Math.sqrt(data.variance[i] ?? 0) }));
  return plot({
    width, height: 280,
    x: { label: "features, largest mean first", ticks: roundTicks(width) }, y: { label: "mean feature of the class", nice: true, ticks: 5 },
    marks: [
      gridY({ ticks: 5 }),
      Plot.areaY(middle, { x: "x", y1: (p) => p.y - p.deviation, y2: (p) => p.y + p.deviation, fill: theme.style("--dim"), fillOpacity: 0.18 }),
      ...lines.map((line, c) => Plot.line(line, { x: "x", y: "y", stroke: theme.category(c, lines.length), strokeWidth: 1.2, strokeOpacity: 0.6 })),
      Plot.line(middle, { x: "x", y: "y", stroke: theme.style("--ink"), strokeWidth: 2.4 }),
      Plot.tip(lines.flat(), Plot.pointer({ x: "x", y: "y", title: (p) => `class ${p.name}\nfeature ${p.x} by size\nmean ${number(p.y)}`, ...tipLook() })),
    ],
  });
}

function pruningCurves(data, width, tools) {
  const words = ["largest kept", "smallest kept"];
  const points = data.pruning.flatMap(([x, ...accuracies]) => accuracies.map((y, i) => ({ x, y, i, label: words[i] }))).filter((p) => known(p.y));
  const shown = points.filter((p) => !tools.hidden.has(p.label));
  const legend = drawLegend(words.map((label, index) => ({ label, index })), tools.hidden, tools.toggle);
  return make("div", {}, legend, plot({
    width, height: 250,
    x: { label: "features kept (%)", domain: [0, 1], tickFormat: (value) => String(Math.round(100 * value)), ticks: 5 }, y: { ...percentAxis, nice: true, ticks: 5 },
    marks: [
      gridY({ ticks: 5 }),
      ...words.map((label, i) => Plot.line(shown.filter((p) => p.i === i), { x: "x", y: "y", stroke: theme.series(i), strokeWidth: 2.2 })),
      Plot.dot(shown, { x: "x", y: "y", fill: (p) => theme.series(p.i), r: 3 }),
      Plot.tip(shown, Plot.pointer({ x: "x", y: "y", maxRadius: Infinity, title: (p) => `${percent(p.x, 0)} of the features, the ${p.label}\naccuracy ${percent(p.y)}`, ...tipLook() })),
    ],
  }));
}
