// Keyboard shortcuts, their list, and the buttons that copy a command. Without scripts neither is there.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");
  const list = document.getElementById("keys"), choice = document.getElementById("keys-on");
  const kept = (value) => { // a browser may refuse to keep anything
    try {
      if (value !== undefined) localStorage.setItem("hami-dra-keys", value);
      return localStorage.getItem("hami-dra-keys");
    } catch { return null; }
  };
  let on = kept() !== "off", last = "";
  choice.checked = on;
  choice.addEventListener("change", () => {
    on = choice.checked;
    kept(on ? "on" : "off");
  });
  document.getElementById("keys-open").addEventListener("click", () => list.showModal());

  const follow = (link) => link && link.click();
  const acts = {
    "?": () => list.showModal(),
    "/": () => document.getElementById("q")?.focus(),
    "[": () => follow(document.querySelector("a[rel=prev]")),
    "]": () => follow(document.querySelector("a[rel=next]")),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.id === "q") event.target.blur();
    if (!on || event.ctrlKey || event.metaKey || event.altKey || list.open) return;
    if (event.target.closest("input, select, textarea, [contenteditable]")) return;
    const before = last;
    last = event.key;
    const act = before === "g" ? () => follow(document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)) : acts[event.key];
    if (!act) return;
    last = "";
    event.preventDefault();
    act();
  });

  const copied = async (code) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent);
    getSelection().selectAllChildren(code); // plain HTTP: no clipboard, but what is selected can be copied
    if (!document.execCommand("copy")) throw new Error("not copied");
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    try {
      await copied(button.parentElement.querySelector("code"));
      button.textContent = button.dataset.done;
      setTimeout(() => { button.textContent = button.dataset.copy; }, 2000);
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    }
  });
})();
