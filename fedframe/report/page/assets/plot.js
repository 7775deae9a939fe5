// The frame of all figures that Observable Plot draws: size, type, axes and tooltips alike everywhere.

function plot(options) {
  const narrow = options.width < 480;
  const drawn = Plot.plot({
    className: "plot",
    marginLeft: 48,
    marginRight: 16,
    marginTop: 24,
    marginBottom: 40,
    style: { background: "transparent", color: theme.style("--ink"), fontSize: "12px" },
    ...options,
    width: Math.max(220, Math.floor(options.width)),
    height: options.height || (narrow ? 260 : 340),
  });
  drawn.setAttribute("role", "img");
  return drawn;
}

const ruleColour = () => theme.style("--edge");
const gridX = (options = {}) => Plot.gridX({ stroke: ruleColour(), strokeOpacity: 1, ...options });
const gridY = (options = {}) => Plot.gridY({ stroke: ruleColour(), strokeOpacity: 1, ...options });
const tipLook = () => ({ fill: theme.style("--card"), stroke: theme.style("--edge"), textPadding: 9, lineHeight: 1.3, fontSize: 12 });
const percentAxis = { tickFormat: (value) => (scoring.share ? String(Number((100 * value).toFixed(2))) : number(value)), label: "accuracy (%)" };

// Ticks that do not crowd: fewer on a phone, whole numbers where only those exist.
const roundTicks = (width) => Math.max(3, Math.floor(width / 90));

const wholeTicks = ([low, high], width) => d3.ticks(low, high, roundTicks(width)).filter(Number.isInteger);

// No accuracy lies beyond 0 and 1, its interval may: what is drawn ends there, and a sentence says so.
const within = (value) => Math.max(0, Math.min(1, value));
const cutNote = (rows) => (rows.some(({ low, high }) => known(low) && (low < -1e-9 || high > 1 + 1e-9))
  ? make("p", { class: "note cut" }, "Intervals that reach beyond 0 or 100 % are cut there; the table has them in full.") : null);

/* Lines that lie on each other hide each other: they are drawn in turns, a piece of each, and their dots as rings.
   Of lines [{x, y, label}, ...]: by label the dashes and the dot's radius, and a sentence on who lies on whom. */
const TURN = 8; // pixels of a piece

function inTurns(lines, share = true) {
  const [low, high] = d3.extent(lines.flat().flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]));
  const width = 0.005 * Math.min(high - low, share ? 1 : Infinity); // about that of a line
  // The share of the points that two lines have in common.
  const alike = (a, b, most) => (a.length === b.length ? d3.mean(a, (p, k) => p.x === b[k].x && Math.abs(p.y - b[k].y) <= most) : 0);
  const bundles = [];
  for (const line of lines) {
    const bundle = bundles.find(([first]) => alike(first, line, width) >= 0.5);
    if (bundle) bundle.push(line);
    else bundles.push([line]);
  }
  const several = bundles.filter((bundle) => bundle.length > 1);
  const place = new Map(several.flatMap((bundle) => bundle.map((line, k) => [line[0].label, [k, bundle.length]])));
  const sentences = several.map((bundle) => {
    const all = (most) => bundle.every((line) => alike(bundle[0], line, most) === 1);
    const how = all(0) ? "Equal" : all(width) ? "Too close to tell apart" : "Equal or very close in most places";
    return `${how}, and drawn in turns: ${bundle.map(([{ label }]) => label).join("; ")}.`;
  });
  return {
    dash: (label, otherwise) => (place.get(label)?.[0] ? `${TURN * (place.get(label)[1] - place.get(label)[0])} ${TURN * place.get(label)[0]}` : otherwise),
    radius: (label, r) => (place.has(label) ? r + 2 * (place.get(label)[1] - 1 - place.get(label)[0]) : r),
    note: sentences.length ? make("p", { class: "note turns" }, sentences.join(" ")) : null,
  };
}

