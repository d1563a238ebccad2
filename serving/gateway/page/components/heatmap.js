/** A matrix of weights as a table whose cells are coloured, and which arrow keys walk through. */

import { el } from "../dom.js";

const MAX_CELLS = 6400;

/**
 * @param {object} matrix
 * @param {string[]} matrix.rows Labels.
 * @param {string[]} matrix.columns Labels.
 * @param {number[][]} matrix.weights Rows × columns, from 0 to 1.
 * @param {object} options
 * @param {string} options.caption What rows and columns are.
 * @param {(row: number|null, column: number|null) => void} [options.onActive]
 * @param {(weight: number) => string} options.describe The weight in words.
 * @param {boolean} [options.isNumbered] Whether cells show their number.
 * @returns {{element: HTMLElement, light: (row: number|null, column: number|null) => void}}
 */
export function heatmap(matrix, { caption, onActive = () => {}, describe, isNumbered = false }) {
  const { rows, columns, weights } = matrix;
  if (rows.length * columns.length > MAX_CELLS) return { element: tooLarge(), light() {} };
  const heads = columns.map((text) => el("th", { scope: "col" }, el("span", {}, text)));
  const sides = rows.map((text) => el("th", { scope: "row" }, text));
  const cells = weights.map((line, row) => line.map((weight, column) => cell(weight, row, column)));

  function cell(weight, row, column) {
    const text = describe(weight);
    const name = `${rows[row]}, ${columns[column]}: ${text}`;
    const made = el("td", { tabIndex: -1, "aria-label": name, title: name });
    if (isNumbered) made.append(text);
    made.style.setProperty("--weight", String(Math.max(0, weight)));
    if (weight > 0.55) made.classList.add("strong");
    made.addEventListener("focus", () => activate(row, column));
    made.addEventListener("pointerenter", () => activate(row, column));
    return made;
  }

  function activate(row, column) {
    light(row, column);
    onActive(row, column);
  }

  function light(row, column) {
    for (const [at, side] of sides.entries()) side.classList.toggle("lit", at === row);
    for (const [at, head] of heads.entries()) head.classList.toggle("lit", at === column);
    for (const [r, line] of cells.entries()) {
      for (const [c, td] of line.entries()) td.classList.toggle("lit", r === row || c === column);
    }
  }

  for (const [row, side] of sides.entries()) {
    side.addEventListener("pointerenter", () => activate(row, null));
  }
  for (const [column, head] of heads.entries()) {
    head.addEventListener("pointerenter", () => activate(null, column));
  }
  const head = el("thead", {}, el("tr", {}, el("td", {}), ...heads));
  const body = el("tbody", {}, ...cells.map((line, row) => el("tr", {}, sides[row], ...line)));
  const table = el(
    "table", { class: isNumbered ? "heatmap numbered" : "heatmap", role: "grid" },
    el("caption", {}, caption), head, body,
  );
  table.addEventListener("pointerleave", () => activate(null, null));
  walkable(table, cells);
  const element = el("div", { class: "heatmap-frame" }, table);
  return { element, light };
}

/** One cell at a time is in the tab order; arrow keys, Home and End move it. */
function walkable(table, cells) {
  if (!cells.length || !cells[0].length) return;
  let at = [0, 0];
  cells[0][0].tabIndex = 0;
  const move = (row, column) => {
    cells[at[0]][at[1]].tabIndex = -1;
    at = [clamp(row, cells.length), clamp(column, cells[0].length)];
    cells[at[0]][at[1]].tabIndex = 0;
  };
  table.addEventListener("focusin", (event) => {
    const row = cells.findIndex((line) => line.includes(event.target));
    if (row >= 0) move(row, cells[row].indexOf(event.target));
  });
  table.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(...step(...at, cells[0].length));
    cells[at[0]][at[1]].focus();
  });
}

const STEPS = {
  ArrowDown: (row, column) => [row + 1, column],
  ArrowUp: (row, column) => [row - 1, column],
  ArrowRight: (row, column) => [row, column + 1],
  ArrowLeft: (row, column) => [row, column - 1],
  Home: (row) => [row, 0],
  End: (row, _, columns) => [row, columns - 1],
};

function clamp(value, length) {
  return Math.min(Math.max(value, 0), length - 1);
}

function tooLarge() {
  return el(
    "p", { class: "hint" },
    "The matrix is too large to draw. Point at a word of the sentences above to see its weights.",
  );
}
