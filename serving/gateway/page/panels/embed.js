/** `embed`: how similar texts and pictures are, as cosines of their vectors. */

import { linesOf, selectField, textArea } from "../components/fields.js";
import { heatmap } from "../components/heatmap.js";
import { InputError, itemProblem } from "../components/problem.js";
import { el } from "../dom.js";

const PARAPHRASES = [
  "Ana visited Pedro in Rome yesterday.",
  "Yesterday, Pedro was visited by Ana in Rome.",
  "Yesterday, Ana called Elena in Rome.",
  "There are twenty tables in the garden.",
];
const SCENES = ["a large red heart", "a small red heart", "a large orange crescent", "a large yellow crescent"];

function create(shell) {
  const text = textArea("Texts, one a line", { field: "texts", rows: 6 });
  const prompt = selectField("Prompt", [], { field: "prompt_name" });
  const isOfPictures = (model) => Boolean(model.limits.max_image_pixels);
  const offered = [
    { label: "Paraphrases", lines: PARAPHRASES, fits: (model) => !isOfPictures(model) },
    { label: "Descriptions of pictures", lines: SCENES, fits: isOfPictures },
  ].filter(({ fits }) => shell.models.some(fits));
  const apply = ({ lines, fits }) => {
    text.value = lines.join("\n");
    shell.choose(fits);
  };
  shell.follow(({ prompts }) => {
    prompt.setChoices([["", "none or the model's own"], ...prompts.map((name) => [name, name])]);
    prompt.element.hidden = prompts.length === 0;
  });
  if (offered.length) apply(offered[0]);

  return {
    fields: [text.element, prompt.element],
    examples: offered.map((example) => ({ label: example.label, apply: () => apply(example) })),
    request() {
      const texts = linesOf(text.value);
      if (!texts.length) throw new InputError("write the texts to compare", "texts");
      return { body: { texts, prompt_name: prompt.value || null } };
    },
    show: (data, { body }) => view(data, body.texts),
    summary: (data, { body }) => nearest(data, body.texts),
  };
}

function view(data, texts) {
  const found = data.filter((item) => item.embedding);
  const failed = data.filter((item) => item.error);
  const names = found.map(({ index }) => texts[index]);
  const numbers = found.map(({ index }) => String(index + 1));
  const weights = found.map((row) => found.map((column) => cosine(row.embedding, column.embedding)));
  const matrix = { rows: names.map((name, at) => `${numbers[at]}  ${name}`), columns: numbers, weights };
  const map = heatmap(matrix, {
    caption: `Cosines of vectors of ${found[0].embedding.length} numbers; 1: the same direction.`,
    describe: (weight) => weight.toFixed(2),
    isNumbered: true,
  });
  const problems = failed.map(({ index, error }) =>
    el("article", {}, el("p", {}, texts[index]), itemProblem(error)),
  );
  return el("div", { class: "similar" }, el("p", { class: "text" }, nearest(data, texts)), map.element, ...problems);
}

/** The two texts that are most alike, in a sentence. */
function nearest(data, texts) {
  const found = data.filter((item) => item.embedding);
  const pairs = found.flatMap((row, at) =>
    found.slice(at + 1).map((column) => ({ row, column, value: cosine(row.embedding, column.embedding) })),
  );
  if (!pairs.length) return "One text alone has nothing to be compared with.";
  const { row, column, value } = pairs.reduce((best, pair) => (pair.value > best.value ? pair : best));
  return `“${texts[row.index]}” and “${texts[column.index]}” are nearest: ${value.toFixed(2)}`;
}

function cosine(left, right) {
  const dot = (a, b) => a.reduce((total, value, at) => total + value * b[at], 0);
  return dot(left, right) / Math.sqrt(dot(left, left) * dot(right, right));
}

export default {
  task: "embed",
  title: "Embed",
  lead: "Texts as vectors, and how similar they are.",
  action: "Compare",
  code: { input: "texts", result: "item.embedding" },
  create,
};
