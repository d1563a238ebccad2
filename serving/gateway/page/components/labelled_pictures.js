/** Pictures, and labels that the user writes for them. */

import { el } from "../dom.js";
import { pictureField } from "./picture_input.js";
import { InputError } from "./problem.js";
import { rowsField } from "./rows.js";

/**
 * @param {object[]} examples `label` of the button, `picture` and `labels`; the first one is shown at the beginning.
 * @param {number} least Labels that the model needs, at least.
 * @param {string} missing What is asked for where there is none; without it labels may be left out.
 */
export function labelledPictures(examples, { least = 1, missing } = {}) {
  const rows = (example) => example.labels.map((text) => [text]);
  const pictures = pictureField({ example: examples[0].picture });
  const labels = rowsField("Labels", {
    columns: ["label"],
    field: "labels",
    noun: "label",
    least,
    value: rows(examples[0]),
  });
  return {
    elements: [pictures.element, labels.element],
    examples: examples.map((example) => ({
      label: example.label,
      async apply() {
        labels.value = rows(example);
        await pictures.choose(example.picture);
      },
    })),
    ready: pictures.ready,
    /** Images and texts. */
    read() {
      const images = pictures.value;
      const texts = labels.value.map(([text]) => text);
      if (!images.length) throw new InputError("choose a picture", "images");
      if (missing && !texts.length) throw new InputError(missing, "labels");
      return { images, texts };
    },
  };
}

/** Each item of an answer with its picture, by `view`. */
export function itemsOver(view) {
  return (data, { images }) =>
    el("div", { class: "items" }, ...data.map((item) => view(item, images[item.index])));
}
