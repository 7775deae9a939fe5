// Similarity of the clients' nets, layer by layer.

figures.alike = {
  draw(data, tools) {
    const rows = data.layers.map((layer, i) => ({ layer, value: data.similarity[i] })).filter((row) => known(row.value));
    const left = Math.min(Math.max(...rows.map(({ layer }) => measure(shorten(layer, 24)))) + 14, tools.width * 0.45);
    const bars = plot({
      width: tools.width, height: 50 + 28 * rows.length, marginLeft: left, marginTop: 6, marginRight: 44,
      x: { label: "similarity (linear CKA), 1 is the same", domain: [0, 1], ticks: 5 },
      y: { domain: rows.map(({ layer }) => layer), label: null, tickFormat: (layer) => shorten(layer, 24), tickSize: 0, padding: 0.3 },
      marks: [
        gridX({ ticks: 5 }),
        Plot.barX(rows, { x: "value", y: "layer", fill: theme.series(0), rx: 2 }),
        Plot.text(rows, { x: "value", y: "layer", text: (row) => row.value.toFixed(2), textAnchor: "start", dx: 5, fill: theme.style("--dim") }),
        Plot.tip(rows, Plot.pointer({ x: "value", y: "layer", maxRadius: Infinity, title: (row) => `${row.layer}: ${number(row.value)}`, ...tipLook() })),
      ],
    });
    const words = { shared: "under the shared model", own: "each under its own model" };
    const said = Object.entries(data.prototypes).map(([name, value]) => `${words[name] || name} ${number(value)}`).join(", ");
    return [bars, make("p", { class: "note" }, `Layers from input to output, mean over the pairs of ${data.clients} clients' own models.`),
      said ? make("p", { class: "note" }, `Cosine between clients' mean features of one class: ${said}. ${data.prototypes_read}`) : null];
  },
  table: (data) => ({ columns: ["layer", "similarity"], rows: data.layers.map((name, i) => [name, data.similarity[i]]) }),
};
