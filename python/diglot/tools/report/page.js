"use strict";
// Sorts a table by a click on a title. Without it all is shown, unsorted.
document.documentElement.classList.add("js");

// The first number of a cell, but for a place such as "2. " before it.
function valueOf(row, column, isNumber) {
  const text = row.cells[column].textContent.trim();
  if (!isNumber) return text;
  return parseFloat(text.replace(/^\d+\. /, "").replaceAll(",", ""));
}

function sort(title) {
  const table = title.closest("table");
  const isNumber = title.classList.contains("n");
  // Numbers begin with the largest, words with the first.
  const begin = isNumber ? "descending" : "ascending";
  const other = isNumber ? "ascending" : "descending";
  const order = title.getAttribute("aria-sort") === begin ? other : begin;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  title.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [valueOf(row, title.cellIndex, isNumber), row]);
  const sign = order === "ascending" ? 1 : -1;
  rows.sort(([a], [b]) => {
    if (!isNumber) return sign * a.localeCompare(b, "en", { numeric: true });
    if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b); // last either way
    return sign * (a - b);
  });
  body.append(...rows.map(([, row]) => row));
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sort(button.closest("th")));
}
