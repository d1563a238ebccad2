/** A list of rows that the user edits: labels, documents, few-shot examples. */

import { button, el } from "../dom.js";

/**
 * @param {string} legend
 * @param {object} options
 * @param {string[]} options.columns Names of a row's inputs.
 * @param {string} options.field The API's name.
 * @param {string} options.noun What one row is, for the buttons' labels.
 * @param {string[][]} [options.value]
 * @param {number} [options.least] Number of rows that stay.
 * @param {string} [options.separator] Shown between a row's inputs.
 * @param {boolean} [options.isTrimmed] Whether spaces around a text are left out.
 * @param {string} [options.hint]
 */
export function rowsField(legend, options) {
  const { columns, field, noun, value = [], least = 0, separator, isTrimmed = true, hint } = options;
  const list = el("ol", { class: "rows" });
  const add = button(`Add ${noun}`, () => append([]).querySelector("input").focus(), {
    class: "quiet",
  });
  const element = el(
    "fieldset", { class: "field", dataset: { field } }, el("legend", {}, legend), list, add,
    hint ? el("p", { class: "hint" }, hint) : null,
  );

  function append(texts) {
    const inputs = columns.map((column, at) =>
      el("input", { type: "text", value: texts[at] ?? "", autocomplete: "off", dataset: { column } }),
    );
    const remove = button("✕", () => removed(row), { class: "icon" });
    const between = separator ? el("span", { "aria-hidden": "true" }, separator) : null;
    const parts = inputs.flatMap((input, at) => (at && between ? [between, input] : [input]));
    const row = el("li", {}, ...parts, remove);
    row.addEventListener("keydown", onKey);
    list.append(row);
    label();
    return row;
  }

  function removed(row) {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    if (list.children.length > least) row.remove();
    else for (const input of row.querySelectorAll("input")) input.value = "";
    label();
    (next?.querySelector("input") ?? add).focus();
  }

  function onKey(event) {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT" || event.ctrlKey) return;
    event.preventDefault(); // Enter adds a row; it does not submit a list that is being written
    append([]).querySelector("input").focus();
  }

  function label() {
    for (const [at, row] of [...list.children].entries()) {
      for (const input of row.querySelectorAll("input")) {
        const name = columns.length > 1 ? `${input.dataset.column} of ${noun}` : noun;
        input.setAttribute("aria-label", `${name} ${at + 1}`);
      }
      row.querySelector("button").setAttribute("aria-label", `Remove ${noun} ${at + 1}`);
    }
  }

  const textOf = (input) => (isTrimmed ? input.value.trim() : input.value);
  const made = {
    element,
    /** Rows with some text; each a list of its inputs' values. */
    get value() {
      const rows = [...list.children].map((row) =>
        [...row.querySelectorAll("input")].map(textOf),
      );
      return rows.filter((texts) => texts.some((text) => text !== ""));
    },
    set value(rows) {
      list.replaceChildren();
      for (const texts of rows) append(texts);
      while (list.children.length < least) append([]);
    },
  };
  made.value = value;
  return made;
}
