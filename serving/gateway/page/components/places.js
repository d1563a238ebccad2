/** Places for pictures in a text: where they are, and whether there is a picture for each. */

import { el } from "../dom.js";

/** Number of places in a text; `place` is what stands for a picture, such as `<image>`. */
export function countPlaces(text, place) {
  return text.split(place).length - 1;
}

/** A text without its place of this index, and without the spaces behind it. */
export function withoutPlace(text, place, index) {
  const parts = text.split(place);
  const [before, behind] = [parts.slice(0, index + 1), parts.slice(index + 1)];
  return before.join(place) + behind.join(place).replace(/^ +/, "");
}

/** In words how places and pictures differ; empty where each place has its picture. */
export function difference(what, text, place, pictures) {
  const places = countPlaces(text, place);
  if (places === pictures) return "";
  const remedy = places < pictures ? "write one for each picture" : "add pictures, or remove places";
  return `${what} has ${counted(places, `${place} place`)} and ${counted(pictures, "picture")}: ${remedy}`;
}

function counted(count, noun) {
  return `${count || "no"} ${noun}${count === 1 ? "" : "s"}`;
}

/** A text as nodes, with pictures in its places; a place without a picture stays text. */
export function pictured(text, place, pictures) {
  const [first, ...rest] = place ? text.split(place) : [text];
  const shown = (at) => (pictures[at] ? inlinePicture(pictures[at]) : place);
  return [first, ...rest.flatMap((part, at) => [shown(at), part])];
}

function inlinePicture({ url, name }) {
  return el("img", { class: "inline-picture", src: url, alt: name });
}
