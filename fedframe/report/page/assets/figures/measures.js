// Measures of the trade: every one with its interval, of all predictions together and class by class.

figures.measures = {
  controls: (data) => (data.sets.length > 1 ? [{ key: "set", label: "Predictions", options: data.sets.map(({ key, label }) => [key, label]) }] : []),
  draw(data, tools) {
    const set = data.sets.length > 1 ? data.sets.find(({ key }) => key === tools.get("set")) : data.sets[0]; // one has no control
    const ofShare = (value) => `${(100 * value).toFixed(1)}\u00a0%`;
    const text = (cell, share = true) => (cell === null ? DASH : interval(...cell, share ? ofShare : (value) => (Math.abs(value) < 10 ? value.toFixed(3) : number(value, 4))));
    const all = drawTable({ columns: ["measure", ...set.methods], rows: set.rows.map(({ name, share, cells }) => [name, ...cells.map((cell) => text(cell, share))]) }, undefined, set.methods.length > 1);
    const classes = set.classes && drawTable({ columns: [scoring.task === "classification" ? "class" : scoring.task === "regression" ? "number" : "label", "test samples", ...set.classes.columns], rows: set.classes.rows.map(([name, samples, ...cells]) => [name, count(samples), ...cells.map((cell) => text(cell, set.classes.share ?? true))]) }, undefined, true);
    return [make("p", { class: "note" }, set.note), all, classes && make("h3", {}, `${scoring.task === "classification" ? "Class by class" : scoring.task === "regression" ? "Number by number" : "Label by label"}${set.methods.length > 1 ? `, ${set.methods[0]}` : ""}`), classes].filter(Boolean);
  },
  table(data) {
    const rows = data.sets.flatMap(({ label, methods, rows: found }) => found.flatMap(({ name, cells }) => cells.map((cell, i) => [label, methods[i], name, ...(cell || [null, null, null])])));
    return { columns: ["predictions", "method", "measure", "value", "low (95 %)", "high (95 %)"], rows };
  },
};
