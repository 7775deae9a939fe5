// Light and dark: follows the system until the reader decides; colours that colour-blind readers can tell apart.

// The same as in fedframe/report/canvas.py; a test holds them to contrast, and to being told apart by all eyes.
const SERIES = {
  light: ["#12479e", "#e0660a", "#0a9a72", "#c9499c", "#5a4108", "#2b93c4", "#7a5fd0", "#3c434c"],
  dark: ["#4a94ff", "#d9661f", "#45e09a", "#dd5aa9", "#f6dc55", "#7fdcf8", "#b49cf2", "#dfe3e8"],
};
const DASHES = [null, "7 3", "2 3", "9 3 2 3"]; // tell lines apart when colours come round again, or cannot be seen
const RAMPS = {
  light: {
    sequential: ["#edf3fa", "#b9d3ee", "#6fa6d9", "#2a72b5", "#0a3a70"],
    mistakes: ["#fdf1e7", "#f8c99c", "#e98b3e", "#bd5506", "#7a3300"],
    diverging: ["#8a3a00", "#dd8136", "#f4cfa9", "#f5f6f7", "#aecdea", "#4288c9", "#0a3a70"],
  },
  dark: {
    sequential: ["#182231", "#1d3f68", "#2b6cab", "#62a7e6", "#d3e8ff"],
    mistakes: ["#2a1e15", "#6b3a10", "#b9651b", "#f19a4d", "#ffdcb8"],
    diverging: ["#ffc48a", "#d9802f", "#6b3f17", "#20272f", "#1f446e", "#3f86cc", "#b5dbff"],
  },
};

const theme = {
  name: "light",
  listeners: [],
  ramps: {},
  style: (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
  series: (i) => SERIES[theme.name][i % SERIES.light.length],
  dash: (i) => DASHES[Math.floor(i / SERIES.light.length) % DASHES.length],
  // Many categories: hues around the wheel, light and dark in turn, so that neighbours differ in both.
  category: (i, total) =>
    total <= SERIES.light.length ? theme.series(i) : d3.hcl((360 * i) / total, 60, (theme.name === "dark" ? 64 : 42) + (i % 2 ? 20 : 0)).formatHex(),
  // 256 steps are as fine as a screen shows, and made once: a heat map asks a hundred thousand times.
  ramp(kind) {
    const steps = (theme.ramps[`${theme.name} ${kind}`] ??= d3.quantize(d3.interpolateRgbBasis(RAMPS[theme.name][kind]), 256));
    return (t) => steps[Math.max(0, Math.min(255, Math.round(255 * t)))];
  },
  apply(name) {
    theme.name = name;
    document.documentElement.dataset.theme = name;
    const button = document.getElementById("theme");
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${name === "dark" ? "light" : "dark"} theme`);
    theme.listeners.forEach((listener) => listener());
  },
  start() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let chosen = null;
    try { chosen = localStorage.getItem("fedframe-theme"); } catch { /* pages from disk may have no storage */ }
    theme.apply(chosen || (dark.matches ? "dark" : "light"));
    dark.addEventListener("change", () => chosen || theme.apply(dark.matches ? "dark" : "light"));
    document.getElementById("theme").addEventListener("click", () => {
      chosen = theme.name === "dark" ? "light" : "dark";
      try { localStorage.setItem("fedframe-theme", chosen); } catch { /* then the choice lasts as long as the page */ }
      theme.apply(chosen);
    });
  },
};
