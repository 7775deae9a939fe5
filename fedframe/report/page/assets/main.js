// The page: its sections in order, redrawn when the width, the theme or the data change.

const SHORT = {
  paired: "Differences", curves: "Curves", partition: "Split", spread: "Clients", classes: "Classes", confusion: "Confusion", features: "Features",
  gram: "Geometry", heads: "Classifiers", alike: "Nets", collapse: "Collapse", drift: "Drift", degeneration: "Degeneration", about: "Settings",
};

const page = {
  data: null,
  shells: [],

  start() {
    page.data = JSON.parse(document.getElementById("page-data").textContent);
    theme.start();
    page.build();
    theme.listeners.push(() => page.draw());
    let width = page.width();
    new ResizeObserver(() => {
      if (Math.abs(page.width() - width) < 4) return;
      width = page.width();
      page.draw();
    }).observe(document.getElementById("main"));
    if (page.data.live) setTimeout(live.ask, 1000);
  },

  width: () => document.getElementById("main").clientWidth,

  build() {
    page.shells = page.data.sections.map((section) => new Shell(section));
    document.getElementById("main").replaceChildren(...page.shells.map((shell) => shell.node));
    const links = page.data.sections.map(({ id, title }) => make("a", { href: `#${id}`, title }, SHORT[id] || title));
    document.getElementById("contents").replaceChildren(...links);
    page.say(page.data.state);
    page.follow(links);
    page.draw();
  },

  // Mark in the contents where the reader is.
  follow(links) {
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries.filter(({ isIntersecting }) => isIntersecting)) {
        links.forEach((link) => (link.hash === `#${entry.target.id}` ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
      }
    }, { rootMargin: "-20% 0px -70% 0px" });
    page.shells.forEach((shell) => watcher.observe(shell.node));
  },

  say(text) {
    document.getElementById("state").textContent = text || "";
  },

  // Section by section, so that the first ones are there while the last ones are still drawn.
  draw(shells = page.shells) {
    const turn = (page.turn = (page.turn || 0) + 1);
    delete document.documentElement.dataset.drawn;
    const next = (i) => {
      if (turn !== page.turn) return; // a newer drawing has begun
      if (i === shells.length) {
        document.documentElement.dataset.drawn = "all";
        return;
      }
      shells[i].draw();
      setTimeout(() => next(i + 1));
    };
    next(0);
  },

  update(data) {
    page.data = data;
    document.title = data.title;
    document.querySelector("h1").textContent = data.title;
    document.getElementById("subtitle").textContent = data.subtitle;
    page.say(data.state);
    const same = data.sections.length === page.shells.length && data.sections.every(({ id }, i) => id === page.shells[i].id);
    if (!same) return page.build();
    return page.draw(page.shells.filter((shell, i) => shell.update(data.sections[i])));
  },
};

page.start();
