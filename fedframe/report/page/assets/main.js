// The page: its sections in order, redrawn when the width, the theme or the data change.

const SHORT = {
  essentials: "Essentials", gain: "Gain", measures: "Measures", paired: "Differences", curves: "Curves", partition: "Split", spread: "Clients", classes: "Classes", confusion: "Confusion", features: "Features",
  gram: "Geometry", heads: "Classifiers", alike: "Nets", collapse: "Collapse", drift: "Drift", degeneration: "Degeneration", about: "Settings",
};

const whenIdle = window.requestIdleCallback ? (task) => requestIdleCallback(task, { timeout: 300 }) : (task) => setTimeout(task, 20);

const page = {
  data: null,
  shells: [],
  links: [],

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
    addEventListener("beforeprint", () => page.shells.forEach((shell) => shell.stale && shell.draw()));
    if (page.data.live) setTimeout(live.ask, 1000);
  },

  width: () => document.getElementById("main").clientWidth,

  build() {
    Object.assign(scoring, page.data.scoring);
    percentAxis.label = scoring.share ? `${page.data.metric} (%)` : page.data.metric;
    page.shells = page.filled().map((section) => new Shell(section));
    page.rest = make("section", { id: "not-shown", class: "card empty", "aria-label": "What is not on this page" });
    document.getElementById("main").replaceChildren(...page.shells.map((shell) => shell.node), page.rest);
    page.listRest();
    page.showProgress();
    page.list();
    page.say(page.data.state);
    page.follow();
    page.draw();
  },

  filled: () => page.data.sections.filter(({ missing }) => !missing),

  // What is missing stands in one place at the end of the page, and says why, once for each reason.
  listRest() {
    const reasons = d3.group(page.data.sections.filter(({ missing }) => missing), ({ missing }) => missing);
    page.rest.hidden = !reasons.size;
    const rows = [...reasons].map(([reason, sections]) =>
      make("li", {}, sections.flatMap(({ id, title }, i) => [i ? ", " : "", make("b", { id }, title)]), `. ${reason}`));
    page.rest.replaceChildren(make("h2", {}, "Not on this page"), make("ul", {}, rows));
  },

  // While a run goes on: a bar of its rounds, and the time that is left.
  showProgress() {
    const place = document.getElementById("progress");
    const { progress } = page.data;
    place.hidden = !progress;
    if (!progress) return;
    const left = known(progress.left) ? `, about ${duration(progress.left)} left` : "";
    place.replaceChildren(make("progress", { max: progress.total, value: progress.done, "aria-label": "Rounds" }),
      make("span", {}, `${count(progress.done)} of ${count(progress.total)} rounds${left}`));
  },

  // The contents: what there is to see.
  list() {
    page.links = page.filled().map(({ id, title }) => make("a", { href: `#${id}`, title }, SHORT[id] || title));
    document.getElementById("contents").replaceChildren(...page.links);
  },

  // Mark in the contents where the reader is.
  follow() {
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries.filter(({ isIntersecting }) => isIntersecting)) {
        page.links.forEach((link) => (link.hash === `#${entry.target.id}` ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
      }
    }, { rootMargin: "-20% 0px -70% 0px" });
    // Somebody who scrolls faster than the idle browser draws does not wait.
    const drawer = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        const shell = page.shells.find(({ node }) => node === target);
        if (isIntersecting && shell?.stale) shell.draw();
      }
    });
    page.shells.forEach(({ node }) => [watcher, drawer].forEach((each) => each.observe(node)));
  },

  say(text) {
    document.getElementById("state").textContent = text || "";
  },

  draw(shells = page.shells) {
    shells.forEach((shell) => (shell.stale = true));
    delete document.documentElement.dataset.drawn;
    if (!page.working) page.work();
  },

  // What can be seen is drawn first, one figure a turn; the rest when the browser has nothing else to do. So a page of
  // a thousand clients can be read before its last figure is there.
  work() {
    const stale = page.shells.filter((shell) => shell.stale);
    const near = stale.find((shell) => shell.near());
    page.working = stale.length > 0;
    if (!near) document.documentElement.dataset.drawn = stale.length ? "seen" : "all";
    if (near) {
      near.draw();
      setTimeout(page.work);
    } else if (stale.length) {
      whenIdle(() => {
        if (stale[0].stale) stale[0].draw();
        page.work();
      });
    }
  },

  update(data) {
    page.data = data;
    document.title = data.title;
    document.querySelector("h1").textContent = data.title;
    document.getElementById("subtitle").textContent = data.subtitle;
    page.say(data.state);
    const filled = page.filled();
    const same = filled.length === page.shells.length && filled.every(({ id }, i) => id === page.shells[i].id);
    if (!same) return page.build();
    page.listRest();
    page.showProgress();
    return page.draw(page.shells.filter((shell, i) => shell.update(filled[i])));
  },
};

page.start();
