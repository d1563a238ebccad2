/** `translate`: a text in another language, above the attention that made it. */

import { alignmentView } from "../components/alignment.js";
import { checkField, fieldRow, numberField, selectField, textArea } from "../components/fields.js";
import { InputError, itemProblem } from "../components/problem.js";
import { cutHint } from "../components/stream_view.js";
import { termFields } from "../components/terms.js";
import { el } from "../dom.js";
import { languageName } from "../languages.js";

const EXAMPLES = [
  {
    label: "A famous sentence (English to French)",
    pair: ["en", "fr"],
    text: "The agreement on the European Economic Area was signed in August 1992.",
  },
  {
    label: "A question (Spanish to English)",
    pair: ["es", "en"],
    text: "¿Dónde está el gato negro de Pedro?",
  },
  {
    label: "Two paragraphs",
    pair: ["es", "en"],
    text:
      "Mi hermana trabaja en un restaurante famoso. Este restaurante tiene buena comida.\n\n" +
      "El gato está durmiendo en la cocina. El mundo no es suficiente.",
  },
  {
    label: "With a glossary",
    pair: ["es", "en"],
    text: "El restaurante de {name} tiene buena comida.",
    glossary: [["restaurante", "diner"]],
    copied: "{name}",
  },
];

function create(shell) {
  const text = textArea("Text", { field: "texts", rows: 5, value: EXAMPLES[0].text });
  const languages = languageFields(shell);
  const alignment = checkField("Show the alignment", { field: "return_attention", value: true });
  const terms = termFields();
  const beams = numberField("Beams", { field: "num_beams", min: 1, max: 16, step: 1 });
  const count = numberField("Translations", { field: "n", min: 1, max: 16, step: 1, placeholder: "1" });
  const tokens = numberField("Tokens a sentence at most", { field: "max_new_tokens", min: 1, step: 1 });
  const offered = EXAMPLES.filter(({ pair }) => shell.models.some((model) => serves(model, pair)));
  const apply = (example) => {
    text.value = example.text;
    shell.choose((model) => serves(model, example.pair));
    languages.set(example.pair);
    terms.set(example);
  };
  if (offered.length) apply(offered[0]);
  else text.value = "";

  return {
    fields: [text.element, languages.element, terms.element, alignment.element],
    options: [fieldRow(beams, count, tokens)],
    examples: offered.map((example) => ({ label: example.label, apply: () => apply(example) })),
    request() {
      if (text.value.trim() === "") throw new InputError("write a text to translate", "texts");
      const [source, target] = languages.value;
      return {
        body: {
          texts: text.value,
          source,
          target,
          ...terms.value,
          num_beams: beams.value,
          n: count.value,
          max_new_tokens: tokens.value,
          return_attention: alignment.value || null,
        },
      };
    },
    show: ([item], request) => view(item, request.body.target),
    summary: ([item]) => item.text ?? "",
  };
}

/** Source and target: one choice of a pair, or two choices for a model of many languages. */
function languageFields(shell) {
  const pair = selectField("Languages", [], { field: "source" });
  const source = selectField("From", [], { field: "source" });
  const target = selectField("Into", [], { field: "target" });
  const both = fieldRow(source, target);
  shell.follow((model) => {
    pair.setChoices(model.languages.map((codes) => [codes.join(" "), codes.map(languageName).join(" → ")]));
    const codes = model.language_codes.map((code) => [code, languageName(code)]);
    source.setChoices(codes);
    target.setChoices(codes);
    pair.element.hidden = model.languages.length === 0;
    both.hidden = codes.length === 0;
  });
  return {
    element: el("div", {}, pair.element, both),
    get value() {
      if (!both.hidden) return [source.value, target.value];
      return pair.element.hidden ? [null, null] : pair.value.split(" ");
    },
    set([from, into]) {
      if (both.hidden) pair.value = `${from} ${into}`;
      else [source.value, target.value] = [from, into];
    },
  };
}

function serves(model, [source, target]) {
  const isPair = model.languages.some(([from, into]) => from === source && into === target);
  return isPair || [source, target].every((code) => model.language_codes.includes(code));
}

function view(item, target) {
  if (item.error) return itemProblem(item.error);
  const others = (item.alternatives ?? []).slice(1);
  return el(
    "div", {},
    el("p", { class: "text", lang: target ?? null }, item.text),
    cutHint(item),
    others.length
      ? el("ol", { class: "others", start: 2 }, ...others.map((one) => el("li", { lang: target ?? null }, one.text)))
      : null,
    item.alignment ? alignmentView(item.alignment) : null,
  );
}

export default {
  task: "translate",
  title: "Translate",
  lead: "A text in another language, and which words of the source each word came from.",
  action: "Translate",
  code: { input: "texts", result: "item.text" },
  refusable: ["return_attention"],
  create,
};
