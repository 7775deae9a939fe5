// A heat map on a canvas: one pass over its pixels, whatever the number of cells; hover, touch and arrow keys read it.

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif';
const measure = (() => {
  const context = document.createElement("canvas").getContext("2d");
  return (text, font = FONT) => {
    context.font = font;
    return context.measureText(text).width;
  };
})();

/* options: rows, columns (names), value(r, c), colour(value, r, c), describe(r, c) -> lines of the tooltip,
   width, cellHeight, square, rowTitle, columnTitle, text(r, c) for numbers in cells, above and beside (bars). */
function heatmap(options) {
  const { rows, columns, width } = options;
  const rowWords = rows.map((name) => shorten(String(name), 18));
  const columnWords = columns.map((name) => shorten(String(name), 16));
  const left = Math.ceil(Math.min(Math.max(...rowWords.map((word) => measure(word)), 10) + 10, width * 0.34)) + 18;
  const right = options.beside ? 92 : 8;
  const above = options.above ? 70 : 6;
  const room = width - left - right;
  const cellW = Math.min(room / columns.length, options.square ? 38 : 64);
  const cellH = options.square ? cellW : options.cellHeight;
  const [w, h] = [cellW * columns.length, cellH * rows.length];
  const longest = Math.max(...columnWords.map((word) => measure(word)));
  const turned = longest + 8 > cellW && !columns.every((name) => /^\d+$/.test(String(name)));
  const below = (turned ? Math.min(longest, 110) * 0.72 + 14 : 22) + 18;
  const [fullW, fullH] = [Math.ceil(left + w + right), Math.ceil(above + h + below)];

  const ratio = window.devicePixelRatio || 1;
  const canvas = make("canvas", { width: Math.round(fullW * ratio), height: Math.round(fullH * ratio), tabindex: "0", role: "img", "aria-label": options.label || "Heat map; arrow keys move from cell to cell." });
  canvas.style.width = `${fullW}px`;
  canvas.style.height = `${fullH}px`;
  const context = canvas.getContext("2d");
  paintCells(context, options, { left, above, cellW, cellH, ratio });
  context.scale(ratio, ratio);
  context.font = FONT;
  const place = { left, above, w, h, cellW, cellH, turned, fullH, right };
  writeLabels(context, options, rowWords, columnWords, place);
  if (options.text && cellW >= 24 && cellH >= 15) writeNumbers(context, options, place);
  if (options.above) barsAbove(context, options.above, place);
  if (options.beside) barsBeside(context, options.beside, place);
  return followPointer(canvas, options, place);
}

const parsed = new Map(); // a ramp has few colours: each is read once
const rgb = (colour) => parsed.get(colour) || parsed.set(colour, d3.rgb(colour)).get(colour);

function paintCells(context, { rows, columns, value, colour }, { left, above, cellW, cellH, ratio }) {
  const [x0, y0] = [Math.round(left * ratio), Math.round(above * ratio)];
  const [w, h] = [Math.round(cellW * columns.length * ratio), Math.round(cellH * rows.length * ratio)];
  if (w < 1 || h < 1) return;
  const image = context.createImageData(w, h);
  const empty = d3.rgb(theme.style("--absent"));
  const [gapX, gapY] = [cellW * ratio >= 7 ? Math.round(ratio) : 0, cellH * ratio >= 7 ? Math.round(ratio) : 0];
  const firstRow = new Int32Array(rows.length + 1).map((_, r) => Math.round((r * h) / rows.length));
  const firstColumn = new Int32Array(columns.length + 1).map((_, c) => Math.round((c * w) / columns.length));
  for (let r = 0; r < rows.length; r++) {
    if (firstRow[r] === firstRow[r + 1]) continue; // more rows than pixels
    for (let c = 0; c < columns.length; c++) {
      if (firstColumn[c] === firstColumn[c + 1]) continue;
      const number = value(r, c);
      const paint = known(number) ? rgb(colour(number, r, c)) : empty;
      const [bottom, end] = [Math.max(firstRow[r] + 1, firstRow[r + 1] - gapY), Math.max(firstColumn[c] + 1, firstColumn[c + 1] - gapX)];
      for (let y = firstRow[r]; y < bottom; y++) {
        for (let x = firstColumn[c], at = 4 * (y * w + x); x < end; x++, at += 4) {
          image.data[at] = paint.r;
          image.data[at + 1] = paint.g;
          image.data[at + 2] = paint.b;
          image.data[at + 3] = 255;
        }
      }
    }
  }
  context.putImageData(image, x0, y0);
}

