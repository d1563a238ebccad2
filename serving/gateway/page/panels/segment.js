/** `segment`: masks over pictures, for labels that the user writes. */

import { pictureImage } from "../components/attention_picture.js";
import { bars } from "../components/bars.js";
import { itemsOver, labelledPictures } from "../components/labelled_pictures.js";
import { itemProblem } from "../components/problem.js";
import { el, percent } from "../dom.js";

const TWO_THINGS = 1;
const EXAMPLES = [
  { label: "A ring and a star", picture: TWO_THINGS, labels: ["a ring", "a star"] },
  { label: "By colour", picture: TWO_THINGS, labels: ["something white", "something cyan"] },
];

function create() {
  const asked = labelledPictures(EXAMPLES, { missing: "write the labels to look for" });

  return {
    fields: [...asked.elements],
    examples: asked.examples,
    ready: asked.ready,
    request() {
      const { images, texts } = asked.read();
      return { images, body: { labels: texts } };
    },
    show: itemsOver(view),
    summary: (data) => data.map(({ masks }) => (masks ? `${masks.length} masks` : "no result")).join(". "),
  };
}

function view(item, picture) {
  if (item.error) return el("article", { class: "classified" }, pictureImage(picture), itemProblem(item.error));
  const colours = item.masks.map(colourOver);
  const list = bars(
    item.masks.map(({ label, max_probability: most, mean_probability: mean }) => ({
      label,
      score: most,
      note: `${percent(mean)} on average`,
    })),
  );
  [...list.querySelectorAll("li")].forEach((row, place) => connect(row, place, colours));
  show(0, colours);
  return el("article", { class: "classified" }, el("div", { class: "boxed" }, pictureImage(picture), ...colours), list);
}

/** A layer of one colour, as dense as its mask is bright, whatever the size of the picture. */
function colourOver({ label, mask }) {
  const layer = el("span", { class: "segment", title: label, "aria-hidden": "true" });
  layer.style.setProperty("--mask", `url("data:image/png;base64,${mask}")`);
  return layer;
}

/** Pointing at a row of the list shows its mask. */
function connect(row, place, colours) {
  row.addEventListener("pointerenter", () => show(place, colours));
}

function show(place, colours) {
  colours.forEach((colour, at) => colour.classList.toggle("lit", at === place));
}

export default {
  task: "segment",
  title: "Segment",
  lead: "Which parts of a picture show your labels; no class was trained.",
  action: "Segment",
  code: { input: "images", result: "item.masks" },
  create,
};
