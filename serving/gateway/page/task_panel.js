/** The frame of every panel: model, fields and examples, the answer, and the request as code. */

import { ApiError, call, stream } from "./api.js";
import { askForm, clearMarks, markField } from "./ask_form.js";
import { codeView } from "./components/code.js";
import { InputError, problemView } from "./components/problem.js";
import { milliseconds, timingsView } from "./components/timings.js";
import { button, el } from "./dom.js";
import { modelChoice } from "./model_choice.js";

/**
 * What a panel's `create` returns.
 *
 * @typedef {object} Content
 * @property {Node[]} fields
 * @property {Node[]} [options] Fields that are folded away at first.
 * @property {{label: string, apply: () => (void|Promise<void>)}[]} [examples]
 * @property {() => {body: object, images?: object[]}} request Without `model`; null leaves a field
 *   out. Raises InputError. Called at each change of a field, so it stores nothing.
 * @property {(data: object[], request: object) => Node} [show]
 * @property {() => {element: Node, chunk: (chunk: object) => void, end: (isWhole: boolean) => void,
 *   summary: () => string}} [stream] A new view of a streamed answer, in place of `show`.
 * @property {(data: object[], request: object) => string} [summary] The answer in a sentence.
 * @property {Promise<void>} [ready] Resolves when `request` can be called.
 */

/**
 * @param {object} panel One of `PANELS`: `task`, `title`, `lead`, `action`, `code`, `create`, and
 *   `refusable`: fields that are left out for models that refuse them.
 * @param {object[]} models Those that serve the task.
 * @returns {HTMLElement}
 */
export function taskPanel(panel, models) {
  const shell = modelChoice(panel.task, models);
  const content = panel.create(shell);
  const code = codeView(panel.code);
  const refused = new Map(); // model → fields that it refused
  const submit = el("button", { type: "submit", class: "primary" }, panel.action);
  const stop = button("Stop", () => running?.abort(), { class: "stop", hidden: true });
  const status = el("p", { class: "status", role: "status" });
  const result = el("div", { class: "result" });
  const foot = el("div", { class: "foot" });
  const form = askForm(panel, shell, content, [submit, stop], run);
  result.append(el("p", { class: "empty" }, `Press ${panel.action}, or choose an example.`));
  let running = null;

  /** @param {{apply: () => (void|Promise<void>)}} [example] Fills the fields first. */
  async function run(example) {
    running?.abort();
    const own = (running = new AbortController());
    clearMarks(form);
    setBusy(true);
    say("Working…");
    try {
      await example?.apply();
      await content.ready;
      own.signal.throwIfAborted();
      const request = built();
      code.show(request);
      reveal(answer);
      await (content.stream ? streamed(request, own.signal) : answered(request, own.signal));
    } catch (error) {
      if (running === own) failed(error);
    } finally {
      if (running === own) {
        running = null;
        setBusy(false);
      }
    }
  }

  function built() {
    const { body, images = [] } = content.request();
    const dropped = refused.get(shell.model.id) ?? new Set();
    const given = Object.entries(body).filter(
      ([name, value]) => value !== null && value !== undefined && !dropped.has(name),
    );
    return { task: panel.task, body: { ...Object.fromEntries(given), model: shell.model.id }, images };
  }

  async function answered(request, signal) {
    let answer;
    try {
      answer = await call(request, signal);
    } catch (error) {
      if (!isRefusal(error, request)) throw error;
      refused.set(shell.model.id, new Set([...(refused.get(shell.model.id) ?? []), error.field]));
      const without = built();
      code.show(without);
      answer = await call(without, signal);
    }
    const { body, timings } = answer;
    const dropped = [...(refused.get(shell.model.id) ?? [])];
    const note = dropped.length
      ? el("p", { class: "hint" }, `${body.model} does not support ${dropped.join(", ")}.`)
      : null;
    result.replaceChildren(content.show(body.data, request), ...(note ? [note] : []));
    foot.replaceChildren(timingsView(timings, body.usage));
    say(`Done in ${milliseconds(timings.total)}.`, content.summary?.(body.data, request) ?? "");
  }

  /** Whether the model lacks something that the answer can do without. */
  function isRefusal(error, request) {
    const isOptional = panel.refusable?.includes(error.field) && error.field in request.body;
    return error instanceof ApiError && isOptional;
  }

  async function streamed(request, signal) {
    const view = content.stream();
    result.replaceChildren(view.element);
    foot.replaceChildren();
    let usage = null;
    let first = null;
    let last = null;
    const figures = () => foot.replaceChildren(timingsView(last, usage, pace(first, last, usage)));
    try {
      for await (const { chunk, timings } of stream(request, signal)) {
        first ??= timings.total;
        last = timings;
        usage = chunk.usage ?? usage;
        view.chunk(chunk);
      }
    } catch (error) {
      view.end(false);
      if (last && running?.signal === signal) figures();
      throw error;
    }
    view.end(true);
    if (last) figures();
    say(`Done in ${milliseconds(last?.total ?? 0)}.`, view.summary());
  }

  function failed(error) {
    if (error.name === "AbortError") {
      say("Stopped.");
      return;
    }
    say("");
    if (error instanceof ApiError && error.status === 401) {
      document.dispatchEvent(new CustomEvent("triptych:unauthorized", { detail: error }));
      return;
    }
    const known = error instanceof ApiError || error instanceof InputError || error.name === "NetworkError";
    if (!known) console.error(error);
    const view = problemView(error, () => run());
    result.querySelector(":scope > .problem")?.remove();
    if (content.stream && result.querySelector(".streamed")?.textContent) result.append(view);
    else result.replaceChildren(view);
    if (error.field) markField(form, error.field);
  }

  function setBusy(isBusy) {
    form.classList.toggle("busy", isBusy);
    result.setAttribute("aria-busy", String(isBusy));
    stop.hidden = !isBusy;
    if (!isBusy && document.activeElement === stop) submit.focus();
  }

  function say(text, summary = "") {
    status.replaceChildren(text);
    if (summary) status.append(el("span", { class: "visually-hidden" }, ` ${summary}`));
  }

  const answer = el(
    "section", { class: "answer", "aria-label": "Answer" },
    el("div", { class: "answer-head" }, el("h3", {}, "Answer"), status), result, foot, code.element,
  );
  Promise.resolve(content.ready).then(() => showCode(built, code), () => {});
  form.addEventListener("input", () => showCode(built, code));
  form.addEventListener("change", () => showCode(built, code));
  return el(
    "div", { class: "panel" },
    el("div", { class: "intro" }, el("h2", {}, panel.title), el("p", {}, panel.lead)),
    el("div", { class: "columns" }, form, answer),
  );
}

/** Scroll to the answer where it lies below the fields, as on a phone. */
function reveal(answer) {
  const isMoving = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  const isBelow = answer.getBoundingClientRect().top > innerHeight * 0.75;
  if (isBelow) answer.scrollIntoView({ block: "start", behavior: isMoving ? "smooth" : "auto" });
}

/** The request as it would be sent now; an incomplete one is not shown. */
function showCode(built, code) {
  try {
    code.show(built());
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
  }
}

/** Time to the first chunk, and tokens per second after it. */
function pace(first, last, usage) {
  const pairs = [["first text", milliseconds(first)]];
  const seconds = (last.total - first) / 1000;
  if (usage?.completion_tokens > 1 && seconds > 0) {
    pairs.push(["tokens/s", (usage.completion_tokens / seconds).toFixed(0)]);
  }
  return pairs;
}
