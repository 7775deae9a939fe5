// Feature degeneration: sorted class means, and accuracy with fewer features.

figures.degeneration = {
  draw(data, tools) {
    const wide = tools.width > 760;
    const width = wide ? (tools.width - 20) / 2 : tools.width;
    const total = data.classes.length;
    const points = data.means.flatMap((row, c) => row.map((y, i) => ({ x: i * data.step + 1, y, c, name: data.classes[c] })));
    const middle = data.means[0].map((_, i) => ({ x: i * data.step + 1, y: d3.mean(data.means, (row) => row[i]) }));
    const means = plot({
      width, height: 280,
      x: { label: "features, largest mean first", ticks: roundTicks(width) }, y: { label: "mean feature of the class", nice: true, ticks: 5 },
      marks: [
        gridY({ ticks: 5 }),
        ...d3.groups(points, (p) => p.c).map(([c, line]) => Plot.line(line, { x: "x", y: "y", stroke: theme.category(c, total), strokeWidth: 1.2, strokeOpacity: 0.6 })),
        Plot.line(middle, { x: "x", y: "y", stroke: theme.style("--ink"), strokeWidth: 2.4 }),
        Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: (p) => `class ${p.name}\nfeature ${p.x} by size\nmean ${number(p.y)}`, ...tipLook() })),
      ],
    });
    const kept = data.pruning.map(([x, y]) => ({ x, y })).filter((p) => known(p.y));
    const pruning = kept.length ? plot({
      width, height: 280,
      x: { label: "features kept (%)", tickFormat: (value) => String(Math.round(100 * value)), ticks: 5 }, y: { ...percentAxis, nice: true, ticks: 5 },
      marks: [
        gridY({ ticks: 5 }),
        Plot.line(kept, { x: "x", y: "y", stroke: theme.series(0), strokeWidth: 2.2 }),
        Plot.dot(kept, { x: "x", y: "y", fill: theme.series(0), r: 3 }),
        Plot.tip(kept, Plot.pointerX({ x: "x", y: "y", maxRadius: Infinity, title: (p) => `${percent(p.x, 0)} of the features kept\naccuracy ${percent(p.y)}`, ...tipLook() })),
      ],
    }) : null;
    return [make("div", { class: "pair" }, make("div", {}, make("h3", {}, "Class means, sorted (thick line: mean over classes)"), means), pruning ? make("div", {}, make("h3", {}, "Accuracy with fewer features"), pruning) : null),
      data.note ? make("p", { class: "note" }, data.note) : null];
  },
  table: (data) => ({
    columns: ["figure", "at", ...data.classes.map((name) => `class ${name}`), "variance", "accuracy"],
    rows: [
      ...data.means[0].map((_, i) => ["feature by size", i * data.step + 1, ...data.means.map((row) => row[i]), data.variance[i] ?? null, null]),
      ...data.pruning.map(([kept, accuracy]) => ["share of features kept", kept, ...data.classes.map(() => null), null, accuracy]),
    ],
  }),
};
