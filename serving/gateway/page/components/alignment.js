/** A translation above the attention that made it: two sentences and a matrix, lit together. */

import { el, percent } from "../dom.js";
import { isEnd, joinWeights, words } from "../words.js";
import { heatmap } from "./heatmap.js";
import { wordRow } from "./word_row.js";

const SHOWN_WORDS = 3;

/**
 * @param {{source_tokens: string[], target_tokens: string[], weights: number[][]}} alignment
 * @returns {HTMLElement}
 */
export function alignmentView(alignment) {
  const source = words(alignment.source_tokens);
  const target = words(alignment.target_tokens);
  const weights = joinWeights(alignment.weights, target, source);
  const texts = { source: source.map(display), target: target.map(display) };
  const readout = el("p", { class: "readout", "aria-live": "polite" }, HINT);

  const sourceRow = wordRow(texts.source, {
    label: "Words of the source",
    onActive: (column) => show(null, column, targetRow),
  });
  const targetRow = wordRow(texts.target, {
    label: "Words of the translation",
    onActive: (row) => show(row, null, sourceRow),
  });
  const map = heatmap(
    { rows: texts.target, columns: texts.source, weights },
    {
      caption: "Rows: words of the translation. Columns: words of the source.",
      onActive: (row, column) =>
        row === null && column === null
          ? show(targetRow.held, sourceRow.held, null)
          : show(row, column, null),
      describe: percent,
    },
  );

  /** Light what belongs to a word of either side; the other row lets go of its held word. */
  function show(row, column, other) {
    if ((row !== null || column !== null) && other && other.held !== null) other.hold(null);
    sourceRow.shade(row === null ? one(column, source.length) : weights[row]);
    targetRow.shade(column === null ? one(row, target.length) : weights.map((line) => line[column]));
    map.light(row, column);
    readout.textContent = inWords(row, column);
  }

  function inWords(row, column) {
    if (row !== null && column !== null) {
      return `“${texts.target[row]}” looks at “${texts.source[column]}”: ${percent(weights[row][column])}`;
    }
    if (row !== null) return `“${texts.target[row]}” looks at ${largest(weights[row], texts.source)}`;
    if (column === null) return HINT;
    const line = weights.map((each) => each[column]);
    return `“${texts.source[column]}” is looked at by ${largest(line, texts.target)}`;
  }

  const part = (name, row) => el("div", { class: "sentence" }, el("h4", {}, name), row.element);
  return el(
    "div", { class: "alignment" },
    part("Source", sourceRow), part("Translation", targetRow), readout, map.element,
  );
}

const HINT = "Point at a word, or move to it with Tab and the arrow keys; a click holds it.";

function display({ text }) {
  return isEnd(text) ? "⏎" : text;
}

/** Weights of one word alone: 1 for it, 0 for the others; null where there is none. */
function one(index, length) {
  if (index === null) return null;
  return Array.from({ length }, (_, at) => (at === index ? 1 : 0));
}

function largest(weights, texts) {
  const ranked = weights.map((weight, at) => [weight, texts[at]]).sort(([a], [b]) => b - a);
  const shown = ranked.slice(0, SHOWN_WORDS).filter(([weight], at) => at === 0 || weight >= 0.05);
  return shown.map(([weight, text]) => `“${text}” ${percent(weight)}`).join(", ");
}
