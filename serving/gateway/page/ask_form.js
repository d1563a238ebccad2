/** The form of a panel: examples, fields, options, and the marks of what an error names. */

import { button, el } from "./dom.js";

/** @param {(example?: object) => Promise<void>} run Sends the request, filled in by an example. */
export function askForm(panel, shell, content, actions, run) {
  const chips = (content.examples ?? []).map((example) =>
    button(example.label, () => run(example), { class: "chip" }),
  );
  const examples = chips.length
    ? el("div", { class: "examples", role: "group", "aria-label": "Examples" }, ...chips)
    : null;
  const options = content.options?.length
    ? el("details", { class: "options" }, el("summary", {}, "Options"), ...content.options)
    : null;
  const form = el(
    "form", { class: "ask", noValidate: true, "aria-label": panel.title },
    examples, ...content.fields, shell.element, options, el("div", { class: "actions" }, ...actions),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  return form;
}

/** Marks the field that an error names, `texts.1` the field `texts`. */
export function markField(form, name) {
  const field = form.querySelector(`[data-field="${CSS.escape(name.split(".")[0])}"]`);
  if (!field) return;
  field.classList.add("invalid");
  const details = field.closest("details");
  if (details) details.open = true;
  for (const input of field.querySelectorAll("input, select, textarea")) {
    input.setAttribute("aria-invalid", "true");
  }
}

/** Takes all marks away. */
export function clearMarks(form) {
  for (const field of form.querySelectorAll(".invalid")) {
    field.classList.remove("invalid");
    for (const input of field.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  }
}
