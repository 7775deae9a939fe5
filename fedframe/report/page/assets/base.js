// What every other script uses: making elements, writing numbers, and the reader's choices.

const figures = {}; // by section: what draws it; each file in figures/ adds one

// Text goes in as text nodes only, so that no name in the data can become markup.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const DASH = "\u2013";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// How scores are written: shares in percent and their differences in points, errors as the numbers that they are.
const scoring = { share: true, sign: 1, task: "classification" };

const percent = (share, places = 1) => (!known(share) ? DASH : scoring.share ? `${(100 * share).toFixed(places)}\u00a0%` : number(share, 4));

const points = (value, places = 1) => (scoring.share ? (100 * value).toFixed(places) : number(value, 3));

function number(value, digits = 3) {
  if (!known(value)) return DASH;
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(digits)));
}

const whole = new Intl.NumberFormat("en"); // made once: figures write thousands of numbers
const count = (value) => (known(value) ? whole.format(Math.round(value)) : DASH);

function bytes(value) {
  if (!known(value)) return DASH;
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit ? Number(value.toPrecision(3)) : value}\u00a0${units[unit]}`;
}

function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)}\u00a0s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}\u00a0min ${String(Math.round(seconds % 60)).padStart(2, "0")}\u00a0s`;
  return `${Math.floor(seconds / 3600)}\u00a0h ${String(Math.round((seconds % 3600) / 60)).padStart(2, "0")}\u00a0min`;
}

// A mean with its interval: 93.1 % (91.2 to 95.0)
function interval(mean, low, high, write = percent) {
  if (!known(mean)) return DASH;
  const bare = (value) => write(value).replace("\u00a0%", "");
  return known(low) ? `${write(mean)} (${bare(low)} to ${bare(high)})` : write(mean);
}

const shorten = (text, most = 28) => (text.length > most ? `${text.slice(0, most - 1)}\u2026` : text);

const shortenMiddle = (text, most) => (text.length > most ? `${text.slice(0, Math.ceil(most / 3))}\u2026${text.slice(1 + Math.ceil(most / 3) - most)}` : text);

// Names for an axis: long ones on two lines, the settings below the method, cut in the middle; never two alike.
function axisNames(labels, most = 26) {
  const write = (label) => {
    const [first, ...rest] = label.split(", ");
    return label.length <= most || !rest.length ? shortenMiddle(label, most) : `${shortenMiddle(first, most)}\n${shortenMiddle(rest.join(", "), most)}`;
  };
  const names = new Map(labels.map((label) => [label, write(label)]));
  for (const alike of d3.group(labels, (label) => names.get(label)).values()) {
    if (alike.length < 2) continue;
    const same = d3.range(alike[0].length).findIndex((i) => alike.some((label) => label[i] !== alike[0][i]));
    const from = Math.max(0, (same < 0 ? alike[0].length : same) - 8); // where they part, and a few letters before
    alike.forEach((label) => names.set(label, `\u2026${shorten(label.slice(from), most)}`));
  }
  const text = (label) => names.get(label);
  const lines = [...names.values()].flatMap((name) => name.split("\n"));
  return { text, width: Math.max(...lines.map((line) => measure(line))), row: lines.length > names.size ? 38 : 30 };
}

// The reader's choices by section and control; they outlive every redraw, and a live page's news.
const choices = new Map();
