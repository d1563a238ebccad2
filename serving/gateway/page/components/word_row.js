/** A sentence whose words can be pointed at, focused, and held with a click. */

import { button, el, rovingFocus } from "../dom.js";

/**
 * @param {string[]} texts
 * @param {object} options
 * @param {string} options.label Name of the row for assistive technology.
 * @param {(index: number|null) => void} options.onActive Called with the active word.
 * @returns {{element: HTMLElement, held: number|null, hold: (index: number|null) => void,
 *   shade: (weights: number[]|null) => void}} `shade` colours the words by weights from 0 to 1.
 */
export function wordRow(texts, { label, onActive }) {
  let held = null;
  const chips = texts.map((text, index) => {
    const chip = button(text, () => hold(held === index ? null : index), { class: "word" });
    chip.setAttribute("aria-pressed", "false");
    chip.addEventListener("pointerenter", () => activate(index));
    chip.addEventListener("pointerleave", () => activate(held));
    chip.addEventListener("focus", () => activate(index));
    chip.addEventListener("blur", () => activate(held));
    return chip;
  });
  const element = el("div", { class: "words", role: "toolbar", "aria-label": label }, ...chips);
  rovingFocus(element, chips);

  function hold(index) {
    held = index;
    for (const [at, chip] of chips.entries()) {
      chip.setAttribute("aria-pressed", String(at === held));
    }
    activate(index);
  }

  function activate(index) {
    for (const [at, chip] of chips.entries()) chip.classList.toggle("active", at === index);
    onActive(index);
  }

  return {
    element,
    hold,
    get held() {
      return held;
    },
    shade(weights) {
      for (const [at, chip] of chips.entries()) {
        chip.style.setProperty("--weight", String(weights ? weights[at] : 0));
      }
    },
  };
}
