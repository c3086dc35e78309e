// Tells whether the page is live, and leaves it when it may no longer be looked at. Putting fragments in place is htmx's work.
"use strict";
(() => {
  const main = document.getElementById("main");
  const sign = document.getElementById("live");
  if (!main || !sign) return;
  const say = (state) => {
    sign.dataset.state = state;
    sign.textContent = sign.dataset[state];
  };
  say("off");
  main.addEventListener("htmx:sse:after:connection", () => say("on"));
  main.addEventListener("htmx:sse:error", () => say("off"));
  main.addEventListener("htmx:sse:close", () => say("off"));
  main.addEventListener("htmx:error", () => say("off"));
  main.addEventListener("gone", () => say("gone"));
  main.addEventListener("signed-out", () => location.assign(location.href));
})();
