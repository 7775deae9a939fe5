// The confusion matrix: what is right in blue, mistakes in orange.

figures.confusion = {
  controls: () => [{ key: "show", label: "Show", options: [["share", "% of true class"], ["count", "samples"]] }],
  draw(data, tools) {
    const share = tools.get("show") === "share";
    const totals = data.counts.map((row) => d3.sum(row));
    const value = (r, c) => (share ? (totals[r] ? data.counts[r][c] / totals[r] : null) : data.counts[r][c]);
    const most = share ? 1 : d3.max(data.counts, (row) => d3.max(row)) || 1;
    const mistakes = d3.max(data.classes, (_, r) => d3.max(data.classes, (__, c) => (r === c ? 0 : value(r, c) || 0))) || 1e-9;
    const [right, wrong, empty] = [theme.ramp("sequential"), theme.ramp("mistakes"), theme.style("--empty")];
    const rightColour = (number) => right(0.15 + (0.7 * number) / most);
    const wrongColour = (number) => (number > 0 ? wrong(0.08 + 0.92 * Math.sqrt(number / mistakes)) : empty);
    const map = heatmap({
      rows: data.classes, columns: data.classes, value, width: tools.width, square: true, rowTitle: "true class", columnTitle: "predicted class",
      colour: (number, r, c) => (r === c ? rightColour(number) : wrongColour(number)),
      text: (number) => (number > 0 ? (share ? String(Math.round(100 * number)) : String(number)) : ""),
      describe: (r, c) => [r === c ? `${data.classes[r]}, recognised` : `${data.classes[r]} taken for ${data.classes[c]}`,
        `${count(data.counts[r][c])} of ${count(totals[r])} test samples (${percent(totals[r] ? data.counts[r][c] / totals[r] : null)})`],
    });
    const write = share ? (number) => percent(number, 0) : count;
    return [map, colourScale(rightColour, [0, most], ["right: 0", write(most)]), colourScale(wrongColour, [0, mistakes], ["wrong: 0", write(mistakes)], "square-root scale"),
      data.note ? make("p", { class: "note" }, data.note) : null];
  },
  table: (data) => ({ columns: ["true class", ...data.classes.map((name) => `said ${name}`)], rows: data.classes.map((name, r) => [name, ...data.counts[r]]) }),
};
