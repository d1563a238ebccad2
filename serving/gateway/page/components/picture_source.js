/** Where pictures come from: chosen, dropped and pasted files, and the example pictures. */

import { button, el, newId } from "../dom.js";
import { EXAMPLE_PICTURES } from "../example_pictures.js";

let pasted = 0;

/**
 * @param {HTMLElement} field Files that are dropped or pasted while it is visible are its own.
 * @param {object} listeners
 * @param {(pictures: {name: string, blob: Blob}[]) => void} listeners.onFiles
 * @param {(entry: object) => void} listeners.onExample One of `EXAMPLE_PICTURES` is chosen.
 * @returns {{parts: Node[], say: (problem: string) => void, focus: () => void}} `parts` are put
 *   into the field.
 */
export function pictureSource(field, { onFiles, onExample }) {
  const problem = el("p", { class: "field-problem", role: "status" });
  const say = (text) => {
    problem.textContent = text;
  };
  const add = (files) => {
    const { pictures, other } = sorted(files);
    say(other ? `${other.name} is not a picture` : "");
    onFiles(pictures);
  };
  const input = fileInput({ multiple: true }, add);
  const drop = el(
    "div", { class: "drop" },
    input,
    el("label", { htmlFor: input.id }, el("strong", {}, "Choose pictures"), ", drop or paste them here"),
  );
  const thumbs = EXAMPLE_PICTURES.map((entry) =>
    button(el("img", { src: entry.url, alt: entry.alt, width: 44, height: 44 }), () => onExample(entry), {
      class: "thumb",
      title: entry.alt,
    }),
  );
  const examples = el("div", { class: "thumbs", role: "group", "aria-label": "Example pictures" }, ...thumbs);
  acceptDrops(document, { isOn: () => isVisible(field), mark: drop, add });
  acceptPastes(document, { isOn: () => isVisible(field), add });
  return { parts: [drop, examples, problem], say, focus: () => input.focus() };
}

/** A file chooser for pictures; `add` receives its files. */
export function fileInput({ multiple }, add) {
  const input = el("input", { type: "file", accept: "image/*", multiple, id: newId("files") });
  input.addEventListener("change", () => {
    add(input.files);
    input.value = ""; // the same file can be chosen again
  });
  return input;
}

/** The pictures among files, and the first file that is none. */
export function sorted(files) {
  const isPicture = (file) => file.type.startsWith("image/");
  return {
    pictures: [...files].filter(isPicture).map((file) => ({ name: file.name || "picture.png", blob: file })),
    other: [...files].find((file) => !isPicture(file)) ?? null,
  };
}

/**
 * Files that are dropped on a part of the page.
 *
 * @param {Document|HTMLElement} target
 * @param {{isOn: () => boolean, mark: HTMLElement, add: (files: Iterable<File>) => void}} options `mark`
 *   is highlighted while files are over the target.
 */
export function acceptDrops(target, { isOn, mark, add }) {
  const highlight = (isOver) => mark.classList.toggle("over", isOver);
  target.addEventListener("dragover", (event) => {
    if (!isOn()) return;
    event.preventDefault();
    event.stopPropagation(); // the innermost part takes the files
    highlight(true);
  });
  target.addEventListener("dragleave", () => highlight(false));
  target.addEventListener("drop", (event) => {
    highlight(false);
    if (!isOn() || !event.dataTransfer.files.length) return;
    event.preventDefault();
    event.stopPropagation();
    add(event.dataTransfer.files);
  });
}

/** Files that are pasted while the focus is in a part of the page. */
export function acceptPastes(target, { isOn, add }) {
  target.addEventListener("paste", (event) => {
    if (!isOn() || !event.clipboardData?.files.length) return;
    event.preventDefault();
    event.stopPropagation();
    add([...event.clipboardData.files].map(named));
  });
}

/** Browsers call every pasted picture `image.png`; as files of one request they need own names. */
function named(file) {
  if (file.name !== "image.png") return file;
  pasted += 1;
  return new File([file], `pasted-${pasted}.png`, { type: file.type });
}

function isVisible(element) {
  return element.getClientRects().length > 0;
}
