/** The picture of one row: chosen, or dropped or pasted while the focus is in the row. */

import { button, el } from "../dom.js";
import { withUrl } from "./picture_input.js";
import { acceptDrops, acceptPastes, fileInput, sorted } from "./picture_source.js";

/**
 * @param {HTMLElement} row Takes drops and pastes.
 * @param {object} options
 * @param {() => boolean} options.isOn Whether rows have pictures now.
 * @param {(picture: object|null) => void} options.onChange
 * @returns {{element: HTMLElement, value: object|null, label: (of: string) => void}} `label` names
 *   the controls, e.g. after `example 2`.
 */
export function rowPicture(row, { isOn, onChange }) {
  let picture = null;
  let name = "";
  const input = fileInput({ multiple: false }, add);
  const chooser = el("span", { class: "row-chooser" }, input, el("span", { "aria-hidden": "true" }, "+"));
  const image = el("img", { alt: "" });
  const remove = button(image, () => change(null), { class: "thumb" });
  const element = el("span", { class: "row-picture" }, chooser, remove);
  acceptDrops(row, { isOn, mark: chooser, add });
  acceptPastes(row, { isOn, add });

  function add(files) {
    const [first] = sorted(files).pictures;
    if (first) change(withUrl(first));
  }

  function change(next) {
    set(next);
    (next ? remove : input).focus();
    onChange(next);
    row.dispatchEvent(new Event("input", { bubbles: true }));
  }

  function set(next) {
    picture = next;
    chooser.hidden = picture !== null;
    remove.hidden = picture === null;
    if (picture) image.src = picture.url;
    label(name);
  }

  function label(of) {
    name = of;
    input.setAttribute("aria-label", `Picture of ${of}`);
    remove.setAttribute("aria-label", `Remove picture of ${of}${picture ? `, ${picture.name}` : ""}`);
    remove.title = "Remove the picture";
  }

  set(null);
  return {
    element,
    label,
    get value() {
      return picture;
    },
    set value(given) {
      set(given);
    },
  };
}
