/** Asks for the API key. */

import { el, newId } from "./dom.js";

/**
 * @param {boolean} isRefused Whether a key was given and is wrong.
 * @param {(key: string) => void} onKey
 * @returns {HTMLElement}
 */
export function keyForm(isRefused, onKey) {
  const input = el("input", {
    type: "password", id: newId("key"), autocomplete: "off", required: true, spellcheck: false,
  });
  const problem = isRefused
    ? el("p", { class: "problem", role: "alert" }, "The server refused this key.")
    : null;
  return el(
    "form",
    {
      class: "key-form",
      on: {
        submit(event) {
          event.preventDefault();
          onKey(input.value.trim());
        },
      },
    },
    el("h2", {}, "This server needs a key"),
    el("p", {}, "It is kept until this tab is closed, and sent to this server only."),
    el("div", { class: "field" }, el("label", { htmlFor: input.id }, "API key"), input),
    problem,
    el("button", { type: "submit", class: "primary" }, "Continue"),
  );
}
