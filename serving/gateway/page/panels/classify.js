/** `classify`: a model's own labels for texts, pairs of texts, pictures, or pictures with texts. */

import { attentionPicture, pictureImage } from "../components/attention_picture.js";
import { bars } from "../components/bars.js";
import { checkField, linesOf, numberField, selectField, textArea } from "../components/fields.js";
import { pictureField } from "../components/picture_input.js";
import { InputError, itemProblem } from "../components/problem.js";
import { rowsField } from "../components/rows.js";
import { el } from "../dom.js";

const CRESCENT = 2;
const REVIEWS = [
  "The food was not bad at all.",
  "Although the hotel was clean, nobody would call the soup delicious.",
  "Do you think that this movie is interesting?",
];
const JOINT = "images with texts";
const KINDS = { texts: "texts", pairs: "pairs of texts", images: "pictures", [JOINT]: "pictures with texts" };
const PAIR = ["Who sold the old lamp in Paris?", "The old lamp was sold in Paris by Ana."];

function create(shell) {
  const kind = selectField("Classify", []);
  const texts = textArea("Texts, one a line", { field: "texts", rows: 5, value: REVIEWS.join("\n") });
  const pairs = rowsField("Pairs", {
    columns: ["first text", "second text"], field: "pairs", noun: "pair", least: 1, value: [PAIR],
  });
  const pictures = pictureField({ example: CRESCENT });
  const attention = checkField("Show the regions that the class depends on", {
    field: "return_attention", value: true,
  });
  const most = numberField("Labels at most", { field: "top_k", min: 1, step: 1, value: 5 });
  const show = () => {
    texts.element.hidden = !["texts", JOINT].includes(kind.value);
    pairs.element.hidden = kind.value !== "pairs";
    pictures.element.hidden = !["images", JOINT].includes(kind.value);
    attention.element.hidden = kind.value !== "images";
  };
  kind.input.addEventListener("change", show);
  shell.follow((model) => {
    const taken = kindsOf(shell, model);
    kind.setChoices(taken.map((name) => [name, KINDS[name]]));
    kind.element.hidden = taken.length === 1;
    kind.value = usualKind(shell, model);
    show();
  });

  const chosen = {
    texts: () => ({ body: { texts: linesOf(texts.value) } }),
    pairs: () => ({ body: { pairs: pairs.value } }),
    images: () => ({ images: pictures.value, body: { return_attention: attention.value || null } }),
    [JOINT]: () => ({ images: pictures.value, body: { texts: linesOf(texts.value) } }),
  };

  return {
    fields: [kind.element, texts.element, pairs.element, pictures.element, attention.element],
    options: [most.element],
    examples: examples(shell, { texts, pairs, pictures }),
    ready: pictures.ready,
    request() {
      const { body, images } = chosen[kind.value]();
      const given = [body.texts, body.pairs, images].filter(Boolean);
      if (given.some((list) => !list.length)) throw new InputError("there is nothing to classify", kind.value);
      return { images, body: { ...body, top_k: most.value } };
    },
    show: (data, request) =>
      el("div", { class: "items" }, ...data.map((item) => view(item, inputs(request)[item.index]))),
    summary: (data) => data.map(({ labels }) => labels?.[0].label ?? "no result").join(", "),
  };
}

/** The texts, pairs or pictures of a request; of texts with pictures, the longer list. */
function inputs({ body, images }) {
  const given = body.texts ?? body.pairs ?? images;
  return images?.length > given.length ? images : given;
}

function examples(shell, { texts, pairs, pictures }) {
  const offered = [
    ["images", "A picture's largest thing", () => pictures.choose(CRESCENT)],
    ["texts", "Three reviews", () => (texts.value = REVIEWS.join("\n"))],
    ["pairs", "Question and answer", () => (pairs.value = [PAIR])],
    [JOINT, "A question about a picture", () => {
      texts.value = "Which shape is the largest?";
      return pictures.choose(CRESCENT);
    }],
  ];
  return offered
    .filter(([kind]) => shell.models.some((model) => usualKind(shell, model) === kind))
    .map(([kind, label, fill]) => ({
      label,
      async apply() {
        shell.choose((model) => usualKind(shell, model) === kind);
        await fill();
      },
    }));
}

/** What a model classifies: each of its fields, or pictures with texts. */
function kindsOf(shell, model) {
  const taken = shell.fieldsOf(model);
  return taken.includes("texts") && taken.includes("images") ? [JOINT] : taken;
}

/** What is shown first for a model. */
function usualKind(shell, model) {
  const taken = kindsOf(shell, model);
  const isForPairs = model.tasks.includes("rerank"); // a cross-encoder
  return isForPairs && taken.includes("pairs") ? "pairs" : taken[0];
}

function view(item, input) {
  const head = heading(item, input);
  if (item.error) return el("article", {}, head, itemProblem(item.error));
  const isPicture = Boolean(input.url);
  return el("article", { class: isPicture ? "classified" : "" }, head, bars(item.labels, scale(item.labels)));
}

function heading(item, input) {
  if (typeof input === "string") return el("p", { class: "text" }, input);
  if (Array.isArray(input)) return el("p", { class: "text" }, input.join(" — "));
  if (!item.attention) return pictureImage(input);
  const weights = item.attention;
  const picture = attentionPicture(input, { rows: weights.length, columns: weights[0].length });
  picture.show(weights.flat());
  return picture.element;
}

/** Probabilities as percentages, logits as numbers with bars relative to the largest. */
function scale(labels) {
  const isShare = labels.every(({ score }) => score >= 0 && score <= 1);
  if (isShare) return {};
  const largest = Math.max(...labels.map(({ score }) => Math.abs(score)));
  return { format: (score) => score.toFixed(2), share: (score) => score / largest };
}

export default {
  task: "classify",
  title: "Classify",
  lead: "A model's own classes for texts, pairs of texts, pictures, or pictures with texts.",
  action: "Classify",
  code: { input: "texts", result: "item.labels" },
  refusable: ["return_attention"],
  create,
};
