/** `embed`: how similar texts and pictures are, as cosines of their vectors. */

import { pictureImage } from "../components/attention_picture.js";
import { linesOf, selectField, textArea } from "../components/fields.js";
import { heatmap } from "../components/heatmap.js";
import { pictureField } from "../components/picture_input.js";
import { InputError, itemProblem } from "../components/problem.js";
import { el } from "../dom.js";

const PARAPHRASES = [
  "Ana visited Pedro in Rome yesterday.",
  "Yesterday, Pedro was visited by Ana in Rome.",
  "Yesterday, Ana called Elena in Rome.",
  "There are twenty tables in the garden.",
];
const SCENES = ["a large red heart", "a small red heart", "a large orange crescent", "a large yellow crescent"];

const KINDS = { texts: "texts", images: "pictures" };
const PICTURES = [0, 2, 4];

function create(shell) {
  const kind = selectField("Compare", []);
  const text = textArea("Texts, one a line", { field: "texts", rows: 6 });
  const prompt = selectField("Prompt", [], { field: "prompt_name" });
  const pictures = pictureField({ example: PICTURES });
  const show = () => {
    const isOfTexts = kind.value === "texts";
    text.element.hidden = !isOfTexts;
    prompt.element.hidden = !isOfTexts || shell.model.prompts.length === 0;
    pictures.element.hidden = isOfTexts;
  };
  kind.input.addEventListener("change", show);
  shell.follow((model) => {
    const { prompts } = model;
    const taken = shell.fieldsOf(model);
    kind.setChoices(taken.map((name) => [name, KINDS[name]]));
    kind.element.hidden = taken.length === 1;
    prompt.setChoices([["", "none or the model's own"], ...prompts.map((name) => [name, name])]);
    show();
  });
  const offered = examples(shell, (name) => {
    kind.value = name;
    show();
  }, { text, pictures });
  offered[0]?.apply();

  return {
    fields: [kind.element, text.element, prompt.element, pictures.element],
    examples: offered,
    ready: pictures.ready,
    request() {
      if (kind.value === "images") {
        const images = pictures.value;
        if (!images.length) throw new InputError("choose the pictures to compare", "images");
        return { body: {}, images };
      }
      const texts = linesOf(text.value);
      if (!texts.length) throw new InputError("write the texts to compare", "texts");
      return { body: { texts, prompt_name: prompt.value || null } };
    },
    show: view,
    summary: nearest,
  };
}

/** Inputs for each kind that a served model takes; choosing one chooses a model too. */
function examples(shell, choose, { text, pictures }) {
  const takes = (model, name) => shell.fieldsOf(model).includes(name);
  const isOfBoth = (model) => takes(model, "texts") && takes(model, "images");
  const written = (label, lines, fits) => ({
    label,
    fits,
    apply() {
      shell.choose(fits);
      choose("texts");
      text.value = lines.join("\n");
    },
  });
  const isOfPictures = (model) => takes(model, "images");
  const shown = {
    label: "Three pictures",
    fits: isOfPictures,
    async apply() {
      shell.choose(isOfPictures);
      choose("images");
      await pictures.choose(...PICTURES);
    },
  };
  return [
    written("Paraphrases", PARAPHRASES, (model) => takes(model, "texts") && !isOfBoth(model)),
    written("Descriptions of pictures", SCENES, isOfBoth),
    shown,
  ].filter(({ fits }) => shell.models.some(fits));
}

/** What a request compares, by name. */
function names({ body, images }) {
  return body.texts ?? images.map(({ name }) => name);
}

function view(data, request) {
  const every = names(request);
  const found = data.filter((item) => item.embedding);
  const failed = data.filter((item) => item.error);
  const numbers = found.map(({ index }) => String(index + 1));
  const weights = found.map((row) => found.map((column) => cosine(row.embedding, column.embedding)));
  const rows = found.map(({ index }, at) => `${numbers[at]}  ${every[index]}`);
  const map = heatmap({ rows, columns: numbers, weights }, {
    caption: `Cosines of vectors of ${found[0].embedding.length} numbers; 1: the same direction.`,
    describe: (weight) => weight.toFixed(2),
    isNumbered: true,
  });
  const problems = failed.map(({ index, error }) =>
    el("article", {}, el("p", {}, every[index]), itemProblem(error)),
  );
  const pictures = request.images?.length
    ? [el("ul", { class: "chosen" }, ...request.images.map((picture) => el("li", {}, pictureImage(picture))))]
    : [];
  const summary = el("p", { class: "text" }, nearest(data, request));
  return el("div", { class: "similar" }, summary, ...pictures, map.element, ...problems);
}

/** The two that are most alike, in a sentence. */
function nearest(data, request) {
  const every = names(request);
  const found = data.filter((item) => item.embedding);
  const pairs = found.flatMap((row, at) =>
    found.slice(at + 1).map((column) => ({ row, column, value: cosine(row.embedding, column.embedding) })),
  );
  if (!pairs.length) return "One alone has nothing to be compared with.";
  const { row, column, value } = pairs.reduce((best, pair) => (pair.value > best.value ? pair : best));
  return `“${every[row.index]}” and “${every[column.index]}” are nearest: ${value.toFixed(2)}`;
}

function cosine(left, right) {
  const dot = (a, b) => a.reduce((total, value, at) => total + value * b[at], 0);
  return dot(left, right) / Math.sqrt(dot(left, left) * dot(right, right));
}

export default {
  task: "embed",
  title: "Embed",
  lead: "Texts or pictures as vectors, and how similar they are.",
  action: "Compare",
  code: { input: "texts", result: "item.embedding" },
  create,
};
