/** A text that grows while it is generated. */

import { el } from "../dom.js";
import { itemProblem } from "./problem.js";

const REASONS = {
  stop: "Ended by the model or a stop string.",
  length: "Ended at the largest number of tokens.",
};

/** That a text was cut; null of a whole one. */
export function cutHint(item) {
  return item.finish_reason === "length" ? el("p", { class: "hint" }, REASONS.length) : null;
}

/** @param {(Node|string)[]} prompt Shown before the text; may be empty. */
export function streamView(prompt) {
  const text = el("span", { class: "streamed" });
  const cursor = el("span", { class: "cursor", "aria-hidden": "true" });
  const reason = el("p", { class: "hint" });
  const before = prompt.length ? el("span", { class: "prompt" }, ...prompt) : null;
  const element = el("div", {}, el("p", { class: "text" }, before, text, cursor), reason);
  return {
    element,
    get text() {
      return text.textContent;
    },
    chunk(chunk) {
      text.append(chunk.text ?? "");
      if (chunk.error) element.append(itemProblem(chunk.error));
      if (chunk.finish_reason) reason.textContent = REASONS[chunk.finish_reason] ?? "";
    },
    end(isWhole) {
      cursor.remove();
      if (!isWhole) reason.textContent = "Stopped before its end.";
    },
    summary: () => text.textContent,
  };
}
