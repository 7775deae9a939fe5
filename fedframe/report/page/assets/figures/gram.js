// Cosines between class vectors, and how all pairs lie around the ideal.

figures.gram = {
  controls: () => [{ key: "show", label: "Show", options: [["cosine", "cosine"], ["difference", "minus ideal"], ["ideal", "ideal"]] }],
  draw(data, tools) {
    const show = tools.get("show");
    const value = (r, c) => {
      const ideal = r === c ? 1 : data.ideal;
      return show === "ideal" ? ideal : show === "difference" ? data.cosines[r][c] - ideal : data.cosines[r][c];
    };
    const off = d3.range(data.classes.length).flatMap((r) => d3.range(r).map((c) => ({ value: data.cosines[r][c], pair: `${data.classes[c]} and ${data.classes[r]}` }))).filter((pair) => known(pair.value));
    const reach = show === "difference" ? Math.max(0.05, d3.max(off, (pair) => Math.abs(pair.value - data.ideal)) || 0) : 1;
    const ramp = theme.ramp("diverging");
    const colour = (number) => ramp(0.5 + number / (2 * reach));
    const map = heatmap({
      rows: data.classes, columns: data.classes, value, colour, width: tools.width, square: true, rowTitle: "class", columnTitle: "class",
      text: (number) => (data.classes.length <= 12 ? number.toFixed(2).replace("0.", ".").replace("1.00", "1") : ""),
      describe: (r, c) => [`${data.classes[r]} and ${data.classes[c]}`, `cosine ${number(data.cosines[r][c])}`, `ideal ${number(r === c ? 1 : data.ideal)}`,
        data.norms.length && r === c ? `length ${number(data.norms[r])}` : ""].filter(Boolean),
    });
    return [map, colourScale(colour, [-reach, reach], [number(-reach, 2), number(reach, 2)]), off.length ? pairs(data, off, tools) : null,
      data.note ? make("p", { class: "note" }, data.note) : null];
  },
  table: (data) => ({ columns: ["class", "length", ...data.classes], rows: data.classes.map((name, r) => [name, data.norms[r] ?? null, ...data.cosines[r]]) }),
};

function pairs(data, off, tools) {
  return make("div", {}, make("h3", {}, `${off.length === 1 ? "The one pair" : `All ${count(off.length)} pairs: mean`} ${number(data.mean)}, ideal ${number(data.ideal)}`), plot({
    width: tools.width, height: 130, marginTop: 22, marginLeft: 16,
    x: { label: "cosine between two classes", domain: [Math.min(-0.5, data.ideal, d3.min(off, (pair) => pair.value)), Math.max(0.5, d3.max(off, (pair) => pair.value))], nice: true, ticks: 6 },
    y: { axis: null },
    marks: [
      Plot.rectY(off, Plot.binX({ y: "count" }, { x: "value", fill: theme.series(0), fillOpacity: 0.55, interval: 0.025, tip: { title: undefined, ...tipLook() } })),
      Plot.ruleX([data.ideal], { stroke: theme.series(1), strokeWidth: 2 }),
      Plot.text(["ideal"], { x: [data.ideal], frameAnchor: "top", dy: -14, fill: theme.series(1), fontWeight: 600 }),
      Plot.ruleY([0], { stroke: ruleColour() }),
    ],
  }));
}
