// Classifiers of the clients, pair by pair.

figures.heads = {
  controls: (data) => [{ key: "show", label: "Show", options: data.norm.length ? [["cosine", "cosine"], ["norm", "difference of lengths"]] : [["cosine", "cosine"]] }],
  draw(data, tools) {
    const kind = tools.get("show");
    const cells = data[kind];
    // From the least alike pair to the most, but cosines that all lie close to 1 shall not look far apart.
    const least = kind === "cosine" ? Math.min(0.9, d3.min(cells, (row) => d3.min(row))) : 0;
    const most = kind === "cosine" ? 1 : d3.max(cells, (row) => d3.max(row)) || 1;
    const ramp = theme.ramp("sequential");
    const colour = (number) => ramp(0.05 + (0.95 * (number - least)) / (most - least || 1));
    const map = heatmap({
      rows: data.clients, columns: data.clients, value: (r, c) => cells[r][c], colour, width: tools.width, square: true, rowTitle: "client", columnTitle: "client",
      describe: (r, c) => [`clients ${data.clients[r]} and ${data.clients[c]}`, `cosine ${number(data.cosine[r][c])}`, data.norm.length ? `difference of lengths ${number(data.norm[r][c])}` : ""].filter(Boolean),
    });
    return [map, colourScale(colour, [least, most], [number(least), number(most)])];
  },
  table: (data) => ({ columns: ["client", ...data.clients], rows: data.clients.map((name, r) => [name, ...data.cosine[r]]) }),
};
