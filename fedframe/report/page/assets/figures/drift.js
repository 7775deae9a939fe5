// Drift: clients down, rounds across.

figures.drift = {
  controls: () => [
    { key: "show", label: "Show", options: [["cosine", "cosine with the step"], ["norm", "length of the update"]] },
    { key: "order", label: "Clients by", options: [["number", "number"], ["mean", "mean"]] },
  ],
  draw(data, tools) {
    const kind = tools.get("show");
    const cells = data[kind];
    const means = cells.map((row) => d3.mean(row.filter(known)) ?? -Infinity);
    const all = d3.range(data.clients.length);
    const order = tools.get("order") === "mean" ? d3.sort(all, (i) => means[i]) : all;
    const most = d3.max(cells, (row) => d3.max(row, (number) => Math.abs(number))) || 1;
    const reach = kind === "cosine" ? Math.max(0.2, Math.min(1, most)) : most;
    const ramp = theme.ramp(kind === "cosine" ? "diverging" : "sequential");
    const colour = kind === "cosine" ? (number) => ramp(0.5 + number / (2 * reach)) : (number) => ramp(0.08 + (0.92 * number) / reach);
    const map = heatmap({
      rows: order.map((i) => data.clients[i]), columns: data.rounds, value: (r, c) => cells[order[r]][c], colour, width: tools.width,
      cellHeight: Math.min(22, Math.max(0.5, Math.min(520, 14 * order.length) / order.length)), rowTitle: "client", columnTitle: "round",
      describe: (r, c) => {
        const i = order[r];
        const there = known(data.cosine[i][c]) || known(data.norm[i][c]);
        return [`client ${data.clients[i]}, round ${data.rounds[c]}`, ...(there ? [`cosine with the server's step ${number(data.cosine[i][c])}`, `length of the update ${number(data.norm[i][c])}`] : ["was not in this round"])];
      },
    });
    const ends = kind === "cosine" ? [`${number(-reach, 2)} against`, `${number(reach, 2)} with the step`] : ["0", number(reach)];
    return [map, colourScale(colour, [kind === "cosine" ? -reach : 0, reach], ends), data.note ? make("p", { class: "note" }, data.note) : null];
  },
  table: (data) => ({
    columns: ["client", "round", "cosine", "length of update"],
    rows: data.clients.flatMap((name, i) => data.rounds.map((round, c) => [name, round, data.cosine[i][c], data.norm[i][c]])).filter((row) => known(row[2]) || known(row[3])),
  }),
};