// The points of the lines that are not hidden; `colourOf` gives a line's place in the colours.
function linePoints(panel, over, hidden, colourOf = (i) => i) {
  const [column] = OVER[over];
  return panel.series.flatMap((line, i) =>
    hidden.has(line.label) ? [] : line.points.map((p) => ({ x: p[column], round: p[0], y: p[3], low: p[4], high: p[5], label: line.label, i: colourOf(i) })));
}

const linesOf = (points) => d3.groups(points, (p) => p.label).map(([, line]) => line);

// What must be said below lines: who lies on whom, and what was cut.
function lineNotes(panel, over, hidden) {
  const points = linePoints(panel, over, hidden);
  return [inTurns(linesOf(points), panel.share).note, panel.share ? cutNote(points) : null];
}

/* Lines with their intervals; options: panel {series, share, label}, over, width, height, hidden (labels), zero, least (what the y axis reaches). */
const OVER = { rounds: [0, "round"], seconds: [1, "seconds of training"], megabytes: [2, "megabytes sent and received"] };

function lineChart({ panel, over = "rounds", width, height, hidden = new Set(), zero = false, least = null, colourOf = (i) => i }) {
  const [, xLabel] = OVER[over];
  const write = panel.share ? (value) => percent(value) : (value) => number(value, 4);
  const points = linePoints(panel, over, hidden, colourOf);
  if (!points.length) return make("p", { class: "missing" }, "All lines are hidden; choose one above.");
  const stops = d3.groups(points, (p) => p.x).map(([x, here]) => ({
    x, y: d3.mean(here, (p) => p.y),
    title: [over === "rounds" ? `round ${here[0].round}` : `${number(x, 4)} ${xLabel} (round ${here[0].round})`,
      ...d3.sort(here, (p) => -p.y).map((p) => `${shortenMiddle(p.label, 40)}: ${interval(p.y, p.low, p.high, write)}`)].join("\n"),
  }));
  const clamp = panel.share ? within : (value) => value;
  const few = points.length / panel.series.length <= 15;
  const ticks = height < 240 ? 4 : 6;
  const stroke = (p) => theme.series(p.i);
  const groups = linesOf(points);
  const turns = inTurns(groups, panel.share);
  return plot({
    width, height, r: { type: "identity" },
    x: over === "rounds" ? { label: xLabel, ticks: wholeTicks(d3.extent(points, (p) => p.x), width), tickFormat: count } : { label: xLabel, ticks: roundTicks(width), nice: true },
    y: { nice: true, zero, ...(panel.share ? percentAxis : { label: panel.label, tickFormat: (value) => number(value, 3) }), ticks, labelArrow: "none" },
    marks: [
      gridY({ ticks }),
      least === null ? null : Plot.ruleY([least], { stroke: "none" }), // stretches the axis
      Plot.areaY(points.filter((p) => known(p.low)), { x: "x", y1: (p) => clamp(p.low), y2: (p) => clamp(p.high), z: "label", fill: stroke, fillOpacity: 0.16, clip: true }),
      ...groups.map((line) => Plot.line(line, { x: "x", y: "y", stroke: stroke(line[0]), strokeWidth: 2.2, strokeLinejoin: "round", strokeDasharray: turns.dash(line[0].label, theme.dash(line[0].i)) })),
      few ? Plot.dot(points, { x: "x", y: "y", fill: stroke, r: (p) => turns.radius(p.label, 3) }) : null,
      Plot.ruleX(stops, Plot.pointerX({ x: "x", stroke: theme.style("--dim"), strokeDasharray: "3 3", maxRadius: Infinity })),
      Plot.dot(points, Plot.pointerX({ x: "x", y: "y", fill: stroke, r: 4, maxRadius: Infinity })),
      Plot.tip(stops, Plot.pointerX({ x: "x", y: "y", title: "title", maxRadius: Infinity, ...tipLook() })),
    ],
  });
}

// The numbers behind lines, one row per line and round.
function lineTable(panels) {
  const rows = panels.flatMap((panel) => panel.series.flatMap((line) => line.points.map((p) => [panel.label, line.label, ...p])));
  return { columns: ["figure", "line", "round", "seconds", "megabytes", "mean", "low (95 %)", "high (95 %)"], rows };
}
