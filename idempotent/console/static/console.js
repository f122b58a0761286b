"use strict";
// Keeps numbers current every five seconds, and loads the page again when what it waits for has ended.
// The overview has all of them.
async function refresh() {
  const marked = document.querySelectorAll("[data-live], [data-busy]");
  if (!marked.length || document.hidden) return;
  const answer = await fetch("/", { redirect: "error" });
  if (!answer.ok) return;
  const overview = new DOMParser().parseFromString(await answer.text(), "text/html");
  const live = new Map([...overview.querySelectorAll("[data-live]")].map((each) => [each.dataset.live, each.textContent]));
  for (const element of marked) {
    if (live.get(element.dataset.busy) === "") return location.reload();
    const text = live.get(element.dataset.live);
    if (text !== undefined && element.textContent !== text) element.textContent = text;
  }
}
const waits = document.querySelector("[data-busy]");
setInterval(() => refresh().catch(() => undefined), waits ? 1000 : 5000);