function writeLabels(context, options, rowWords, columnWords, { left, above, w, h, cellW, cellH, turned, fullH }) {
  const [ink, dim] = [theme.style("--ink"), theme.style("--dim")];
  context.fillStyle = ink;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const rowStep = Math.max(1, Math.ceil(14 / cellH));
  for (let r = 0; r < rowWords.length; r += rowStep) context.fillText(rowWords[r], left - 6, above + (r + 0.5) * cellH, left - 22);
  const widest = Math.max(...columnWords.map((word) => measure(word)));
  const columnStep = niceStep((turned ? 14 : widest + 8) / cellW);
  for (let c = 0; c < columnWords.length; c += columnStep) {
    const x = left + (c + 0.5) * cellW;
    context.save();
    context.translate(x, above + h + (turned ? 8 : 12));
    if (turned) context.rotate(-Math.PI / 4);
    context.textAlign = turned ? "right" : "center";
    context.fillText(columnWords[c], 0, 0, 150);
    context.restore();
  }
  context.fillStyle = dim;
  context.textAlign = "center";
  context.fillText(options.columnTitle, left + w / 2, fullH - 8);
  context.save();
  context.translate(8, above + h / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(options.rowTitle, 0, 0);
  context.restore();
}

const niceStep = (needed) => [1, 2, 5, 10, 20, 25, 50, 100, 200, 500].find((step) => step >= needed) || 1000;

function writeNumbers(context, { rows, columns, value, colour, text }, { left, above, cellW, cellH }) {
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = FONT.replace("12px", "11px");
  for (let r = 0; r < rows.length; r++) {
    for (let c = 0; c < columns.length; c++) {
      const number = value(r, c);
      const word = known(number) ? text(number, r, c) : "";
      if (!word || measure(word) > cellW) continue;
      context.fillStyle = d3.lab(colour(number, r, c)).l > 58 ? "#10151b" : "#ffffff";
      context.fillText(word, left + (c + 0.5) * cellW - 0.5, above + (r + 0.5) * cellH);
    }
  }
}

function barsAbove(context, { values, label }, { left, above, cellW }) {
  const most = Math.max(...values, 1);
  context.fillStyle = theme.style("--dim");
  context.textAlign = "left";
  context.fillText(`${label}, up to ${count(most)}`, left, above - 61);
  context.globalAlpha = 0.55;
  values.forEach((value, i) => {
    const height = (42 * value) / most;
    context.fillRect(left + i * cellW, above - 6 - height, Math.max(cellW - (cellW > 4 ? 1 : 0), 0.6), height);
  });
  context.globalAlpha = 1;
}

function barsBeside(context, { values, label }, { left, above, w, h, cellH }) {
  const [most, start] = [Math.max(...values, 1), left + w + 8];
  context.fillStyle = theme.style("--dim");
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(label, start, above + h + 12);
  values.forEach((value, i) => {
    const length = (44 * value) / most;
    context.globalAlpha = 0.55;
    context.fillRect(start, above + i * cellH, length, Math.max(cellH - 1, 0.6));
    context.globalAlpha = 1;
    if (cellH >= 12) context.fillText(count(value), start + length + 4, above + (i + 0.5) * cellH);
  });
}

function followPointer(canvas, { rows, columns, describe }, { left, above, cellW, cellH, w, h }) {
  const here = make("div", { class: "here", hidden: true });
  const holder = make("div", { class: "heat" }, canvas, here);
  let [row, column] = [0, 0];
  const point = (x, y) => {
    here.hidden = false;
    here.style.cssText = `left:${left + column * cellW - 1}px;top:${above + row * cellH - 1}px;width:${cellW + 1}px;height:${cellH + 1}px`;
    const lines = describe(row, column);
    tooltip.show(lines, x, y);
    canvas.setAttribute("aria-label", lines.join(", "));
  };
  const leave = () => {
    here.hidden = true;
    tooltip.hide();
  };
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = [event.offsetX - left, event.offsetY - above];
    if (x < 0 || y < 0 || x >= w || y >= h) return leave();
    [row, column] = [Math.min(rows.length - 1, Math.floor(y / cellH)), Math.min(columns.length - 1, Math.floor(x / cellW))];
    return point(event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") return leave();
    if (!step) return undefined;
    event.preventDefault();
    row = Math.max(0, Math.min(rows.length - 1, row + step[0]));
    column = Math.max(0, Math.min(columns.length - 1, column + step[1]));
    const box = canvas.getBoundingClientRect();
    return point(box.left + left + (column + 1) * cellW, box.top + above + (row + 1) * cellH);
  });
  return holder;
}

// The colours of a heat map with the values they stand for.
function colourScale(colour, [low, high], [lowText, highText], label) {
  const ratio = window.devicePixelRatio || 1;
  const canvas = make("canvas", { width: Math.round(120 * ratio), height: Math.round(10 * ratio), "aria-hidden": "true" });
  canvas.style.width = "120px";
  canvas.style.height = "10px";
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = colour(low + ((high - low) * x) / (canvas.width - 1));
    context.fillRect(x, 0, 1, canvas.height);
  }
  return make("div", { class: "scale" }, make("span", {}, lowText), canvas, make("span", {}, highText), label ? make("span", {}, label) : null);
}
