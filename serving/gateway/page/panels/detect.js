/** `detect`: boxes over pictures, for labels that the user writes. */

import { pictureImage } from "../components/attention_picture.js";
import { bars } from "../components/bars.js";
import { numberField } from "../components/fields.js";
import { itemsOver, labelledPictures } from "../components/labelled_pictures.js";
import { itemProblem } from "../components/problem.js";
import { el } from "../dom.js";

const TWO_THINGS = 1;
const EXAMPLES = [
  { label: "A ring and a star", picture: TWO_THINGS, labels: ["a ring", "a star"] },
  { label: "By colour", picture: TWO_THINGS, labels: ["something white", "something cyan"] },
];
const SIDES = ["x_min", "y_min", "x_max", "y_max"];

function create() {
  const asked = labelledPictures(EXAMPLES);
  const threshold = numberField("Least score", { field: "threshold", min: 0, max: 1, step: 0.05, placeholder: "0.1" });
  const words = numberField("Least score of a word in a box's label", {
    field: "text_threshold", min: 0, max: 1, step: 0.05, placeholder: "0.25",
    hint: "Of models that read all labels as one text (Grounding DINO); others ignore it.",
  });

  return {
    fields: [...asked.elements, threshold.element],
    options: [words.element],
    examples: asked.examples,
    ready: asked.ready,
    request() {
      const { images, texts } = asked.read();
      const thresholds = { threshold: threshold.value, text_threshold: words.value };
      return { images, body: { labels: texts.length ? texts : null, ...thresholds } };
    },
    show: itemsOver(view),
    summary: (data) => data.map(({ boxes }) => (boxes ? `${boxes.length} found` : "no result")).join(". "),
  };
}

function view(item, picture) {
  if (item.error) return el("article", { class: "classified" }, pictureImage(picture), itemProblem(item.error));
  const listed = item.boxes.map((box) => ({
    label: box.label,
    score: box.score,
    note: SIDES.map((side) => box[side].toFixed(0)).join(" "),
  }));
  const outlines = item.boxes.map((box) => outline(box, item));
  const list = listed.length ? bars(listed) : el("p", {}, "Nothing reached the threshold.");
  [...list.querySelectorAll("li")].forEach((row, rank) => connect(row, outlines[rank]));
  return el(
    "article", { class: "classified" },
    el("div", { class: "boxed" }, pictureImage(picture), ...outlines.toReversed()), list,
  );
}

/** A frame in parts of the picture, whatever the size at which it is shown. */
function outline(box, { width, height }) {
  const frame = el("span", { class: "box", title: box.label, "aria-hidden": "true" });
  const parts = {
    left: box.x_min / width,
    top: box.y_min / height,
    width: (box.x_max - box.x_min) / width,
    height: (box.y_max - box.y_min) / height,
  };
  for (const [side, part] of Object.entries(parts)) frame.style.setProperty(side, `${100 * part}%`);
  return frame;
}

/** Pointing at a row of the list lights up its frame. */
function connect(row, frame) {
  row.addEventListener("pointerenter", () => frame.classList.add("lit"));
  row.addEventListener("pointerleave", () => frame.classList.remove("lit"));
}

export default {
  task: "detect",
  title: "Detect",
  lead: "Where the things of your labels are in a picture; no class was trained.",
  action: "Detect",
  code: { input: "images", result: "item.boxes" },
  create,
};
