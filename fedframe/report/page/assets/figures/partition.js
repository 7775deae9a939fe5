// Who has what: clients across, classes down.

figures.partition = {
  controls: () => [
    { key: "order", label: "Clients by", options: [["number", "number"], ["size", "size"], ["class", "main class"]] },
    { key: "shade", label: "Shade", options: [["count", "samples"], ["share", "share of client"]] },
  ],
  draw(data, tools) {
    const order = clientOrder(data, tools.get("order"));
    const share = tools.get("shade") === "share";
    const value = (r, c) => {
      const samples = data.counts[order[c]][r];
      return share ? samples / Math.max(1, data.sizes[order[c]]) : samples;
    };
    const most = share ? 1 : d3.max(data.counts, (row) => d3.max(row)) || 1;
    const ramp = theme.ramp("sequential");
    const empty = theme.style("--empty");
    // A square root, so that small counts show.
    const colour = (samples) => (samples > 0 ? ramp(0.12 + 0.88 * Math.sqrt(samples / most)) : empty);
    const map = heatmap({
      rows: data.classes, columns: order.map((i) => data.clients[i]), value, colour, width: tools.width,
      cellHeight: Math.max(4, Math.min(24, 420 / data.classes.length)), rowTitle: "class", columnTitle: data.clients.length > 1 ? "client" : "the one client",
      text: (samples) => (samples > 0 ? (share ? String(Math.round(100 * samples)) : samples < 10000 ? String(samples) : d3.format(".2~s")(samples)) : ""),
      describe: (r, c) => [`client ${data.clients[order[c]]}, class ${data.classes[r]}`,
        `${count(data.counts[order[c]][r])} of the client's ${count(data.sizes[order[c]])} training samples`],
      above: { values: order.map((i) => data.sizes[i]), label: "samples by client" },
      beside: tools.width > 600 ? { values: data.classes.map((_, r) => d3.sum(data.counts, (row) => row[r])), label: "samples" } : null,
    });
    const ends = share ? ["0 %", "100 % of the client's samples"] : ["0", `${count(most)} samples`];
    return [map, colourScale(colour, [0, most], ends, "square-root scale"), data.note ? make("p", { class: "note" }, data.note) : null];
  },
  table: (data) => ({ columns: ["client", "samples", ...data.classes], rows: data.clients.map((name, i) => [name, data.sizes[i], ...data.counts[i]]) }),
};

function clientOrder(data, by) {
  const all = d3.range(data.clients.length);
  if (by === "size") return d3.sort(all, (i) => -data.sizes[i]);
  if (by === "class") return d3.sort(all, (i) => d3.maxIndex(data.counts[i]), (i) => -d3.max(data.counts[i]) / Math.max(1, data.sizes[i]));
  return all;
}
