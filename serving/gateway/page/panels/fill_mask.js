/** `fill-mask`: the most likely tokens in place of masked ones. */

import { bars } from "../components/bars.js";
import { linesOf, numberField, textArea, textField } from "../components/fields.js";
import { InputError, itemProblem } from "../components/problem.js";
import { button, el } from "../dom.js";

const GAP = "____";
const EXAMPLES = [
  { label: "My sister ____ a teacher.", text: `My sister ${GAP} a teacher.` },
  { label: "One verb, three subjects", text: `I ${GAP} happy.\nShe ${GAP} happy.\nThey ${GAP} happy.` },
];

function create(shell) {
  let mask = "[MASK]";
  const text = textArea("Texts, one a line", { field: "texts", rows: 4 });
  const insert = button("Insert a mask", () => text.input.setRangeText(mask, text.input.selectionStart, text.input.selectionEnd, "end"), {
    class: "quiet",
  });
  const most = numberField("Words at most", { field: "top_k", min: 1, step: 1, value: 5 });
  const targets = textField("Only these words", {
    field: "targets",
    hint: "Separated by commas; each is one token of the model.",
  });
  text.element.append(insert);
  const apply = (example) => {
    text.value = example.text.replaceAll(GAP, mask);
  };
  shell.follow((model) => {
    text.value = text.value.replaceAll(mask, model.mask_token ?? mask);
    mask = model.mask_token ?? mask;
    most.input.max = String(model.limits.max_top_k ?? "");
    insert.textContent = `Insert ${mask}`;
  });
  apply(EXAMPLES[0]);

  return {
    fields: [text.element],
    options: [most.element, targets.element],
    examples: EXAMPLES.map((example) => ({ label: example.label, apply: () => apply(example) })),
    request() {
      const texts = linesOf(text.value);
      if (!texts.length) throw new InputError(`write a text with ${mask}`, "texts");
      const only = targets.value.split(",").map((word) => word.trim()).filter((word) => word !== "");
      return { body: { texts, targets: only.length ? only : null, top_k: most.value } };
    },
    show: (data, { body }) =>
      el("div", { class: "items" }, ...data.map((item) => view(item, body.texts[item.index]))),
    summary: (data) => data.map(({ masks }) => masks?.[0]?.[0]?.text ?? "no result").join(" "),
  };
}

function view(item, text) {
  if (item.error) return el("article", {}, el("p", { class: "text" }, text), itemProblem(item.error));
  const lists = item.masks.map((mask, place) =>
    el(
      "div", { class: "mask" },
      item.masks.length > 1 ? el("h4", {}, `Mask ${place + 1}`) : null,
      bars(mask.map(({ token, score }) => ({ label: token.trim(), score }))),
    ),
  );
  const filled = item.masks.length === 1 ? item.masks[0][0].text : text;
  return el("article", {}, el("p", { class: "text" }, filled), ...lists);
}

export default {
  task: "fill-mask",
  title: "Fill mask",
  lead: "A text with gaps, and the words that an encoder expects there.",
  action: "Fill",
  code: { input: "texts", result: "[token.text for token in item.masks[0]]" },
  create,
};
