// While a run goes on: ask for news, and redraw what has changed. Choices and open tables stay as they are.

const live = {
  tag: "",
  failures: 0,
  async ask() {
    try {
      const answer = await fetch("data.json", { cache: "no-store", headers: live.tag ? { "If-None-Match": live.tag } : {} });
      if (answer.status === 200) {
        live.tag = answer.headers.get("ETag") || "";
        page.update(await answer.json());
      }
      if (live.failures) page.say(page.data.state);
      live.failures = 0;
    } catch {
      live.failures += 1;
      if (live.failures > 2) page.say("no connection to fedframe watch");
    }
    setTimeout(live.ask, document.hidden ? 10000 : 2000);
  },
};
