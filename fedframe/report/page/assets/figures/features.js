// Features on a plane: the same points by class or by client, one of them set apart on request.

const MOST_NAMED = 16; // categories with a legend of their own

figures.features = {
  controls(data) {
    const by = choices.get("features.by") || "class";
    const names = categories(data, by);
    return [
      { key: "by", label: "Colour by", options: [["class", "class"], ["client", "client"]] },
      { key: "highlight", label: "Set apart", options: [["all", "nobody"], ...names.map(({ key, name }) => [`${by}:${key}`, `${by} ${name}`])] },
    ];
  },
  draw(data, tools) {
    const by = tools.get("by");
    const names = categories(data, by);
    const index = new Map(names.map(({ key }, i) => [key, i]));
    const apart = tools.get("highlight") === "all" ? null : tools.get("highlight").slice(by.length + 1);
    const points = data.x.map((x, i) => ({ x, y: data.y[i], key: String(data[by][i]), title: `class ${data.classes[data.class[i]] ?? data.class[i]}\nclient ${data.clients[data.client[i]]}` }));
    const colour = (p) => (apart !== null && p.key !== apart ? theme.style("--edge") : theme.category(index.get(p.key), names.length));
    const shown = apart === null ? points : d3.sort(points, (p) => p.key === apart);
    const [w, h] = [d3.extent(data.x), d3.extent(data.y)].map(([low, high]) => high - low || 1);
    const height = Math.max(260, Math.min(620, tools.width * Math.min(0.7, Math.max(0.45, h / w))));
    const legend = names.length <= MOST_NAMED ? make("div", { class: "legend" }, names.map(({ key, name }) => {
      const patch = make("i", { "aria-hidden": "true" });
      patch.style.background = theme.category(index.get(key), names.length);
      return make("span", {}, patch, shorten(name));
    })) : make("p", { class: "small-read" }, `${names.length} colours are more than an eye can tell apart: point at a sample for its ${by}, or set one apart.`);
    return [legend, plot({
      width: tools.width, height, margin: 8, marginTop: 8, marginBottom: 8, marginLeft: 8, marginRight: 8, inset: 14,
      x: { axis: null }, y: { axis: null },
      marks: [
        Plot.frame({ stroke: ruleColour(), rx: 6 }),
        Plot.dot(shown, { x: "x", y: "y", fill: colour, fillOpacity: 0.8, r: data.x.length > 800 ? 2.4 : 3.5 }),
        by === "class" && names.length <= 24 && apart === null ? Plot.text(names.map(({ key, name }) => ({ name: shorten(name, 14), ...middle(points.filter((p) => p.key === key)) })), { x: "x", y: "y", text: "name", fontWeight: 700, fontSize: 13, fill: theme.style("--ink"), stroke: theme.style("--card"), strokeWidth: 4 }) : null,
        Plot.dot(shown, Plot.pointer({ x: "x", y: "y", stroke: theme.style("--ink"), strokeWidth: 1.5, r: 5 })),
        Plot.tip(shown, Plot.pointer({ x: "x", y: "y", title: "title", ...tipLook() })),
      ],
    }), make("p", { class: "note" }, `${count(data.x.length)} training samples, by ${data.method}. Distances on the plane are rough: nearness is telling, size and distance of clusters are not.`)];
  },
  table: (data) => ({ columns: ["x", "y", "class", "client"], rows: data.x.map((x, i) => [x, data.y[i], data.classes[data.class[i]] ?? data.class[i], data.clients[data.client[i]]]) }),
};

// Where a name stands: in the middle of its points, which few stray ones do not move.
const middle = (points) => ({ x: d3.median(points, (p) => p.x), y: d3.median(points, (p) => p.y) });

function categories(data, by) {
  const keys = d3.sort(new Set(data[by]));
  return keys.map((key) => ({ key: String(key), name: String(by === "class" ? data.classes[key] ?? key : data.clients[key]) }));
}
