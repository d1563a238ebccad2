/** Scores as bars. */

import { el, percent } from "../dom.js";

/**
 * @param {{label: string|Node, score: number, note?: string}[]} entries Best first.
 * @param {object} [options]
 * @param {(score: number) => string} [options.format]
 * @param {(score: number) => number} [options.share] Length of a bar, from 0 to 1.
 */
export function bars(entries, { format = percent, share = (score) => score } = {}) {
  return el(
    "ol",
    { class: "bars" },
    ...entries.map(({ label, score, note }, rank) => {
      const bar = el("span", { class: "bar", "aria-hidden": "true" });
      bar.style.setProperty("--share", String(Math.min(1, Math.max(0, share(score)))));
      const text = el("span", { class: "bar-label" }, label);
      const figure = el("span", { class: "bar-score" }, format(score));
      const aside = note ? el("span", { class: "bar-note" }, note) : null;
      return el("li", { class: rank ? "" : "best" }, text, figure, bar, aside);
    }),
  );
}
