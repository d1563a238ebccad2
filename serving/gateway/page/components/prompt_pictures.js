/** The pictures of a prompt, each with a place in its text. */

import { button, el } from "../dom.js";
import { EXAMPLE_PICTURES, examplePicture } from "../example_pictures.js";
import { pictureImage } from "./attention_picture.js";
import { withUrl } from "./picture_input.js";
import { pictureSource } from "./picture_source.js";
import { countPlaces, difference, withoutPlace } from "./places.js";
import { sentence } from "./problem.js";

/** What stands for a picture in a model's prompts; null where the task takes none with it. */
export function imagePlaceOf(shell, model) {
  return shell.fieldsOf(model).includes("images") ? model.image_place : null;
}

/**
 * Pictures are in the order of their places: one that is added at the caret stands between those
 * of the places around it.
 *
 * @param {{input: HTMLTextAreaElement}} text The prompt's field.
 * @param {string} what It is called.
 * @returns {{element: HTMLElement, value: object[], problem: string, place: string|null,
 *   follow: (place: string|null, most: number) => void,
 *   load: (...indexes: number[]) => Promise<object[]>,
 *   choose: (...indexes: number[]) => Promise<void>}} `follow` takes what stands for a picture in
 *   the model's prompts, and how many it takes; without a place the field is hidden, its value empty.
 */
export function promptPictures(text, what = "prompt") {
  const { input } = text;
  let chosen = [];
  let place = null;
  let most = 0;
  const list = el("ol", { class: "chosen numbered" });
  const words = el("p", { class: "hint", role: "status" });
  const insert = button("", () => {
    insertPlace();
    input.focus();
  }, { class: "quiet", hidden: true });
  const element = el(
    "fieldset", { class: "field", dataset: { field: "images" }, hidden: true },
    el("legend", {}, `Pictures of the ${what}`), list, words, insert,
  );
  const source = pictureSource(element, { onFiles: addAll, onExample: addExample });
  element.append(...source.parts);
  input.addEventListener("input", showWords);

  function addAll(pictures) {
    const room = Math.max(0, most - chosen.length);
    for (const picture of pictures.slice(0, room)) add(withUrl(picture));
    if (pictures.length > room) source.say(`The ${what} holds at most ${most} pictures.`);
    if (pictures.length) changed();
  }

  /** At the caret, or into a place that has no picture yet. */
  function add(picture) {
    const isPlaced = countPlaces(input.value, place) > chosen.length;
    chosen.splice(isPlaced ? chosen.length : insertPlace(), 0, picture);
  }

  async function addExample(entry) {
    addAll(await loaded([entry]));
  }

  async function load(...indexes) {
    return (await loaded(indexes.map((index) => EXAMPLE_PICTURES[index]))).map(withUrl);
  }

  async function loaded(entries) {
    try {
      return await Promise.all(entries.map(examplePicture));
    } catch {
      source.say("The example picture could not be loaded.");
      return [];
    }
  }

  /** Writes a place at the caret; returns its number among the places. */
  function insertPlace() {
    const at = outsidePlaces(input.value, place, input.selectionEnd);
    input.setRangeText(place, at, at, "end");
    changed();
    return countPlaces(input.value.slice(0, at), place);
  }

  function removed(index) {
    const isEven = problem() === "";
    chosen.splice(index, 1);
    if (isEven) input.value = withoutPlace(input.value, place, index);
    changed();
    source.focus();
  }

  function changed() {
    list.replaceChildren(...chosen.map(item));
    input.dispatchEvent(new Event("input", { bubbles: true })); // as if it were written
  }

  function problem() {
    return place === null ? "" : difference(`the ${what}`, input.value, place, chosen.length);
  }

  function showWords() {
    const differs = problem();
    const text = differs ? sentence(differs) : `Each ${place} in the ${what} is a picture, in this order.`;
    words.className = differs ? "field-problem" : "hint";
    if (words.textContent !== text) words.textContent = text; // or screen readers would repeat it
    insert.hidden = place === null || countPlaces(input.value, place) >= chosen.length;
    insert.textContent = `Insert ${place}`;
  }

  function item(picture, index) {
    const number = el("span", { class: "number", "aria-hidden": "true" }, String(index + 1));
    const remove = button("✕", () => removed(index), {
      class: "icon",
      "aria-label": `Remove picture ${index + 1}, ${picture.name}`,
    });
    return el("li", {}, pictureImage(picture), number, remove);
  }

  return {
    element,
    get value() {
      return place === null ? [] : [...chosen];
    },
    get problem() {
      return problem();
    },
    get place() {
      return place;
    },
    follow(modelPlace, modelMost) {
      [place, most] = [modelPlace, modelMost];
      element.hidden = place === null;
      showWords();
    },
    /** Example pictures. */
    load,
    /** Example pictures for the places that the text has. */
    async choose(...indexes) {
      chosen = await load(...indexes);
      changed();
    },
  };
}

/** The position itself, or the end of the place that it is inside of. */
function outsidePlaces(text, place, position) {
  const start = text.lastIndexOf(place, position - 1);
  const isInside = start >= 0 && start < position && position < start + place.length;
  return isInside ? start + place.length : position;
}
