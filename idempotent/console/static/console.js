"use strict";
// Keeps the numbers of this page current, and loads it again when what it waits for has ended.
const waits = document.querySelector("[data-busy]");
const marked = document.querySelectorAll("[data-live]");
async function refresh() {
  const answer = await fetch(location.href, { headers: { "x-poll": "1" }, redirect: "error" });
  if (answer.status >= 500) return;
  const now = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (waits && !now.querySelector("[data-busy]")) return location.reload();
  const live = new Map([...now.querySelectorAll("[data-live]")].map((each) => [each.dataset.live, each.textContent]));
  for (const element of marked) {
    const text = live.get(element.dataset.live);
    if (text !== undefined && element.textContent !== text) element.textContent = text;
  }
}
// The next question is asked after the answer: a console that is slow gets no more of them.
async function keep() {
  if (!document.hidden) await refresh().catch(() => undefined);
  setTimeout(keep, waits ? 1000 : 5000);
}
if (waits || marked.length) setTimeout(keep, waits ? 1000 : 5000);
