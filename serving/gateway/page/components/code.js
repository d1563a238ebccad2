/** The request as code, with a button that copies it. */

import { BASE_URL } from "../api.js";
import { button, el, newId } from "../dom.js";
import { apiKey } from "../key.js";
import { curl, python } from "../snippets.js";

/**
 * @param {{input: string, result: string}} form See `python` in snippets.js.
 * @returns {{element: HTMLElement, show: (request: object) => void}}
 */
export function codeView(form) {
  const blocks = { curl: block("curl"), Python: block("Python") };
  const element = el(
    "section", { class: "code", "aria-label": "The request as code" },
    blocks.curl.element, blocks.Python.element,
  );
  return {
    element,
    show(request) {
      const server = { baseUrl: BASE_URL, hasKey: apiKey() !== null };
      blocks.curl.set(curl(request, server));
      blocks.Python.set(python(request, server, form));
    },
  };
}

function block(name) {
  const text = el("code", {});
  const pre = el("pre", { tabIndex: 0, id: newId("code"), "aria-label": `Request in ${name}` }, text);
  const said = el("span", { class: "visually-hidden", role: "status" });
  const copy = button("Copy", () => copied(pre, copy, said), {
    class: "quiet copy",
    "aria-label": `Copy the request in ${name}`,
  });
  const head = el("div", { class: "code-head" }, el("h4", {}, name), copy, said);
  return {
    element: el("div", { class: "code-block", dataset: { language: name } }, head, pre),
    set(content) {
      text.textContent = content;
    },
  };
}

async function copied(pre, copy, said) {
  const isDone = await toClipboard(pre);
  const result = isDone ? "Copied" : "Press Ctrl+C";
  copy.textContent = result;
  said.textContent = result;
  setTimeout(() => {
    copy.textContent = "Copy";
    said.textContent = "";
  }, 2000);
}

/** The Clipboard API needs a secure context; elsewhere the text is selected and copied. */
async function toClipboard(pre) {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(pre);
    return document.execCommand("copy");
  }
}
