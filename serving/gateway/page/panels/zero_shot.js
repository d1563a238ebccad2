/** `zero-shot`: pictures among labels that the user writes. */

import { pictureImage } from "../components/attention_picture.js";
import { bars } from "../components/bars.js";
import { linesOf, textArea } from "../components/fields.js";
import { itemsOver, labelledPictures } from "../components/labelled_pictures.js";
import { itemProblem } from "../components/problem.js";
import { el } from "../dom.js";

const HEART = 3;
const TWO_THINGS = 1;
const EXAMPLES = [
  {
    label: "One word differs",
    picture: HEART,
    labels: ["large red heart", "small red heart", "large blue heart", "large red star", "large red striped heart"],
  },
  {
    label: "Left or right",
    picture: TWO_THINGS,
    labels: [
      "small white ring to the left of a small white striped star on a cyan background",
      "small white ring to the right of a small white striped star on a cyan background",
      "small white ring above a small white striped star on a cyan background",
    ],
  },
];

function create() {
  const asked = labelledPictures(EXAMPLES, { least: 2, missing: "write the labels to choose from" });
  const template = textArea("Template", {
    field: "templates",
    rows: 2,
    value: "a photo of a {}",
    hint: "{} stands for the label. Of several lines the mean is taken.",
  });

  return {
    fields: [...asked.elements, template.element],
    examples: asked.examples,
    ready: asked.ready,
    request() {
      const { images, texts } = asked.read();
      const templates = linesOf(template.value);
      return { images, body: { labels: texts, templates: templates.length ? templates : null } };
    },
    show: itemsOver(view),
    summary: (data) => data.map(best).join(". "),
  };
}

function view(item, picture) {
  const found = item.error
    ? itemProblem(item.error)
    : bars(item.labels.map(({ label, score, cosine }) => ({ label, score, note: `cosine ${cosine.toFixed(3)}` })));
  return el("article", { class: "classified" }, pictureImage(picture), found);
}

function best({ labels }) {
  return labels ? `${labels[0].label}, ${(labels[0].score * 100).toFixed(0)} percent` : "no result";
}

export default {
  task: "zero-shot",
  title: "Zero-shot",
  lead: "Which of your own labels fits a picture; no class was trained.",
  action: "Classify",
  code: { input: "images", result: "item.labels" },
  create,
};
