"use strict";
// Tables that are sorted by their titles, and controls that show and hide. Without it all is shown.
const root = document.documentElement;
root.classList.add("js");

function valueOf(row, column, isNumber) {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  if (!isNumber) return text;
  const value = parseFloat(cell.dataset.v ?? text.replaceAll(",", ""));
  return Number.isNaN(value) ? text : value;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return -1;
  if (typeof b === "number") return 1;
  return a.localeCompare(b, "en", { numeric: true });
}

function sort(title) {
  const table = title.closest("table");
  const column = title.cellIndex;
  const isNumber = title.classList.contains("n");
  // Numbers begin with the largest, words with the first.
  const begin = isNumber ? "descending" : "ascending";
  const other = isNumber ? "ascending" : "descending";
  const order = title.getAttribute("aria-sort") === begin ? other : begin;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  title.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [valueOf(row, column, isNumber), row]);
  const sign = order === "ascending" ? 1 : -1;
  const isMissing = (value) => isNumber && typeof value !== "number";
  rows.sort(([a], [b]) => {
    if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b); // last either way
    return sign * compare(a, b);
  });
  body.append(...rows.map(([, row]) => row));
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sort(button.closest("th")));
}

const ops = document.getElementById("op");
ops?.addEventListener("change", () => {
  for (const part of document.querySelectorAll("[data-op]")) {
    part.hidden = ops.value !== "" && part.dataset.op !== ops.value;
  }
});

for (const box of document.querySelectorAll("input[data-provider]")) {
  const show = () => {
    for (const part of document.querySelectorAll("[data-p]")) {
      if (part.dataset.p === box.dataset.provider) part.classList.toggle("off", !box.checked);
    }
  };
  box.addEventListener("change", show);
  show(); // a browser may keep what was switched off when the page is loaded again
}

for (const choice of document.querySelectorAll("select[data-rooflines]")) {
  const show = () => {
    for (const figure of document.getElementById(choice.dataset.rooflines).children) {
      figure.hidden = figure.dataset.dtype !== choice.value;
    }
  };
  choice.addEventListener("change", show);
  show();
}
