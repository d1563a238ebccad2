/** A failed request, in words. */

import { ApiError, NetworkError } from "../api.js";
import { button, el } from "../dom.js";

const HINTS = {
  401: "The key is missing or wrong.",
  413: "The request is too large.",
  415: "The file has a format that cannot be read.",
  429: "The server is busy.",
  500: "The server failed; its log has the cause.",
  503: "The server is not ready.",
  504: "The server did not answer in time.",
};

/** What the user cannot send: a field is missing. */
export class InputError extends Error {
  constructor(message, field) {
    super(message);
    this.name = "InputError";
    this.field = field;
  }
}

/**
 * @param {Error} error
 * @param {() => void} retry
 * @returns {HTMLElement} An alert with a button to send the request again.
 */
export function problemView(error, retry) {
  const hint = error instanceof ApiError ? HINTS[error.status] : null;
  const field = error.field ? el("code", {}, error.field) : null;
  const canRetry = error instanceof NetworkError || error.status === 429 || error.status >= 500;
  return el(
    "div", { class: "problem", role: "alert" },
    hint ? el("strong", {}, hint, " ") : null,
    el("span", {}, sentence(error.message)),
    field ? el("span", { class: "problem-field" }, " Field: ", field) : null,
    canRetry ? el("p", {}, retryButton(error.retryAfter ?? 0, retry)) : null,
  );
}

/** An item of a batch that has no result. */
export function itemProblem(error) {
  return el(
    "p", { class: "problem" },
    el("strong", {}, "No result. "), sentence(error.message),
  );
}

/** Counts down `Retry-After`; the button works at once all the same. */
function retryButton(seconds, retry) {
  let left = seconds;
  const label = () => (left > 0 ? `Try again (in ${left} s)` : "Try again");
  const made = button(label(), retry, { class: "quiet" });
  const timer = setInterval(() => {
    left -= 1;
    made.textContent = label();
    if (left <= 0 || !made.isConnected) clearInterval(timer);
  }, 1000);
  return made;
}

/** A message with a capital letter and a full stop. */
export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
