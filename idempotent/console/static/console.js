"use strict";
// Keeps numbers current every five seconds, and loads the page again when what it waits for has ended.
async function refresh() {
  const marked = [...document.querySelectorAll("[data-live], [data-busy]")];
  if (!marked.length || document.hidden) return;
  const answer = await fetch("/live", { headers: { accept: "application/json" }, redirect: "error" });
  if (!answer.ok) return;
  const live = await answer.json();
  for (const element of marked) {
    const text = live[element.dataset.live];
    if (text !== undefined && element.textContent !== text) element.textContent = text;
    if (element.dataset.busy && live[element.dataset.busy] === false) location.reload();
  }
}
const waits = document.querySelector("[data-busy]:not([data-busy=''])");
setInterval(() => refresh().catch(() => undefined), waits ? 1000 : 5000);
