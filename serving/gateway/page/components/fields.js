/** Form fields with labels. Each has `element`, `value`, and the API's name for it. */

import { el, newId } from "../dom.js";

function labelled(label, input, { field, hint }) {
  input.id ||= newId("field");
  const note = hint ? el("p", { class: "hint", id: newId("hint") }, hint) : null;
  if (note) input.setAttribute("aria-describedby", note.id);
  const head = el("label", { htmlFor: input.id }, label);
  return el("div", { class: "field", dataset: field ? { field } : {} }, head, input, note);
}

function fieldOf(label, input, options) {
  return {
    element: labelled(label, input, options),
    input,
    get value() {
      return input.value;
    },
    set value(text) {
      input.value = text;
    },
  };
}

/** A line of text. `options`: `field`, `value`, `hint`, `placeholder`. */
export function textField(label, options = {}) {
  const { value = "", placeholder = null } = options;
  const input = el("input", { type: "text", value, placeholder, autocomplete: "off" });
  return fieldOf(label, input, options);
}

/** Several lines of text. Further option: `rows`. */
export function textArea(label, options = {}) {
  const { value = "", rows = 3 } = options;
  return fieldOf(label, el("textarea", { value, rows, spellcheck: false }), options);
}

/** A number, or null where the field is empty. Further options: `min`, `max`, `step`. */
export function numberField(label, options = {}) {
  const { value = "", min = null, max = null, step = null, placeholder = "default" } = options;
  const bounds = { min, max, step, placeholder, inputmode: "decimal" };
  const input = el("input", { type: "number", ...bounds, value: String(value) });
  return {
    element: labelled(label, input, options),
    input,
    get value() {
      return input.value === "" ? null : input.valueAsNumber;
    },
    set value(number) {
      input.value = number === null ? "" : String(number);
    },
  };
}

/** A number from a range, with its value beside the label. */
export function sliderField(label, options) {
  const { value, min, max, step } = options;
  const input = el("input", { type: "range", min, max, step, value: String(value) });
  const output = el("output", { class: "slider-value" });
  const made = fieldOf(label, input, options);
  made.element.querySelector("label").append(" ", output);
  const show = () => {
    output.textContent = input.value;
  };
  input.addEventListener("input", show);
  show();
  return {
    element: made.element,
    input,
    get value() {
      return input.valueAsNumber;
    },
    set value(number) {
      input.value = String(number);
      show();
    },
  };
}

/** One of `choices`, pairs of value and label; `setChoices` replaces them. */
export function selectField(label, choices, options = {}) {
  const input = el("select");
  const made = fieldOf(label, input, options);
  made.setChoices = (pairs) => {
    const before = input.value;
    input.replaceChildren(...pairs.map(([value, text]) => el("option", { value }, text)));
    if (pairs.some(([value]) => value === before)) input.value = before;
  };
  made.setChoices(choices);
  if (options.value !== undefined) input.value = options.value;
  return made;
}

/** A check box; `value` is a boolean. */
export function checkField(label, options = {}) {
  const input = el("input", { type: "checkbox", checked: options.value ?? false, id: newId("field") });
  const { field } = options;
  const text = el("label", { htmlFor: input.id }, label);
  return {
    element: el("div", { class: "check", dataset: field ? { field } : {} }, input, text),
    input,
    get value() {
      return input.checked;
    },
    set value(isChecked) {
      input.checked = isChecked;
    },
  };
}

/** Fields side by side, as many as fit. */
export function fieldRow(...fields) {
  return el("div", { class: "field-row" }, ...fields.map((field) => field.element ?? field));
}

/** The lines of a text that are not blank. */
export function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
}
