/** `score`: how likely a model finds given texts, as its outputs. */

import { bars } from "../components/bars.js";
import { textArea } from "../components/fields.js";
import { pictureField } from "../components/picture_input.js";
import { InputError, itemProblem } from "../components/problem.js";
import { rowsField } from "../components/rows.js";
import { el } from "../dom.js";

const SCENE = 2;
const EXAMPLES = [
  {
    label: "Which translation?",
    fits: (model) => model.languages.some(([from, into]) => from === "es" && into === "en"),
    text: "¿Dónde está el gato negro de Pedro?",
    targets: ["Where is Pedro's black cat?", "Where is the black cat?", "Where are Pedro's black cats?"],
  },
  {
    label: "Which caption?",
    fits: (model, fields) => fields.includes("images"),
    targets: [
      "a large yellow checked crescent above a small purple checked diamond on a green background",
      "a large yellow checked crescent below a small purple checked diamond on a green background",
      "a large red heart on a black background",
    ],
  },
  {
    label: "What comes next?",
    fits: (model, fields) => !fields.includes("images") && !model.languages.length,
    text: "a small red dotted",
    targets: [" ring on a cyan background", " ring on a large background", " on a ring"],
  },
];

function create(shell) {
  const text = textArea("Source or prompt", { field: "texts", rows: 2 });
  const pictures = pictureField({ example: SCENE });
  const targets = rowsField("Texts to score", {
    columns: ["text"], field: "targets", noun: "text", least: 1, isTrimmed: false,
  });
  const reads = (name) => shell.fieldsOf(shell.model).includes(name);
  const fits = (example) => (model) => example.fits(model, shell.fieldsOf(model));
  const offered = EXAMPLES.filter((example) => shell.models.some(fits(example)));
  const apply = async (example) => {
    const isPlain = (model) => fits(example)(model) && !model.tasks.includes("chat");
    shell.choose(shell.models.some(isPlain) ? isPlain : fits(example)); // a chat expects its template
    text.value = example.text ?? "";
    targets.value = example.targets.map((one) => [one]);
    if (reads("images")) await pictures.choose(SCENE);
  };
  shell.follow(() => {
    text.element.hidden = !reads("texts");
    pictures.element.hidden = !reads("images");
  });
  if (offered.length) apply(offered[0]);

  return {
    fields: [text.element, pictures.element, targets.element],
    examples: offered.map((example) => ({ label: example.label, apply: () => apply(example) })),
    ready: pictures.ready,
    request() {
      const given = targets.value.map(([one]) => one);
      const images = reads("images") ? pictures.value.slice(0, 1) : [];
      const source = reads("texts") && text.value !== "" ? text.value : null;
      if (!given.length) throw new InputError("write the texts to score", "targets");
      if (reads("images") && !source && !images.length) throw new InputError("choose a picture", "images");
      return { body: { texts: source, targets: given, logprobs: 0 }, images };
    },
    show: (data, { body }) => view(data, body.targets),
    summary: (data, { body }) => body.targets[ranked(data)[0]?.index] ?? "no result",
  };
}

/** Those with a score, best first. */
function ranked(data) {
  return data.filter(({ error }) => !error).sort((a, b) => b.score - a.score);
}

function view(data, targets) {
  const scored = ranked(data);
  const total = scored.reduce((sum, { score }) => sum + Math.exp(score - scored[0].score), 0);
  const entries = scored.map((item) => ({ label: targets[item.index], score: item.score, note: note(item) }));
  const scale = {
    format: figure,
    share: (score) => Math.exp(score - scored[0].score) / total,
  };
  return el(
    "div", { class: "items" },
    bars(entries, scale),
    ...data
      .filter(({ error }) => error)
      .map(({ index, error }) => el("article", {}, el("p", {}, targets[index]), itemProblem(error))),
  );
}

/** The mean of the tokens, and the one that the model expected least. */
function note({ score, tokens, logprobs }) {
  const least = logprobs.reduce((worst, one) => (one.logprob < worst.logprob ? one : worst));
  const each = `${figure(score / tokens)} a token`;
  return `${each}; least expected: “${least.token.trim() || least.token}” ${figure(least.logprob)}`;
}

function figure(score) {
  return score.toFixed(2).replace(/^-0\.00$/, "0.00");
}

export default {
  task: "score",
  title: "Score",
  lead: "How likely a model finds given texts as its outputs: sums of log-probabilities, best first.",
  action: "Score",
  code: { input: "targets", result: "item.score" },
  create,
};
