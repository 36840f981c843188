"use strict";
(() => {
  const list = document.querySelector(".examples");
  const search = document.getElementById("search");
  const count = document.getElementById("count");

  // CSS alone filters by kind; the text search needs a script.
  const update = () => {
    const query = search.value.trim().toLowerCase();
    let visible = 0;
    for (const item of document.querySelectorAll(".examples > ul > li")) {
      item.hidden = query !== "" && !item.textContent.toLowerCase().includes(query);
      if (item.getClientRects().length) visible += 1;
    }
    count.textContent = visible === 1 ? "1 example shown" : `${visible} examples shown`;
    count.hidden = false;
  };
  if (list && search) {
    search.closest("label").hidden = false;
    search.addEventListener("input", update);
    for (const choice of document.querySelectorAll("input[name=show]")) choice.addEventListener("change", update);
  }

  // Open the <details> elements around the target of a link.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    const own = target.matches("tbody") && target.querySelector("details");
    if (own) own.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // Open the attempts for printing and close them again afterwards.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll(".attempts details:not([open]), #making details:not([open])")];
    for (const details of folded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
  });

  // Mark the section that is being read in the table of contents.
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
