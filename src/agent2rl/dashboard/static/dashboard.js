"use strict";
(() => {
  // Show times in the reader's time zone.
  const local = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      const two = (n) => String(n).padStart(2, "0");
      time.title = at.toString();
      time.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
    }
  };

  // Fetch changed parts again. Keep the reader's selection, open details, scroll positions and keyboard focus.
  const key = (each) => each.id || `${each.tagName} ${each.getAttribute("href") || each.value || each.getAttribute("aria-label") || each.textContent}`;
  const scrolled = (part) => [...part.querySelectorAll("[tabindex]")];
  const refresh = async (part) => {
    const answer = await fetch(part.dataset.live, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const text = await answer.text();
    if (text === part.dataset.last) return;
    const chosen = new Set([...part.querySelectorAll("input:checked")].map((box) => box.value));
    const open = new Set([...part.querySelectorAll("details[open]")].map((each) => each.id || each.querySelector("summary")?.textContent));
    const active = part.contains(document.activeElement) ? key(document.activeElement) : null;
    const places = new Map(scrolled(part).map((each) => [key(each), each.scrollLeft]));
    part.innerHTML = text;
    part.dataset.last = text;
    for (const each of scrolled(part)) each.scrollLeft = places.get(key(each)) || 0;
    for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = chosen.has(box.value);
    for (const each of part.querySelectorAll("details")) {
      if (open.has(each.id || each.querySelector("summary")?.textContent)) each.open = true;
    }
    local(part);
    ends(part);
    if (active) [...part.querySelectorAll("a, button, summary, input, [tabindex]")].find((each) => key(each) === active)?.focus({ preventScroll: true });
  };
  // Scroll the agent's output to its end.
  const ends = (root) => { for (const each of root.querySelectorAll(".tail")) each.scrollTop = each.scrollHeight; };
  const parts = () => [...document.querySelectorAll("[data-live]")];
  let busy = false;
  let again = false;
  let later = 0;
  const all = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try { await Promise.all(parts().map(refresh)); } catch { /* the server is gone: the status in the header says so */ }
    busy = false;
    if (again) { again = false; all(); }
    // A newer analysis is running, or starts with the next request.
    clearTimeout(later);
    if (document.querySelector("[data-stale]")) later = setTimeout(all, document.querySelector("[aria-busy]") ? 1000 : 4000);
  };

  const source = document.body.dataset.events;
  const sign = document.querySelector(".alive");
  if (source && window.EventSource) {
    const line = new EventSource(source);
    line.addEventListener("open", () => { sign.hidden = false; sign.textContent = "live"; sign.classList.remove("lost"); all(); });
    line.addEventListener("changed", all);
    line.addEventListener("error", () => { sign.hidden = false; sign.textContent = "not connected"; sign.classList.add("lost"); });
  }

  // Count the remaining budget down.
  const clock = () => {
    for (const each of document.querySelectorAll("[data-until]")) {
      const left = Math.max(0, Number(each.dataset.until) - Date.now() / 1000);
      const h = Math.floor(left / 3600), m = Math.floor(left / 60) % 60, s = Math.floor(left % 60);
      each.textContent = h ? `${h} h ${m} min` : m ? `${m} min ${s} s` : `${s} s`;
    }
  };
  setInterval(clock, 1000);
  clock();
  local(document);
  ends(document);
  for (const here of document.querySelectorAll(".tabs [aria-current]")) here.scrollIntoView({ inline: "center", block: "nearest" });

  // Keep empty fields out of the URL, so that it is short to share.
  addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });

  // Zoom into the part of a timeline that is dragged over.
  let drag = null;
  const place = (zoom, x) => {
    const box = zoom.querySelector(".wide svg").getBoundingClientRect();
    const { from, to, left, right } = zoom.dataset;
    const share = ((x - box.left) / box.width - Number(left)) / (Number(right) - Number(left));
    return Number(from) + Math.min(1, Math.max(0, share)) * (Number(to) - Number(from));
  };
  addEventListener("pointerdown", (event) => {
    const zoom = event.target.closest?.(".zoom");
    if (zoom && event.target.closest(".wide")) { drag = { zoom, from: event.clientX }; event.preventDefault(); }
  });
  addEventListener("pointerup", (event) => {
    if (!drag) return;
    const [first, last] = [drag.from, event.clientX].sort((a, b) => a - b).map((x) => place(drag.zoom, x));
    if (Math.abs(event.clientX - drag.from) > 8) location.search = `?since=${first.toFixed(1)}&until=${last.toFixed(1)}`;
    drag = null;
  });

  // Arrow keys move through the steps of an episode.
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.altKey || event.ctrlKey || event.metaKey) return;
    const rel = { ArrowRight: "next", ArrowLeft: "prev" }[event.key];
    const link = rel && [...document.querySelectorAll(`.pager a[rel=${rel}]`)].pop();
    if (link) location.assign(link.href);
  });
})();
