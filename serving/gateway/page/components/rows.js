/** A list of rows that the user edits: labels, documents, few-shot examples. */

import { button, el } from "../dom.js";

const TEXT = 'input[type="text"]';

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
 * @param {(row: HTMLElement, inputs: HTMLInputElement[]) => {element: Node, value: object|null,
 *   label: (of: string) => void}} [options.lead] Makes a control in front of each row's inputs; its
 *   value is the row's first one, null where it is empty.
 */
export function rowsField(legend, options) {
  const { columns, field, noun, value = [], least = 0, separator, isTrimmed = true, hint, lead } = options;
  const leads = new WeakMap(); // row → its lead
  const list = el("ol", { class: "rows" });
  const add = button(`Add ${noun}`, () => firstText(append([])).focus(), { class: "quiet" });
  const element = el(
    "fieldset", { class: "field", dataset: { field } }, el("legend", {}, legend), list, add,
    hint ? el("p", { class: "hint" }, hint) : null,
  );

  function append(values) {
    const [first, texts] = lead ? [values[0] ?? null, values.slice(1)] : [null, values];
    const inputs = columns.map((column, at) =>
      el("input", { type: "text", value: texts[at] ?? "", autocomplete: "off", dataset: { column } }),
    );
    const remove = button("✕", () => removed(row), { class: "icon" });
    const between = separator ? el("span", { "aria-hidden": "true" }, separator) : null;
    const parts = inputs.flatMap((input, at) => (at && between ? [between, input] : [input]));
    const row = el("li", {}, ...parts, remove);
    if (lead) {
      leads.set(row, lead(row, inputs));
      leads.get(row).value = first;
      row.prepend(leads.get(row).element);
    }
    row.addEventListener("keydown", onKey);
    list.append(row);
    label();
    return row;
  }

  function removed(row) {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    if (list.children.length > least) row.remove();
    else clear(row);
    label();
    ((next && firstText(next)) ?? add).focus();
  }

  function clear(row) {
    for (const input of row.querySelectorAll(TEXT)) input.value = "";
    if (lead) leads.get(row).value = null;
  }

  function onKey(event) {
    if (event.key !== "Enter" || !event.target.matches(TEXT) || event.ctrlKey) return;
    event.preventDefault(); // Enter adds a row; it does not submit a list that is being written
    firstText(append([])).focus();
  }

  function label() {
    for (const [at, row] of [...list.children].entries()) {
      for (const input of row.querySelectorAll(TEXT)) {
        const name = columns.length > 1 ? `${input.dataset.column} of ${noun}` : noun;
        input.setAttribute("aria-label", `${name} ${at + 1}`);
      }
      row.querySelector(":scope > button").setAttribute("aria-label", `Remove ${noun} ${at + 1}`);
      leads.get(row)?.label(`${noun} ${at + 1}`);
    }
  }

  const textOf = (input) => (isTrimmed ? input.value.trim() : input.value);
  const made = {
    element,
    /** Rows with some content; each a list of its values. */
    get value() {
      const rows = [...list.children].map((row) => [
        ...(lead ? [leads.get(row).value] : []),
        ...[...row.querySelectorAll(TEXT)].map(textOf),
      ]);
      return rows.filter((values) => values.some((value) => value !== "" && value !== null));
    },
    set value(rows) {
      list.replaceChildren();
      for (const values of rows) append(values);
      while (list.children.length < least) append([]);
    },
  };
  made.value = value;
  return made;
}

function firstText(row) {
  return row.querySelector(TEXT);
}
