/** Pictures to send: examples, files, dropped or pasted ones. */

import { button, el, newId } from "../dom.js";
import { EXAMPLE_PICTURES, examplePicture } from "../example_pictures.js";
import { pictureImage } from "./attention_picture.js";

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
  const problem = el("p", { class: "field-problem", role: "status" });
  const input = el("input", { type: "file", accept: "image/*", multiple: true, id: newId("files") });
  input.addEventListener("change", () => {
    addFiles(input.files);
    input.value = ""; // the same file can be chosen again
  });
  const thumbs = EXAMPLE_PICTURES.map((entry) =>
    button(el("img", { src: entry.url, alt: entry.alt, width: 44, height: 44 }), () => choose(entry), {
      class: "thumb",
      title: entry.alt,
    }),
  );
  const drop = el(
    "div", { class: "drop" },
    input,
    el("label", { htmlFor: input.id }, el("strong", {}, "Choose pictures"), ", drop or paste them here"),
  );
  const element = el(
    "fieldset", { class: "field", dataset: { field: "images" } },
    el("legend", {}, "Pictures"), list, drop,
    el("div", { class: "thumbs", role: "group", "aria-label": "Example pictures" }, ...thumbs),
    problem,
  );
  acceptDrops(element, drop, addFiles);
  acceptPastes(element, addFiles);

  function addFiles(files) {
    const pictures = [...files].filter((file) => file.type.startsWith("image/"));
    const other = [...files].find((file) => !file.type.startsWith("image/"));
    replaceOrAdd(pictures.map((file) => ({ name: file.name || "picture.png", blob: file })));
    problem.textContent = other ? `${other.name} is not a picture` : "";
  }

  /** Own pictures replace the example that is there at first. */
  function replaceOrAdd(pictures) {
    if (pictures.length && chosen.every((one) => one.isExample)) clear();
    for (const picture of pictures) add(picture);
    render();
  }

  function add(picture) {
    if (chosen.length < MOST) chosen.push({ ...picture, url: URL.createObjectURL(picture.blob) });
  }

  /** URLs stay valid: an answer shows its pictures when they are no longer chosen. */
  function clear() {
    chosen.length = 0;
  }

  async function choose(...entries) {
    try {
      const pictures = await Promise.all(entries.map(examplePicture));
      problem.textContent = "";
      clear();
      for (const picture of pictures) add({ ...picture, isExample: true });
      render();
    } catch {
      problem.textContent = "The example picture could not be loaded.";
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
    input.focus();
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

/** Files dropped anywhere on the page go to the field of the visible panel. */
function acceptDrops(element, drop, addFiles) {
  const mark = (isOver) => drop.classList.toggle("over", isOver);
  document.addEventListener("dragover", (event) => {
    if (!isVisible(element)) return;
    event.preventDefault();
    mark(true);
  });
  document.addEventListener("dragleave", () => mark(false));
  document.addEventListener("drop", (event) => {
    mark(false);
    if (!isVisible(element) || !event.dataTransfer.files.length) return;
    event.preventDefault();
    addFiles(event.dataTransfer.files);
  });
}

function isVisible(element) {
  return element.getClientRects().length > 0;
}

/** Pasted files go to the picture field of the visible panel, wherever the focus is. */
function acceptPastes(element, addFiles) {
  document.addEventListener("paste", (event) => {
    if (!isVisible(element) || !event.clipboardData?.files.length) return;
    event.preventDefault();
    addFiles(event.clipboardData.files);
  });
}
