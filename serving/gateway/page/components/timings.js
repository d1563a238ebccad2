/** Where a request's time went. */

import { el } from "../dom.js";

const STAGES = [
  ["total", "total"],
  ["tokenization", "tokens and pixels"],
  ["queue", "queue"],
  ["inference", "models"],
];

/**
 * @param {object} timings Milliseconds by stage; null where unknown.
 * @param {{prompt_tokens?: number, completion_tokens?: number}} [usage]
 * @param {[string, string][]} [further] Names and values.
 */
export function timingsView(timings, usage, further = []) {
  const entries = STAGES.filter(([stage]) => timings[stage] !== null);
  const pairs = entries.map(([stage, name]) => [name, milliseconds(timings[stage])]);
  if (usage?.prompt_tokens) pairs.push(["tokens in", String(usage.prompt_tokens)]);
  if (usage?.completion_tokens) pairs.push(["tokens out", String(usage.completion_tokens)]);
  const items = [...pairs, ...further].map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value)),
  );
  return el("dl", { class: "timings" }, ...items);
}

/** A duration with a unit that fits. */
export function milliseconds(duration) {
  return duration >= 1000 ? `${(duration / 1000).toFixed(2)} s` : `${duration.toFixed(duration < 10 ? 1 : 0)} ms`;
}
