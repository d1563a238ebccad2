/** `tag`: labels of words, marked in their text. */

import { linesOf, selectField, textArea } from "../components/fields.js";
import { InputError, itemProblem } from "../components/problem.js";
import { el, percent } from "../dom.js";

const COLOURS = 8;
const AGGREGATIONS = [
  ["simple", "whole entities (simple)"],
  ["first", "whole words (first)"],
  ["average", "whole words (average)"],
  ["max", "whole words (max)"],
  ["none", "single tokens (none)"],
];
const EXAMPLES = [
  { label: "An event", text: "Last Friday, Kugfen sold a big lamp in Sovsub." },
  {
    label: "Three sentences",
    text: "Ana visited Pedro in Rome yesterday.\nLast Friday, Elena washed two shirts in Paris.\nPedro bought the old lamp.",
  },
];

function create() {
  const text = textArea("Texts, one a line", { field: "texts", rows: 4, value: EXAMPLES[0].text });
  const aggregation = selectField("Join tokens to", AGGREGATIONS, { field: "aggregation" });

  return {
    fields: [text.element, aggregation.element],
    examples: EXAMPLES.map((example) => ({
      label: example.label,
      apply() {
        text.value = example.text;
      },
    })),
    request() {
      const texts = linesOf(text.value);
      if (!texts.length) throw new InputError("write a text", "texts");
      return { body: { texts, aggregation: aggregation.value } };
    },
    show: (data, { body }) => view(data, body.texts),
    summary: (data) => data.map(({ tokens }) => listed(tokens ?? [])).join(". "),
  };
}

function listed(tokens) {
  return tokens.map(({ text, label }) => `${text}: ${label}`).join(", ");
}

function view(data, texts) {
  const labels = [...new Set(data.flatMap(({ tokens }) => (tokens ?? []).map(({ label }) => label)))];
  const lines = data.map((item) =>
    item.error
      ? el("article", {}, el("p", { class: "text" }, texts[item.index]), itemProblem(item.error))
      : el("p", { class: "text tagged" }, ...marked(texts[item.index], item.tokens, labels)),
  );
  return el("div", { class: "items" }, ...lines);
}

/** The text in parts. Offsets count code points, which JavaScript's strings do not. */
function marked(text, tokens, labels) {
  const characters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const { start, end, label, score } of tokens) {
    if (start < at) continue; // never twice the same characters
    parts.push(characters.slice(at, start).join(""), mark(characters.slice(start, end).join(""), label, score, labels));
    at = end;
  }
  return [...parts, characters.slice(at).join("")];
}

function mark(text, label, score, labels) {
  const made = el(
    "mark", { class: `tag-${labels.indexOf(label) % COLOURS}`, title: `${label}, ${percent(score)}` },
    text, el("span", { class: "visually-hidden" }, " ("), el("span", { class: "tag-label" }, label),
    el("span", { class: "visually-hidden" }, ")"),
  );
  return made;
}

export default {
  task: "tag",
  title: "Tag",
  lead: "Names, parts of speech or roles, marked in the text.",
  action: "Tag",
  code: { input: "texts", result: "[(token.text, token.label) for token in item.tokens]" },
  create,
};
