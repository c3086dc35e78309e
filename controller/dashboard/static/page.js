// Tells whether the page is live, keeps ages and the badge up to date, and leaves when the page may no longer be viewed. Putting
// fragments in place is htmx's work.
"use strict";
(() => {
  const sign = document.getElementById("live"), badge = document.getElementById("badge");
  if (!sign) return;
  const say = (state) => {
    sign.dataset.state = state;
    sign.textContent = sign.dataset[state];
  };
  say("off");
  document.addEventListener("htmx:sse:after:connection", () => say("on"));
  document.addEventListener("htmx:sse:error", () => say("off"));
  // a filter replaces the stream: the old one closes after the new one is open
  document.addEventListener("htmx:sse:close", (event) => event.target.isConnected && say("off"));
  document.addEventListener("htmx:error", () => say("off"));
  document.addEventListener("gone", () => say("gone"));
  document.addEventListener("signed-out", () => location.assign(location.href));
  document.addEventListener("pending", (event) => {
    if (!badge) return;
    badge.textContent = event.detail.data;
    badge.hidden = event.detail.data === "0";
  });
  document.addEventListener("submit", (event) => {
    const next = event.target.elements.next;
    if (next) next.value = location.pathname + location.search;
  });

  // a filter or a sorted column has put another view in place
  let main = document.getElementById("main");
  new MutationObserver(() => {
    const now = document.getElementById("main");
    if (now && now !== main) history.replaceState(null, "", now.dataset.here);
    main = now || main;
  }).observe(document.body, { childList: true });

  // as kubectl writes ages, and wording.age
  const steps = [[120, "s", 1, "", 0], [600, "m", 60, "s", 1], [10800, "m", 60, "", 0], [28800, "h", 3600, "m", 60],
    [172800, "h", 3600, "", 0], [691200, "d", 86400, "h", 3600], [Infinity, "d", 86400, "", 0]];
  const age = (seconds) => {
    const [, unit, of, part, parts] = steps.find(([limit]) => seconds < limit);
    const rest = parts ? Math.floor((seconds % of) / parts) : 0;
    return Math.floor(seconds / of) + unit + (rest ? rest + part : "");
  };
  setInterval(() => {
    for (const each of document.querySelectorAll("time.age")) {
      const seconds = Math.max(Math.floor((Date.now() - Date.parse(each.dateTime)) / 1000), 0);
      if (Number.isFinite(seconds)) each.textContent = age(seconds);
    }
  }, 5000);
})();
