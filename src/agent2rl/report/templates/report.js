"use strict";
(() => {
  const list = document.querySelector(".examples");
  const search = document.getElementById("search");
  const count = document.getElementById("count");

  // The choice of kinds works by style alone; looking for words does not.
  const update = () => {
    const wanted = search.value.trim().toLowerCase();
    let seen = 0;
    for (const item of document.querySelectorAll(".examples > ul > li")) {
      item.hidden = wanted !== "" && !item.textContent.toLowerCase().includes(wanted);
      if (item.getClientRects().length) seen += 1;
    }
    count.textContent = seen === 1 ? "1 example shown" : `${seen} examples shown`;
    count.hidden = false;
  };
  if (list && search) {
    search.closest("label").hidden = false;
    search.addEventListener("input", update);
    for (const choice of document.querySelectorAll("input[name=show]")) choice.addEventListener("change", update);
  }

  // A link into something folded unfolds it.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    const own = target.matches("tbody") && target.querySelector("details");
    if (own) own.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // On paper the attempts are unfolded, and folded again behind it.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll(".attempts details:not([open]), #making details:not([open])")];
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of folded) each.open = false;
  });

  // The section that is read is marked in the contents.
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-10% 0px -80% 0px" },
  );
  for (const id of links.keys()) {
    const section = document.getElementById(id);
    if (section) watcher.observe(section);
  }
})();
