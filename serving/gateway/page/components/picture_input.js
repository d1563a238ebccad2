/** Pictures to send: examples, files, dropped or pasted ones. */

import { button, el } from "../dom.js";
import { EXAMPLE_PICTURES, examplePicture } from "../example_pictures.js";
import { pictureImage } from "./attention_picture.js";
import { pictureSource } from "./picture_source.js";

const MOST = 8;

/**
 * @param {object} [options]
 * @param {number|number[]} [options.example] Indexes of the examples that are chosen at first.
 * @returns {{element: HTMLElement, value: {name: string, blob: Blob, url: string}[],
 *   choose: (...indexes: number[]) => Promise<void>, ready: Promise<void>}} `ready` resolves when
 *   the first examples are loaded.
 */
export function pictureField({ example = 0 } = {}) {
  const chosen = [];
  const list = el("ul", { class: "chosen" });
  const element = el(
    "fieldset", { class: "field", dataset: { field: "images" } }, el("legend", {}, "Pictures"), list,
  );
  const source = pictureSource(element, { onFiles: replaceOrAdd, onExample: choose });
  element.append(...source.parts);

  /** Own pictures replace the example that is there at first. */
  function replaceOrAdd(pictures) {
    if (pictures.length && chosen.every((one) => one.isExample)) clear();
    for (const picture of pictures) add(picture);
    render();
  }

  function add(picture) {
    if (chosen.length < MOST) chosen.push(withUrl(picture));
    else source.say(`At most ${MOST} pictures are sent.`);
  }

  function clear() {
    chosen.length = 0;
  }

  async function choose(...entries) {
    try {
      const pictures = await Promise.all(entries.map(examplePicture));
      source.say("");
      clear();
      for (const picture of pictures) add({ ...picture, isExample: true });
      render();
    } catch {
      source.say("The example picture could not be loaded.");
    }
  }

  const chooseExamples = (...indexes) => choose(...indexes.map((index) => EXAMPLE_PICTURES[index]));

  function render() {
    list.replaceChildren(...chosen.map(item));
    element.dispatchEvent(new Event("change", { bubbles: true })); // as an input would
  }

  function item(picture) {
    const remove = button("✕", () => removed(picture), {
      class: "icon",
      "aria-label": `Remove ${picture.name}`,
    });
    return el("li", {}, pictureImage(picture), remove);
  }

  function removed(picture) {
    chosen.splice(chosen.indexOf(picture), 1);
    render();
    source.focus();
  }

  return {
    element,
    get value() {
      return [...chosen];
    },
    choose: chooseExamples,
    ready: chooseExamples(...[example].flat()),
  };
}

/** URLs stay valid: an answer shows its pictures when they are no longer chosen. */
export function withUrl(picture) {
  return { ...picture, url: URL.createObjectURL(picture.blob) };
}
