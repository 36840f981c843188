"use strict";
(() => {
  // Sort a table by the column whose heading is pressed. Cells without a value stay last.
  const value = (row, at) => {
    const cell = row.cells[at];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim();
    return text === "–" || text === "" ? null : text;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const sort = (table, at, descending) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row, at), row]);
    rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : compare(a, b) * (descending ? -1 : 1)));
    body.append(...rows.map(([, row]) => row));
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    table.tHead.rows[0].cells[at].setAttribute("aria-sort", descending ? "descending" : "ascending");
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((cell, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      // Numbers begin with the largest, except ranks.
      const first = cell.classList.contains("n") && at > 0;
      button.addEventListener("click", () => sort(table, at, cell.ariaSort ? cell.ariaSort === "ascending" : first));
    });
  }

  // Filter the table of runs. The choice is in the URL, so that it can be shared.
  const form = document.getElementById("filters");
  const table = document.getElementById("runs");
  if (!form || !table) return;
  const count = document.getElementById("count");
  const fields = [...form.elements].filter((each) => each.name);
  const apply = () => {
    let visible = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !fields.every(({ name, value: wanted }) => {
        if (!wanted) return true;
        if (name === "q") return wanted.toLowerCase().split(/\s+/).every((word) => `${row.textContent} ${row.querySelector("a").getAttribute("href")}`.toLowerCase().includes(word));
        return name === "check" ? row.dataset.check.split(" ").includes(wanted) : row.dataset[name] === wanted;
      });
      visible += !row.hidden;
    }
    count.textContent = `${visible} of ${table.tBodies[0].rows.length} runs`;
  };
  const read = () => {
    const chosen = new URLSearchParams(location.hash.slice(1));
    for (const each of fields) each.value = chosen.get(each.name) || "";
    apply();
  };
  const write = () => {
    const chosen = new URLSearchParams(fields.filter((each) => each.value).map((each) => [each.name, each.value]));
    history.replaceState(null, "", `#${chosen}`);
    apply();
  };
  form.hidden = count.hidden = false;
  form.addEventListener("input", write);
  form.addEventListener("reset", () => setTimeout(write));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", read);
  read();
})();
